package plugin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/containerd/errdefs"
	"github.com/containernetworking/cni/pkg/types"
)

// Codes of our own: the specification leaves those from 100 on to plugins.
const (
	// ErrTaken: an address, a port or a link is somebody else's.
	ErrTaken uint = 100
	// ErrDiffers: CHECK found the attachment changed.
	ErrDiffers uint = 101
)

func fault(code uint, format string, args ...any) error {
	return types.NewError(code, fmt.Sprintf(format, args...), "")
}

// errorOf returns err as the specification's. Of one that names itself so, the
// code stays.
func errorOf(command string, err error) *types.Error {
	var known *types.Error
	if errors.As(err, &known) {
		return known
	}
	return types.NewError(codeOf(command, err), err.Error(), "")
}

func codeOf(command string, err error) uint {
	if command == Status {
		// Those who are attached reach others less if the node's part is damaged.
		if errdefs.IsFailedPrecondition(err) {
			return types.ErrLimitedConnectivity
		}
		return types.ErrPluginNotAvailable
	}
	switch {
	case errdefs.IsInvalidArgument(err):
		return types.ErrInvalidNetworkConfig
	case errdefs.IsNotFound(err):
		return types.ErrUnknownContainer
	case errdefs.IsResourceExhausted(err), errdefs.IsUnavailable(err),
		errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return types.ErrTryAgainLater
	case errdefs.IsAlreadyExists(err):
		return ErrTaken
	case errdefs.IsFailedPrecondition(err):
		if command == Check {
			return ErrDiffers
		}
		return types.ErrInvalidNetworkConfig
	case errdefs.IsDataLoss(err), isPathError(err):
		return types.ErrIOFailure
	}
	return types.ErrInternal
}

func isPathError(err error) bool {
	var p *fs.PathError
	return errors.As(err, &p)
}
