package iaas

import (
	"errors"
	"fmt"
)

// Kind says what a caller can do about an error. The values are those of the CPI contract.
type Kind string

// The kinds. Every other error is a CloudError.
const (
	CloudError       Kind = "CloudError"
	VMNotFound       Kind = "VMNotFound"
	DiskNotFound     Kind = "DiskNotFound"
	DiskNotAttached  Kind = "DiskNotAttached"
	NetworkNotFound  Kind = "NetworkNotFound"
	NoDiskSpace      Kind = "NoDiskSpace"
	VMCreationFailed Kind = "VMCreationFailed"
	NotSupported     Kind = "NotSupported"
	NotImplemented   Kind = "NotImplemented"
)

// Error is an error with its kind.
type Error struct {
	Kind Kind
	Err  error
}

func (e *Error) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Failf returns an error of a kind.
func Failf(kind Kind, format string, args ...any) error {
	return &Error{Kind: kind, Err: fmt.Errorf(format, args...)}
}

// KindOf returns the kind of an error, or CloudError if it has none.
func KindOf(err error) Kind {
	var e *Error
	if errors.As(err, &e) {
		return e.Kind
	}
	return CloudError
}
