package registration

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"time"

	utilversion "k8s.io/apimachinery/pkg/util/version"

	"github.com/huskd/husk/internal/version"
)

// implemented is the version of Kubernetes whose API is used here.
const implemented = "v1.37.2"

// serverVersion returns the version of the server, which may be upgraded while huskd runs. It is
// empty if the server doesn't tell.
func (n *Node) serverVersion(ctx context.Context) string {
	if time.Since(n.asked) >= reportTime {
		v, err := n.Client.Version(ctx)
		if err != nil {
			return n.version
		}
		n.version, n.asked = v, time.Now()
	}
	return n.version
}

// fitVersion returns the version that the node reports as its kubelet's. Controllers and kubeadm
// check by it whether a node is too old for a feature, and no node may be newer than its server. So
// it is the server's version if that is the lower one. Husk's own version follows as build
// metadata.
func fitVersion(server string) string {
	fits := utilversion.MustParseSemantic(implemented)
	if v, err := utilversion.ParseGeneric(server); err == nil && v.LessThan(fits) {
		fits = utilversion.MustParseSemantic(fmt.Sprintf("%d.%d.%d", v.Major(), v.Minor(), v.Patch()))
	}
	build := strings.Trim(notInBuild.ReplaceAllString(version.Version, "-"), "-.")
	return fmt.Sprintf("v%d.%d.%d+husk-%s", fits.Major(), fits.Minor(), fits.Patch(), build)
}

// notInBuild matches what semver doesn't allow in build metadata.
var notInBuild = regexp.MustCompile(`[^0-9A-Za-z.-]+`)
