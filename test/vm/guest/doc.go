// Package guest contains the tests that package vm runs in a virtual machine. They need its kernel,
// and are built only with the tag vm.
package guest
