// Package guest runs in the virtual machine of package install: as a unit of its systemd, at each
// of its boots. It is built with the tag vm.
package guest
