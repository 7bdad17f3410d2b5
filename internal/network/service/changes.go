package service

import "context"

// Changes are what a Source has learned since it last said so. A nil value removes the object of
// that key. What a value refers to must not change afterwards.
type Changes struct {
	Services map[string]*Service // by Key
	Slices   map[string]*Slice   // by Key
	Node     *Node               // nil if it is as before
}

// Source is where Services and their endpoints come from: an API server or files.
type Source interface {
	// Run calls update with all changes until ctx ends. The first call brings everything that there
	// is. Until then, and while the source can't be reached, waiting reports why, or nil once it can.
	// update doesn't block for long.
	Run(ctx context.Context, update func(Changes), waiting func(error)) error
}
