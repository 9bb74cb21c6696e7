// Package advice adds to an error what an operator can do about it.
package advice

import "errors"

type advised struct {
	error
	text string
}

func (a advised) Unwrap() error { return a.error }

// Advice returns the advice. Of looks for this method.
func (a advised) Advice() string { return a.text }

// With adds advice to an error.
func With(text string, err error) error { return advised{err, text} }

// Of returns the first advice in the tree of err, or "".
func Of(err error) string {
	var a interface{ Advice() string }
	if errors.As(err, &a) {
		return a.Advice()
	}
	return ""
}
