// Package advice attaches to an error what an operator can do about its cause.
package advice

import "errors"

type advised struct {
	error
	text string
}

func (a advised) Unwrap() error { return a.error }

// Advice implements the interface that Of looks for.
func (a advised) Advice() string { return a.text }

// With returns an error with advice about its cause.
func With(text string, err error) error { return advised{err, text} }

// Of returns the advice of the first error in the tree of err that has one; empty if none has.
func Of(err error) string {
	var a interface{ Advice() string }
	if errors.As(err, &a) {
		return a.Advice()
	}
	return ""
}
