package declared

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/huskd/husk/internal/network/policy"
)

// Known is what was last in force.
type Known struct {
	Policies   map[string]*policy.Policy
	Namespaces map[string]labels.Set
	// Same reports whether two policies say the same.
	Same func(a, b *policy.Policy) bool
	// Err is why it can't be read.
	Err error
}

// kept is what was last in force, for as long as an origin is in doubt about what it declares.
type kept struct {
	Known
	first map[string]Objects // what the origins in doubt have declared at first
}

// Remember makes the source ask known for what was last in force, if an origin is in doubt about
// what it declares. It is called before Run.
func (s *Source) Remember(known func() Known) { s.known = known }

// keep puts into out what was last in force and an origin in doubt lacks, or has differently
// without having been told so since. It returns what that is, as an error for users, and why it
// can't be known. The caller holds mu.
func (s *Source) keep(out *policy.Changes) (keeping, unknown error) {
	doubts, unsure, sure := s.doubts()
	if len(doubts) == 0 || s.known == nil {
		s.kept = nil
		return nil, nil
	}
	why := strings.Join(doubts, ", ")
	if s.kept == nil {
		k := s.known()
		if k.Err != nil {
			return nil, fmt.Errorf("policies: %s, and what was last in force can't be read either: %w", why, k.Err)
		}
		s.kept = &kept{Known{maps.Clone(k.Policies), maps.Clone(k.Namespaces), k.Same, nil}, unsure}
		s.kept.forget(unsure, sure)
	}
	var names []string
	for name, p := range s.kept.Policies {
		if has := out.Policies[name]; has == nil || !s.kept.Same(has, p) {
			out.Policies[name] = p
			names = append(names, name)
		}
	}
	for name, set := range s.kept.Namespaces {
		implied := labels.Set{corev1.LabelMetadataName: name}
		has := out.Namespaces[name]
		if has == nil {
			has = implied
		}
		if !reflect.DeepEqual(has, set) {
			out.Namespaces[name] = set
			names = append(names, "Namespace "+name)
		}
	}
	if len(names) == 0 {
		return nil, nil
	}
	slices.Sort(names)
	return errors.New("policies: " + strings.Join(names, ", ") + " as last in force, because " + why + ": husk run their manifests again, or look at docs/troubleshooting.md for how to give them up"), nil
}

// doubts returns why origins are in doubt, what they declare, and what the others do. The caller
// holds mu.
func (s *Source) doubts() (doubts []string, unsure map[string]Objects, sure Objects) {
	unsure, sure = map[string]Objects{}, Objects{Policies: map[string]*policy.Policy{}, Namespaces: map[string]map[string]string{}}
	for _, origin := range s.origins {
		d := s.declared[origin]
		if len(d.Doubts) > 0 {
			doubts = append(doubts, d.Doubts...)
			unsure[origin] = d
			continue
		}
		maps.Copy(sure.Policies, d.Policies)
		maps.Copy(sure.Namespaces, d.Namespaces)
	}
	return doubts, unsure, sure
}

// forget drops what an origin is sure of, or was told since.
func (k *kept) forget(now map[string]Objects, sure Objects) {
	maps.DeleteFunc(k.Policies, func(name string, _ *policy.Policy) bool {
		told := sure.Policies[name] != nil
		for origin, first := range k.first {
			told = told || !reflect.DeepEqual(first.Policies[name], now[origin].Policies[name])
		}
		return told
	})
	maps.DeleteFunc(k.Namespaces, func(name string, _ labels.Set) bool {
		told := sure.Namespaces[name] != nil
		for origin, first := range k.first {
			told = told || !reflect.DeepEqual(first.Namespaces[name], now[origin].Namespaces[name])
		}
		return told
	})
}
