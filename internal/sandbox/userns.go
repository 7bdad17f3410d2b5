package sandbox

import (
	"math"
	"syscall"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/userns"
)

// userNamespace returns the options of the sandbox's user namespace, or nil if it uses the host's.
func userNamespace(config *runtimeapi.PodSandboxConfig) *runtimeapi.UserNamespace {
	user := config.GetLinux().GetSecurityContext().GetNamespaceOptions().GetUsernsOptions()
	if user == nil || user.GetMode() == runtimeapi.NamespaceMode_NODE {
		return nil
	}
	return user
}

// idsOf returns the ID mapping that the sandbox's files and namespaces belong to: all IDs of the
// node if it has no user namespace.
func idsOf(config *runtimeapi.PodSandboxConfig) userns.Mapping {
	user := userNamespace(config)
	if user == nil {
		return userns.Whole(0, math.MaxInt32)
	}
	return userns.Mapping{UIDs: idMap(user.GetUids()), GIDs: idMap(user.GetGids())}
}

func idMap(cri []*runtimeapi.IDMapping) (ids []syscall.SysProcIDMap) {
	for _, m := range cri {
		ids = append(ids, syscall.SysProcIDMap{ContainerID: int(m.GetContainerId()), HostID: int(m.GetHostId()), Size: int(m.GetLength())})
	}
	return ids
}

// leastIDs is how many IDs, from 0 on, a user namespace must have: as many as POSIX allows
// processes and image files. The infra process has the last one.
const leastIDs = 1 << 16

func checkUserNamespace(config *runtimeapi.PodSandboxConfig) error {
	user := userNamespace(config)
	if user == nil {
		return nil
	}
	o := config.GetLinux().GetSecurityContext().GetNamespaceOptions()
	const node = runtimeapi.NamespaceMode_NODE
	if o.GetNetwork() == node || o.GetIpc() == node || o.GetPid() == node {
		return bad("a user namespace can't be combined with the node's network, IPC or PID namespace")
	}
	for kind, ids := range map[string][]*runtimeapi.IDMapping{"uids": user.GetUids(), "gids": user.GetGids()} {
		if len(ids) != 1 {
			return bad("userns_options.%s has %d mappings: want one", kind, len(ids))
		}
		m := ids[0]
		switch end := uint64(m.GetHostId()) + uint64(m.GetLength()); {
		case m.GetContainerId() != 0 || m.GetLength() < leastIDs:
			return bad("userns_options.%s maps %d IDs from %d on: want at least %d from 0 on", kind, m.GetLength(), m.GetContainerId(), leastIDs)
		case m.GetHostId() == 0:
			return bad("userns_options.%s maps 0 to the node's root", kind)
		case end > math.MaxUint32: // the last number is not an ID
			return bad("userns_options.%s: the node has no IDs up to %d", kind, end-1)
		}
	}
	return nil
}
