// Package simulation runs huskd in simulated time: the real owners of sandboxes and containers, the
// real journal and the real address allocator, on a simulated machine. A seed decides where the
// machine fails, hangs, dies and boots again between any two things that it is asked to do.
//
// The promises to clients are checked at every step. All code is in tests:
//
//	go test ./internal/simulation                       for some seconds
//	go test ./internal/simulation -steps 10000000       for that many steps
//	go test ./internal/simulation -run TestSchedule -seed 42
//
// A schedule that fails is shortened until every part of it is needed.
package simulation
