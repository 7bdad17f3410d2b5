package systemcmd

import (
	"fmt"
	"io"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/huskd/husk/internal/cli/usageerror"
	"github.com/huskd/husk/internal/config"
)

func (t *tool) kubeletConfig() *cobra.Command {
	var dropIns string
	cmd := &cobra.Command{
		Use:   "kubelet-config FILE",
		Short: "Translate the configuration of a kubelet into huskd's.",
		Long: `Translate the configuration of a kubelet into huskd's. FILE is a
KubeletConfiguration of kubelet.config.k8s.io/v1beta1, and what is printed could
be huskd.toml. Below the keys, comments name the fields that huskd can't follow,
and why.

huskd does the same by itself if its key kubelet-config names the file.`,
		Example: `husk kubelet-config /var/lib/kubelet/config.yaml
husk kubelet-config /etc/kubernetes/kubelet/config.json --config-dir /etc/kubernetes/kubelet/config.json.d`,
		Args: usageerror.Takes(1, 1, "the file with the configuration"),
		RunE: func(_ *cobra.Command, args []string) error {
			flags := []string{"--config=/dev/null"}
			for flag, path := range map[string]string{"kubelet-config": args[0], "kubelet-config-dir": dropIns} {
				if path == "" {
					continue
				}
				absolute, err := filepath.Abs(path)
				if err != nil {
					return err
				}
				flags = append(flags, "--"+flag+"="+absolute)
			}
			c, err := config.Parse(flags, io.Discard)
			if c.Translation != nil {
				fmt.Fprint(t.Out, c.Translation.TOML())
			}
			return err
		},
	}
	cmd.Flags().StringVar(&dropIns, "config-dir", "", "directory with drop-ins, the files *.conf, as for a kubelet")
	return cmd
}
