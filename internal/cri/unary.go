package cri

import (
	"context"
	"fmt"
	"log/slog"
	"strings"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/container"
	"github.com/huskd/husk/internal/pod"
	"github.com/huskd/husk/internal/sandbox"
)

// Unary returns an interceptor that logs the errors of CRI's methods and bounds their text. It
// ignores other services.
func Unary(log *slog.Logger, sandboxes *sandbox.Service, containers *container.Service) grpc.UnaryServerInterceptor {
	v := &view{Config: Config{Sandboxes: sandboxes, Containers: containers}}
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		method, ours := strings.CutPrefix(info.FullMethod, "/runtime.v1.")
		if !ours {
			return next(ctx, req)
		}
		answer, err := next(ctx, req)
		if err == nil {
			return answer, nil
		}
		err = line{err}
		level := slog.LevelInfo
		if errdefs.IsNotFound(err) { // clients call to see whether it exists
			level = slog.LevelDebug
		}
		about := append([]any{"call", method}, v.subject(req, err)...)
		log.Log(ctx, level, "cri: a call failed", append(about, "error", err)...)
		return answer, err
	}
}

// subject returns the log attributes of what a call was about, as far as they are known: pod,
// sandbox, container and stage.
func (v *view) subject(req any, err error) (about []any) {
	where := pod.LogAttrs(err)
	ofSandbox := func(id string) {
		if st, err := v.sandbox(id); err == nil {
			about = append(about, "pod", st.Ref())
			if where == nil {
				about = append(about, "sandbox", pod.Short(st.ID))
			}
		}
	}
	switch req := req.(type) {
	case *runtimeapi.RunPodSandboxRequest:
		m := req.GetConfig().GetMetadata()
		about = append(about, "pod", fmt.Sprintf("%.*s/%.*s", maxQuoted, m.GetNamespace(), maxQuoted, m.GetName()))
	case interface{ GetPodSandboxId() string }:
		ofSandbox(req.GetPodSandboxId())
	case interface{ GetContainerId() string }:
		if st, err := v.container(req.GetContainerId()); err == nil {
			ofSandbox(st.Sandbox)
			about = append(about, "name", st.Name())
		}
	}
	return append(about, where...)
}

// line is an error whose text is one line of bounded length, whatever it quotes.
type line struct{ error }

func (l line) Unwrap() error { return l.error }

// Words longer than maxWord come from a request: maxQuoted bytes of one are enough to recognize it.
const (
	maxWord   = 300
	maxQuoted = 80
	maxWords  = 500
)

func (l line) Error() string {
	words := strings.Fields(l.error.Error())
	for i, w := range words {
		if len(w) > maxWord {
			words[i] = fmt.Sprintf("%s…(%d characters)", strings.ToValidUTF8(w[:maxQuoted], ""), len(w))
		}
	}
	if len(words) > maxWords {
		words = append(words[:maxWords], "…")
	}
	return strings.Join(words, " ")
}
