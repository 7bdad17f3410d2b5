// Package guest is the tests that package vm runs in a virtual machine. They
// need its kernel and are built with the tag vm only.
package guest
