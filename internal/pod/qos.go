package pod

// QOSClassLabel is the label of a sandbox whose pod is of a quality of service class
// that has a cgroup of its own.
const QOSClassLabel = "huskd.github.io/qos-class"

// QOSClasses are the cgroups, below an instance's, of the classes that have one.
var QOSClasses = []string{"burstable", "besteffort"}

// QOSClass returns that of a sandbox with these labels; empty if it has none.
func QOSClass(labels map[string]string) string {
	for _, class := range QOSClasses {
		if labels[QOSClassLabel] == class {
			return class
		}
	}
	return ""
}
