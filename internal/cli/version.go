package cli

import (
	"cmp"
	"strconv"

	"github.com/spf13/cobra"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/cli/flags"
	"github.com/huskd/husk/internal/cli/render"
	"github.com/huskd/husk/internal/cli/usageerror"
	"github.com/huskd/husk/internal/version"
)

// versions is the output of husk version.
type versions struct {
	Client build          `json:"client"`
	Server *serverVersion `json:"server,omitempty"`
}

type build struct {
	Version   string `json:"version"`
	Commit    string `json:"commit"`
	GoVersion string `json:"goVersion"`
}

type serverVersion struct {
	build
	Runtime string `json:"runtime"`
	Root    string `json:"root"`
	State   string `json:"state"`
	PID     int32  `json:"pid"`
}

func newVersion(a *app) *cobra.Command {
	var clientOnly bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Show the versions of husk and of the running huskd.",
		Example: `husk version
husk version --client
husk version -o json`,
		Args:              usageerror.Takes(0, 0, ""),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.Flags().BoolVar(&clientOnly, "client", false, "print only the version of husk, without asking huskd")
	o := flags.AddOutput(cmd, flags.JSON, flags.YAML)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		v := versions{Client: build{version.Version, version.Commit(), version.Go()}}
		var failure error
		if !clientOnly {
			v.Server, failure = a.askVersion(cmd)
		}
		if err := o.Print(a.out, v, func() *render.Table { return versionTable(v) }); err != nil {
			return err
		}
		return failure
	}
	return cmd
}

func (a *app) askVersion(cmd *cobra.Command) (*serverVersion, error) {
	c, err := a.dial()
	if err != nil {
		return nil, err
	}
	r, err := c.Version(cmd.Context(), &huskv1.VersionRequest{})
	if err != nil {
		return nil, err
	}
	return &serverVersion{build{r.Version, r.Commit, r.GoVersion}, r.Runtime, r.Root, r.State, r.Pid}, nil
}

func versionTable(v versions) *render.Table {
	t := render.NewTable()
	t.Row("husk", v.Client.String())
	if s := v.Server; s != nil {
		t.Row("huskd", s.String())
		t.Row("runtime", cmp.Or(s.Runtime, "none usable: see husk doctor"))
		t.Row("root", s.Root)
		t.Row("state", s.State)
		t.Row("pid", strconv.Itoa(int(s.PID)))
	}
	return t
}

func (b build) String() string {
	s := cmp.Or(b.Version, "unknown")
	if b.Commit != "" {
		s += " " + b.Commit
	}
	return s + " " + b.GoVersion
}
