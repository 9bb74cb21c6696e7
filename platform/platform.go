// Package platform defines the shape of its subpackages, one for each kernel domain: what is observed is compared
// with what is desired, and the difference is applied. Plan and Converge do that for all of them.
package platform

import (
	"context"
	"errors"
)

// Kernel is the part of a domain that touches the machine. What decides is the domain's Diff, which is pure.
type Kernel[State, Desired, Change any] interface {
	// Observe reads what concerns the desired state.
	Observe(ctx context.Context, want Desired) (State, error)
	// Apply makes the changes in order and returns those made.
	Apply(ctx context.Context, changes []Change) ([]Change, error)
}

// Diff decides which changes lead from what is to what is desired. Those that it returns together with an error do
// not depend on what is wrong, and are made.
type Diff[State, Desired, Change any] func(have State, want Desired) ([]Change, error)

// Plan returns what Converge would change, and only reads.
func Plan[S, D, C any](ctx context.Context, k Kernel[S, D, C], diff Diff[S, D, C], want D) ([]C, error) {
	have, err := k.Observe(ctx, want)
	if err != nil {
		return nil, err
	}
	return diff(have, want)
}

// Converge brings a domain to the desired state and returns the changes made.
func Converge[S, D, C any](ctx context.Context, k Kernel[S, D, C], diff Diff[S, D, C], want D) ([]C, error) {
	changes, failed := Plan(ctx, k, diff, want)
	if len(changes) == 0 {
		return nil, failed
	}
	made, err := k.Apply(ctx, changes)
	return made, errors.Join(failed, err)
}
