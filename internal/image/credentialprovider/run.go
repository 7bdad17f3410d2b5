package credentialprovider

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	credentialproviderv1 "k8s.io/kubelet/pkg/apis/credentialprovider/v1"
)

const (
	// runTime is how long a provider may run, as with the kubelet.
	runTime = time.Minute
	// drainTime is how long the output of a provider is read after its end, if a child holds it open.
	drainTime = 100 * time.Millisecond
	// maxOutput bounds stdout and stderr in bytes.
	maxOutput    = 1 << 20
	maxComplaint = 500
)

var errTooMuch = fmt.Errorf("it wrote more than %d bytes and was killed", maxOutput)

// run runs the program with a request on its standard input, and kills what is left of its process
// group. Errors don't contain its standard output, which may be secret.
func (p *provider) run(ctx context.Context, repository string) (*credentialproviderv1.CredentialProviderResponse, error) {
	request, err := json.Marshal(credentialproviderv1.CredentialProviderRequest{
		TypeMeta: metav1.TypeMeta{APIVersion: p.APIVersion, Kind: "CredentialProviderRequest"}, Image: repository,
	})
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithTimeoutCause(ctx, p.limit, fmt.Errorf("it didn't answer for %v and was killed", p.limit))
	defer stop()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stdout, stderr := bounded{full: func() { cancel(errTooMuch) }}, bounded{full: func() { cancel(errTooMuch) }}
	cmd := exec.CommandContext(ctx, p.path, p.Args...)
	cmd.Env = os.Environ()
	for _, e := range p.Env {
		cmd.Env = append(cmd.Env, e.Name+"="+e.Value)
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(request), &stdout, &stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = drainTime
	err = cmd.Run()
	if cmd.Process != nil {
		// The kernel allocates PIDs cyclically, so the group's ID isn't reused yet.
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	}
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	if err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		return nil, fmt.Errorf("%w: %.*q", err, maxComplaint, strings.TrimSpace(stderr.kept.String()))
	}
	response := &credentialproviderv1.CredentialProviderResponse{}
	if err := json.Unmarshal(stdout.kept.Bytes(), response); err != nil {
		return nil, errors.New("its output is not a CredentialProviderResponse in JSON")
	}
	if response.Kind != "CredentialProviderResponse" || response.APIVersion != p.APIVersion {
		return nil, fmt.Errorf("it answered with a %.40q of %.60q instead of a CredentialProviderResponse of %s", response.Kind, response.APIVersion, p.APIVersion)
	}
	return response, nil
}

// bounded is a buffer that calls full instead of keeping more than maxOutput. The buffer is no
// embedded one, whose ReadFrom io.Copy would call instead of Write.
type bounded struct {
	kept bytes.Buffer
	full func()
}

func (b *bounded) Write(data []byte) (int, error) {
	if b.kept.Len()+len(data) > maxOutput {
		b.full()
		return 0, errTooMuch
	}
	return b.kept.Write(data)
}
