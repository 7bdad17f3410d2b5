package spec

import runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

// Annotations by which containerd's CRI plugin describes a container. Kata and gVisor rely on them.
const (
	annotationType        = "io.kubernetes.cri.container-type"
	annotationSandboxID   = "io.kubernetes.cri.sandbox-id"
	annotationSandboxName = "io.kubernetes.cri.sandbox-name"
	annotationNamespace   = "io.kubernetes.cri.sandbox-namespace"
	annotationSandboxUID  = "io.kubernetes.cri.sandbox-uid"
	annotationName        = "io.kubernetes.cri.container-name"
	annotationImage       = "io.kubernetes.cri.image-name"
	annotationLogs        = "io.kubernetes.cri.sandbox-log-directory"
)

func (b *builder) annotations() {
	b.annotateSandbox("container")
	b.spec.Annotations[annotationName] = b.name
	b.spec.Annotations[annotationImage] = b.ImageName
}

func (b *builder) annotateSandbox(kind string) {
	b.spec.Annotations = SandboxAnnotations(b.SandboxID, b.Sandbox)
	b.spec.Annotations[annotationType] = kind
}

// SandboxAnnotations returns the annotations of a sandbox.
func SandboxAnnotations(id string, config *runtimeapi.PodSandboxConfig) map[string]string {
	meta := config.GetMetadata()
	return map[string]string{
		annotationType:        "sandbox",
		annotationSandboxID:   id,
		annotationSandboxName: meta.GetName(),
		annotationNamespace:   meta.GetNamespace(),
		annotationSandboxUID:  meta.GetUid(),
	}
}
