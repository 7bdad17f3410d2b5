package remedy_test

import (
	"strings"
	"testing"

	"github.com/huskd/husk/internal/manifest/remedy"
)

// TestNoRemedyIsOfTheOtherSource: whoever declares a pod in a cluster has no node on which to run
// husk, and whoever declares a manifest has no other nodes.
func TestNoRemedyIsOfTheOtherSource(t *testing.T) {
	t.Parallel()
	for from, foreign := range map[remedy.Source][]string{
		remedy.Cluster:  {"husk run", "manifest", "without a cluster", "persistentVolumeClaim", "husk debug"},
		remedy.Manifest: {remedy.NodeLabel, "create it"},
	} {
		texts := []string{from.Object(), from.Image("imagePullPolicy"), from.Field("spec.volumes[].unknown")}
		for _, pattern := range remedy.Fields() {
			texts = append(texts, from.Field(pattern))
		}
		if from == remedy.Cluster {
			texts = append(texts, remedy.Claim())
		}
		for _, text := range texts {
			for _, f := range foreign {
				if strings.Contains(text, f) {
					t.Errorf("source %d: %q has %q", from, text, f)
				}
			}
		}
	}
}
