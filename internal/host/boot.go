package host

import (
	"fmt"
	"os"
	"strings"
)

// BootID returns the kernel's boot ID, which is different after each boot.
func BootID() (string, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("boot ID: %w", err)
	}
	return strings.TrimSpace(string(id)), nil
}
