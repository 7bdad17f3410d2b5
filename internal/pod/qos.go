package pod

// QOSClassLabel is the sandbox label for the QoS class of its pod, if the class has a cgroup.
const QOSClassLabel = "huskd.github.io/qos-class"

// QOSClasses are the QoS classes that have a cgroup. They are also the names of these cgroups,
// which are below the instance's.
var QOSClasses = []string{"burstable", "besteffort"}

// QOSClass returns the QoS class in the labels of a sandbox, or "" if its class has no cgroup.
func QOSClass(labels map[string]string) string {
	for _, class := range QOSClasses {
		if labels[QOSClassLabel] == class {
			return class
		}
	}
	return ""
}
