package imagecmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/cli/client"
	"github.com/huskd/husk/internal/cli/input"
	"github.com/huskd/husk/internal/cli/render"
	"github.com/huskd/husk/internal/cli/terminal"
	"github.com/huskd/husk/internal/cli/usageerror"
)

// Logins returns the commands husk login and husk logout.
func Logins(app App) []*cobra.Command {
	t := &tool{app}
	return []*cobra.Command{t.login(), t.logout()}
}

// dockerHub is the registry of names without one, as for docker.
const dockerHub = "docker.io"

func (t *tool) login() *cobra.Command {
	req := &huskv1.LoginRequest{}
	var fromStdin bool
	cmd := &cobra.Command{
		Use:   "login [REGISTRY] -u NAME",
		Short: "Log this node in at a registry.",
		Long: `Log this node in at a registry.

It is docker.io by default. huskd checks the login and keeps it, readable by
root only, for all pulls and pushes that bring none: those of pods without
imagePullSecrets, too.`,
		Example: `husk login quay.io -u me
husk login registry.local:5000 -u me --password-stdin < secret`,
		Args:              usageerror.Takes(0, 1, "the host of a REGISTRY"),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	addLogin(cmd, &req.Username, &fromStdin)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		req.Registry = append(args, dockerHub)[0]
		if req.Username == "" {
			return usageerror.Misuse(cmd, "husk login needs the user's name: --username NAME")
		}
		var err error
		if req.Password, err = t.password(cmd, req.Username, req.Registry, fromStdin); err != nil {
			return err
		}
		return t.WithClient(func(ctx context.Context, c *client.Client, _ []string) error {
			r, err := c.Login(ctx, req)
			if err == nil {
				_, _ = fmt.Fprintf(t.Out, "logged in at %s as %s\n", render.Clean(r.Registry), render.Clean(req.Username))
			}
			return err
		})(cmd, args)
	}
	return cmd
}

func (t *tool) logout() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "logout [REGISTRY]",
		Short: "Forget this node's login at a registry.",
		Example: `husk logout quay.io
husk logout`,
		Args:              usageerror.Takes(0, 1, "the host of a REGISTRY"),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.RunE = t.WithClient(func(ctx context.Context, c *client.Client, args []string) error {
		r, err := c.Logout(ctx, &huskv1.LogoutRequest{Registry: append(args, dockerHub)[0]})
		if err == nil {
			_, _ = fmt.Fprintf(t.Out, "logged out of %s\n", render.Clean(r.Registry))
		}
		return err
	})
	return cmd
}

// addLogin adds the flags of a login at a registry.
func addLogin(cmd *cobra.Command, username *string, fromStdin *bool) {
	cmd.Flags().StringVarP(username, "username", "u", "", "user `NAME` at the registry; husk prompts for the password")
	cmd.Flags().BoolVar(fromStdin, "password-stdin", false, "read the password from standard input")
}

// password reads the password of a user, if there is one, from standard input or the terminal.
func (t *tool) password(cmd *cobra.Command, username, at string, fromStdin bool) (string, error) {
	switch {
	case fromStdin && username == "":
		return "", usageerror.Misuse(cmd, "--password-stdin needs --username")
	case fromStdin:
		return readPassword(cmd.Context(), t.In)
	case username != "" && !terminal.Is(t.In):
		return "", usageerror.Misuse(cmd, "--username needs a password: pipe it in and add --password-stdin")
	case username != "":
		prompt := fmt.Sprintf("password of %s for %s: ", render.Clean(username), render.Clean(at))
		return terminal.Password(cmd.Context(), t.In, t.Errs, prompt)
	}
	return "", nil
}

// passwordMax is far above the length of any password or token: anything longer is the wrong file.
const passwordMax = 64 << 10

// readPassword returns the content of r without its final newline.
func readPassword(ctx context.Context, r io.Reader) (string, error) {
	data, err := input.ReadAll(ctx, io.LimitReader(r, passwordMax+1))
	password := strings.TrimRight(string(data), "\r\n")
	switch {
	case err != nil:
		return "", fmt.Errorf("can't read the password from standard input: %w", err)
	case password == "":
		return "", errors.New("standard input contains no password")
	case len(data) > passwordMax:
		return "", errors.New("standard input is too long for a password")
	}
	return password, nil
}
