// Package platform defines the common interface of its subpackages, one for each kernel domain. Each observes its
// state, compares it with the desired state, and applies the changes. Plan and Converge do this for all domains.
package platform

import (
	"context"
	"errors"
)

// Kernel is the part of a domain that reads and changes the machine. The domain's Diff, which is pure, makes the
// decisions.
type Kernel[State, Desired, Change any] interface {
	// Observe reads the state to compare with the desired state.
	Observe(ctx context.Context, want Desired) (State, error)
	// Apply makes the changes in order and returns those made.
	Apply(ctx context.Context, changes []Change) ([]Change, error)
}

// Diff returns the changes from the observed to the desired state. Changes returned together with an error do not
// depend on its cause, and are made.
type Diff[State, Desired, Change any] func(have State, want Desired) ([]Change, error)

// Plan returns the changes that Converge would make. It only reads.
func Plan[S, D, C any](ctx context.Context, k Kernel[S, D, C], diff Diff[S, D, C], want D) ([]C, error) {
	have, err := k.Observe(ctx, want)
	if err != nil {
		return nil, err
	}
	return diff(have, want)
}

// Converge makes the changes to reach the desired state and returns those made.
func Converge[S, D, C any](ctx context.Context, k Kernel[S, D, C], diff Diff[S, D, C], want D) ([]C, error) {
	changes, failed := Plan(ctx, k, diff, want)
	if len(changes) == 0 {
		return nil, failed
	}
	made, err := k.Apply(ctx, changes)
	return made, errors.Join(failed, err)
}
