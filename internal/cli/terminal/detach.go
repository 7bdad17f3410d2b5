package terminal

import "bytes"

// The keys that leave an attached terminal, as docker and podman have them.
const (
	ctrlP = 0x10
	ctrlQ = 0x11
)

// Detach finds ctrl-p ctrl-q in what is typed. A ctrl-p is held back until
// the next key decides what it meant.
type Detach struct{ held bool }

// Filter returns what is to be passed on of typed, and whether the user asked
// to leave; what follows the keys is dropped. The result may share typed's memory.
func (d *Detach) Filter(typed []byte) (pass []byte, leave bool) {
	if !d.held && bytes.IndexByte(typed, ctrlP) < 0 {
		return typed, false
	}
	for _, key := range typed {
		if d.held {
			d.held = false
			if key == ctrlQ {
				return pass, true
			}
			pass = append(pass, ctrlP)
		}
		if key == ctrlP {
			d.held = true
			continue
		}
		pass = append(pass, key)
	}
	return pass, false
}
