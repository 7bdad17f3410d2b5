// Package simulation lives whole lives of huskd in simulated time: the real
// owners of sandboxes and containers, the real journal and the real allocator of
// addresses, above a machine that a seed makes fail, hang, die and boot again
// between any two things that it is asked to do.
//
// What is promised is checked at every step. Its code is all in tests:
//
//	go test ./internal/simulation                       some seconds
//	go test ./internal/simulation -steps 10000000       until so many steps
//	go test ./internal/simulation -run TestSchedule -seed 42
//
// A schedule that fails is shortened until every part of it is needed.
package simulation
