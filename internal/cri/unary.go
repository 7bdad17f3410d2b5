package cri

import (
	"context"
	"fmt"
	"log/slog"
	"strings"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc"
)

// Unary bounds and logs the errors of CRI's calls. Other services pass by.
func Unary(log *slog.Logger) grpc.UnaryServerInterceptor {
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
		if errdefs.IsNotFound(err) { // clients ask to see whether it is there
			level = slog.LevelDebug
		}
		log.Log(ctx, level, "cri: a call failed", "call", method, "error", err)
		return answer, err
	}
}

// line is an error as one line, whatever it quotes.
type line struct{ error }

func (l line) Unwrap() error { return l.error }

// A word of a message that is longer than maxWord is what somebody sent, of which
// the beginning is enough to know it by.
const (
	maxWord  = 300
	enough   = 80
	maxWords = 500
)

func (l line) Error() string {
	words := strings.Fields(l.error.Error())
	for i, w := range words {
		if len(w) > maxWord {
			words[i] = fmt.Sprintf("%s…(%d characters)", strings.ToValidUTF8(w[:enough], ""), len(w))
		}
	}
	if len(words) > maxWords {
		words = append(words[:maxWords], "…")
	}
	return strings.Join(words, " ")
}
