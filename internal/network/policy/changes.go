package policy

import (
	"context"

	"k8s.io/apimachinery/pkg/labels"
)

// Changes are what a Source has learned since it last said so. A nil value removes the object of
// that key.
type Changes struct {
	Policies   map[string]*Policy    // by Name
	Namespaces map[string]labels.Set // by name
	Pods       map[string]*Pod       // by Key
	Nodes      map[string]*Node      // by Name
	// Incomplete means that there are policies which the source can't bring yet, as it still reads
	// what they select. Pods that start must wait for the next update.
	Incomplete bool
}

// Source is where policies and what they select come from: an API server or files.
type Source interface {
	// Run calls update with all changes until ctx ends. The first call brings everything that there
	// is. Until then, and while the source can't be reached, waiting reports why, or nil once it can.
	// update doesn't block for long.
	Run(ctx context.Context, update func(Changes), waiting func(error)) error
}
