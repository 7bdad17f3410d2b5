package cli

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/huskd/husk/internal/cli/usageerror"
)

// newDelete returns kubectl's word for husk rm -f.
func newDelete(a *app) *cobra.Command {
	var files []string
	cmd := &cobra.Command{
		Use:   "delete -f FILE... | NAME...",
		Short: "Stop and remove pods, workloads and objects: husk rm -f by kubectl's name.",
		Example: `husk delete -f shop.yaml
husk delete pod web
husk delete deployment/web`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(files)+len(args) == 0 {
				return usageerror.Misuse(cmd, "husk delete needs -f FILE or a NAME")
			}
			return nil
		},
		ValidArgsFunction: a.completePods,
	}
	cmd.Flags().StringArrayVarP(&files, "filename", "f", nil, "`FILE` of manifests: all that they declare is removed")
	cmd.RunE = a.withClient(a.remove(func(args []string) []string { return slices.Concat(files, kindNames(args)) }, func() bool { return true }))
	return cmd
}

// kindNames turns "pod web db" into web and db, and "deployment web" into deployment/web.
func kindNames(args []string) []string {
	if len(args) < 2 || strings.Contains(args[0], "/") {
		return args
	}
	if slices.Contains(podWords, args[0]) {
		return args[1:]
	}
	kind := strings.ToLower(args[0])
	if !slices.Contains(objectKinds, strings.TrimSuffix(kind, "s")) && !slices.Contains(objectKinds, kind) {
		return args
	}
	var names []string
	for _, name := range args[1:] {
		names = append(names, kind+"/"+name)
	}
	return names
}

// objectKinds are the words for kinds that kubectl users put before a name.
var objectKinds = []string{"deployment", "deploy", "replicaset", "rs", "statefulset", "sts", "daemonset", "ds", "job", "cronjob", "cj",
	"configmap", "cm", "secret", "persistentvolumeclaim", "pvc", "persistentvolume", "pv", "networkpolicy", "netpol", "service", "svc"}
