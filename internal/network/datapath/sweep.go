package datapath

import (
	"errors"

	"github.com/huskd/husk/internal/network/plan"
)

// Sweep removes the objects that are this instance's by name, protocol or table, but belong neither
// to the base nor to a plan, and returns them.
func (d *Datapath) Sweep(b plan.Base, plans []plan.Plan) ([]Difference, error) {
	node, elements, err := d.observeNode()
	if err != nil {
		return nil, err
	}
	var swept []Difference
	var errs []error
	stray := func(object string, err error) {
		swept, errs = append(swept, Difference{Object: object, Problem: foreign}), append(errs, err)
	}
	owned := map[any]bool{}
	own := func(s plan.Side) {
		for _, a := range s.Addresses {
			owned[a] = true
		}
		for _, n := range s.Neighbours {
			owned[n] = true
		}
		for _, r := range s.Routes {
			owned[r] = true
		}
	}
	own(b.Host)
	if b.Link != nil {
		owned[b.Link.Name] = true
	}
	for _, p := range plans {
		own(p.Host)
		owned[p.Veth.Host] = true
		owned[p.Bandwidth.IFB] = true
		for _, e := range p.Elements {
			owned[e] = true
		}
	}
	var dead []plan.Element
	for e := range elements {
		if !owned[e] {
			dead = append(dead, e)
			stray(e.String(), nil)
		}
	}
	errs = append(errs, d.table.remove(dead))
	for name := range node.links {
		if !owned[name] {
			stray("link "+name, d.markForDeletion(name))
		}
	}
	errs = append(errs, d.Reap(), d.removeResolvers(b.Host.Addresses))
	for r := range node.routes {
		link, onLink := node.links[r.Link]
		_, ours := ours(d.deletion.tag, r)
		switch {
		case owned[r]:
		case ours:
			stray(r.String(), d.removeSubnet(r, b.Host.Addresses))
		case onLink && owned[link.Name]: // others were deleted with their links
			stray(r.String(), d.remove(r, link.Index))
		}
	}
	// Addresses and neighbours of a veth are deleted with it, but those of the bridge stay.
	if bridge, ok := node.links[d.bridge]; ok && owned[bridge.Name] {
		for a := range node.addresses {
			if a.Link == bridge.Name && !owned[a] {
				stray(a.String(), d.remove(a, bridge.Index))
			}
		}
		for n := range node.neighbours {
			if n.Link == bridge.Name && !owned[n] {
				stray(n.String(), d.remove(n, bridge.Index))
			}
		}
	}
	return swept, errors.Join(errs...)
}
