// Package fileapi serves the part of huskd's own API that copies files of containers.
package fileapi

import (
	"fmt"
	"path"
	"strings"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/agent"
	"github.com/huskd/husk/internal/api/podref"
	"github.com/huskd/husk/internal/chunkstream"
	"github.com/huskd/husk/internal/filecopy"
)

// Server serves the API.
type Server struct {
	huskv1.UnimplementedFilesServer
	Agent *agent.Agent
	// Hidden reports whether a runtime handler keeps the files of containers where the host doesn't
	// see them.
	Hidden func(handler string) bool
}

// CopyFrom sends a file or directory of a container.
func (s *Server) CopyFrom(req *huskv1.CopyFromRequest, stream grpc.ServerStreamingServer[huskv1.CopyFromResponse]) error {
	tree, subject, err := s.open(req.Name, req.Container)
	if err != nil {
		return err
	}
	defer tree.Close()
	out := chunkstream.NewWriter(func(chunk []byte) error { return stream.Send(&huskv1.CopyFromResponse{Chunk: chunk}) })
	skipped, err := tree.Read(stream.Context(), absolute(req.Path), out)
	if err == nil {
		err = out.Flush()
	}
	if err != nil {
		return fmt.Errorf("%s: %w", subject, err)
	}
	return stream.Send(&huskv1.CopyFromResponse{Skipped: skipped})
}

// CopyTo makes files in a container.
func (s *Server) CopyTo(stream grpc.ClientStreamingServer[huskv1.CopyToRequest, huskv1.CopyToResponse]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	if strings.ContainsAny(first.Base, "/\x00") || first.Base == "." || first.Base == ".." {
		return errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("%q is not the name of a file", first.Base))
	}
	tree, subject, err := s.open(first.Name, first.Container)
	if err != nil {
		return err
	}
	defer tree.Close()
	source := filecopy.Source{Base: first.Base, Contents: first.Contents || first.Base == ""}
	from := chunkstream.NewReader(first.Chunk, func() ([]byte, error) {
		m, err := stream.Recv()
		return m.GetChunk(), err
	})
	if err := tree.Write(from, absolute(first.Path), source); err != nil {
		return fmt.Errorf("%s: %w", subject, err)
	}
	return stream.SendAndClose(&huskv1.CopyToResponse{})
}

// open returns the files of a running container, and its name for errors.
func (s *Server) open(name, containerName string) (*filecopy.Tree, string, error) {
	p, c, err := podref.Container(s.Agent, name, containerName)
	if err != nil {
		return nil, "", err
	}
	run, err := podref.Live(p, c)
	if err != nil {
		return nil, "", err
	}
	if sb, ok := p.Sandbox(); ok && s.Hidden(sb.Handler) {
		return nil, "", errdefs.ErrFailedPrecondition.WithMessage(fmt.Sprintf(
			"the runtime handler %s of pod %s hides the files of its containers: use tar in the container, as in husk exec -i %s -- tar -c PATH", sb.Handler, p.Name(), p.Name()))
	}
	subject := fmt.Sprintf("container %s of pod %s", c, p.Name())
	tree, err := filecopy.Container(run.Process)
	if err != nil {
		return nil, "", fmt.Errorf("%s: %w", subject, err)
	}
	return tree, subject, nil
}

// absolute makes a path absolute, and keeps how it ends.
func absolute(name string) string {
	if path.IsAbs(name) {
		return name
	}
	return "/" + name
}
