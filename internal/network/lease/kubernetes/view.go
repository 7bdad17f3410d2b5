package kubernetes

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/huskd/husk/internal/network/lease/flannel"
	"github.com/huskd/husk/internal/network/peer"
)

// maxRecord is the size of the largest annotation that is read. Without blocks, a record has 500
// bytes at most, as long as its writer means well.
const maxRecord = 16 << 10

// entry is what is kept of a Node.
type entry struct {
	// peer is the node's record. Its name and blocks are those of the Node: what the record says of
	// them, which only the node itself has written, is ignored.
	peer peer.Node
	// silent means that the node has no record.
	silent bool
	// flannel is the backend of a node of flannel.
	flannel flannel.Backend
	// note says what about the Node can't be used.
	note string
	// annotations are those that this node writes to its own Node; nil for the others.
	annotations map[string]string
}

// Equal reports whether two entries are the same.
func (e *entry) Equal(o *entry) bool {
	return e.silent == o.silent && e.flannel == o.flannel && e.note == o.note && e.peer.Equal(o.peer) && maps.Equal(e.annotations, o.annotations)
}

// keep returns the entry of a Node.
func (r *Registry) keep(n *corev1.Node) *entry {
	e := &entry{peer: peer.Node{Name: n.Name}}
	if n.Name == r.Node {
		e.annotations = map[string]string{}
		for key, text := range n.Annotations {
			if key == Annotation || strings.HasPrefix(key, flannel.AnnotationPrefix) {
				e.annotations[key] = text
			}
		}
	}
	blocks, err := podCIDRs(n)
	if err == nil && n.Name != r.Node {
		err = e.read(blocks, n.Annotations)
	}
	e.peer.Name, e.peer.Blocks = n.Name, blocks
	if err == nil && !e.silent && n.Name != r.Node {
		err = e.peer.Check()
	}
	if err != nil {
		e.note = fmt.Sprintf("node %s: %.300v", n.Name, err)
	}
	return e
}

// read reads the record in the annotations of a Node, if there is one.
func (e *entry) read(blocks []netip.Prefix, annotations map[string]string) (err error) {
	if text, ok := annotations[Annotation]; ok {
		if len(text) > maxRecord {
			return fmt.Errorf("annotation %s of %d bytes: at most %d", Annotation, len(text), maxRecord)
		}
		if err := json.Unmarshal([]byte(text), &e.peer); err != nil {
			return fmt.Errorf("annotation %s: %w", Annotation, err)
		}
		return nil
	}
	backend, ok := flannel.BackendOf(annotations)
	if !ok || len(blocks) == 0 {
		e.silent = true
		return nil
	}
	e.peer, err = flannel.Assume(backend, blocks).FromAnnotations(annotations)
	if err == nil {
		e.flannel = backend
	}
	return err
}

func podCIDRs(n *corev1.Node) (blocks []netip.Prefix, err error) {
	for _, cidr := range n.Spec.PodCIDRs {
		b, err := netip.ParsePrefix(cidr)
		if err != nil {
			return nil, fmt.Errorf("pod CIDR %.50q is not a subnet", cidr)
		}
		blocks = append(blocks, b)
	}
	check := peer.Node{Version: peer.Version, Name: "x", Blocks: blocks}
	if err := check.Check(); err != nil {
		return nil, fmt.Errorf("pod CIDRs %v: %s", blocks, strings.TrimPrefix(err.Error(), "record of node x: "))
	}
	return blocks, nil
}

// maxNotes is how many notes a view has, apart from the one about the others.
const maxNotes = 20

// needsController says where podCIDRs come from.
const needsController = "kube-controller-manager gives them to nodes with --allocate-node-cidrs and --cluster-cidr"

// view returns what a node has to know of the Nodes, and the backend of those of flannel.
func view(self string, entries []*entry) (v peer.View, backend flannel.Backend) {
	slices.SortFunc(entries, func(a, b *entry) int { return strings.Compare(a.peer.Name, b.peer.Name) })
	v.Peers = make([]*peer.Node, 0, len(entries))
	var silent []string
	registered := false
	for _, e := range entries {
		if e.note != "" {
			v.Notes = append(v.Notes, e.note)
		}
		switch {
		case e.peer.Name == self:
			registered = true
			v.Blocks = slices.Clone(e.peer.Blocks)
			if len(v.Blocks) == 0 && e.note == "" {
				v.Notes = append(v.Notes, fmt.Sprintf("node %s has no podCIDRs: %s", self, needsController))
			}
		case e.note != "":
		case !e.silent:
			v.Peers = append(v.Peers, &e.peer)
			backend = cmp.Or(backend, e.flannel)
		case len(e.peer.Blocks) > 0:
			silent = append(silent, e.peer.Name)
		}
	}
	if !registered {
		v.Notes = append(v.Notes, fmt.Sprintf("node %s isn't registered with the API server", self))
	}
	if more := len(v.Notes) - maxNotes; more > 0 {
		v.Notes = append(v.Notes[:maxNotes], fmt.Sprintf("%d more notes like these", more))
	}
	if len(silent) > 0 {
		v.Notes = append(v.Notes, silence(silent))
	}
	return v, backend
}

// silence returns the note about nodes without a record.
func silence(names []string) string {
	const shown = 3
	text := strings.Join(names[:min(shown, len(names))], ", ")
	if more := len(names) - shown; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return fmt.Sprintf("pods of these nodes aren't reached, as the nodes have no annotation %s, and are none of flannel's: %s", Annotation, text)
}
