package host

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"strings"
)

// MachineHash returns what identifies the installation of the operating system, and machines that
// are copies of one image have in common. It is a hash of the machine ID, which machine-id(5) asks
// not to tell others. It is empty if there is none.
func MachineHash() string {
	for _, path := range []string{"/etc/machine-id", "/var/lib/dbus/machine-id"} {
		id, err := os.ReadFile(path)
		if text := strings.TrimSpace(string(id)); err == nil && text != "" && text != "uninitialized" {
			sum := sha256.Sum256([]byte("husk " + text))
			return hex.EncodeToString(sum[:8])
		}
	}
	return ""
}

// BootID returns the kernel's boot ID, which is different after each boot.
func BootID() (string, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("boot ID: %w", err)
	}
	return strings.TrimSpace(string(id)), nil
}
