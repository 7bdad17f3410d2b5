package apiserver

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"

	"github.com/huskd/husk/internal/manifest"
)

// fingerprint returns a hash of an object.
func fingerprint(o manifest.Object) string {
	h := sha256.New()
	for _, key := range slices.Sorted(maps.Keys(o)) {
		fmt.Fprintf(h, "%q%q", key, o[key])
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}
