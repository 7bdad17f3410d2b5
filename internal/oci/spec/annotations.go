package spec

// The annotations by which containerd's CRI plugin tells a runtime what a
// container is. Kata and gVisor rely on them.
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
	meta := b.Sandbox.GetMetadata()
	b.spec.Annotations = map[string]string{
		annotationType:        kind,
		annotationSandboxID:   b.SandboxID,
		annotationSandboxName: meta.GetName(),
		annotationNamespace:   meta.GetNamespace(),
		annotationSandboxUID:  meta.GetUid(),
	}
}
