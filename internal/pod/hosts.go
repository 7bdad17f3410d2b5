package pod

import "strings"

// HostsFile returns the content of a pod's /etc/hosts: the names of the loopback and multicast
// addresses, and a line with these names for each address of the pod.
func HostsFile(addresses []string, names ...string) string {
	var out strings.Builder
	out.WriteString("127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n" +
		"fe00::0\tip6-localnet\nff00::0\tip6-mcastprefix\nff02::1\tip6-allnodes\nff02::2\tip6-allrouters\n")
	for _, a := range addresses {
		out.WriteString(a + "\t" + strings.Join(names, "\t") + "\n")
	}
	return out.String()
}
