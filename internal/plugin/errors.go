package plugin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/containerd/errdefs"
	"github.com/containernetworking/cni/pkg/types"
)

// Husk's own codes: the specification reserves those from 100 on for plugins.
const (
	// ErrTaken means that an address, a port or a link belongs to another pod or program.
	ErrTaken uint = 100
	// ErrDiffers means that CHECK found differences.
	ErrDiffers uint = 101
)

func fault(code uint, format string, args ...any) error {
	return types.NewError(code, fmt.Sprintf(format, args...), "")
}

// errorOf converts err to an error of the specification. One that is already is returned as it is.
func errorOf(command string, err error) *types.Error {
	var known *types.Error
	if errors.As(err, &known) {
		return known
	}
	return types.NewError(codeOf(command, err), err.Error(), "")
}

func codeOf(command string, err error) uint {
	if command == Status {
		// Attached pods are affected too if the node's part is damaged.
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
