package action

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// The binders below turn a typed function into a Bind. Missing arguments are an error that
// names both counts, surplus ones are ignored (callers do send them), and a value of the wrong
// type is an error that names its position. Numbers decoded into any, json.Number or
// json.RawMessage keep every digit.

// None binds a method without arguments.
func None[R any](f func(context.Context) (R, error)) Bind {
	run := func(ctx context.Context) (any, error) { return f(ctx) }
	return func([]json.RawMessage) (Run, error) { return run, nil }
}

// One binds a method with one argument.
func One[A, R any](f func(context.Context, A) (R, error)) Bind {
	return func(arguments []json.RawMessage) (Run, error) {
		var a A
		if err := decode(arguments, 1, &a); err != nil {
			return nil, err
		}
		return func(ctx context.Context) (any, error) { return f(ctx, a) }, nil
	}
}

// Two binds a method with two arguments.
func Two[A, B, R any](f func(context.Context, A, B) (R, error)) Bind {
	return func(arguments []json.RawMessage) (Run, error) {
		var a A
		var b B
		if err := decode(arguments, 2, &a, &b); err != nil {
			return nil, err
		}
		return func(ctx context.Context) (any, error) { return f(ctx, a, b) }, nil
	}
}

// Three binds a method with three arguments.
func Three[A, B, C, R any](f func(context.Context, A, B, C) (R, error)) Bind {
	return func(arguments []json.RawMessage) (Run, error) {
		var a A
		var b B
		var c C
		if err := decode(arguments, 3, &a, &b, &c); err != nil {
			return nil, err
		}
		return func(ctx context.Context) (any, error) { return f(ctx, a, b, c) }, nil
	}
}

// Five binds a method with five arguments, such as compile_package.
func Five[A, B, C, D, E, R any](f func(context.Context, A, B, C, D, E) (R, error)) Bind {
	return func(arguments []json.RawMessage) (Run, error) {
		var a A
		var b B
		var c C
		var d D
		var e E
		if err := decode(arguments, 5, &a, &b, &c, &d, &e); err != nil {
			return nil, err
		}
		return func(ctx context.Context) (any, error) { return f(ctx, a, b, c, d, e) }, nil
	}
}

// MaybeOne binds a method with one optional argument. f gets nil if it is missing.
func MaybeOne[A, R any](f func(context.Context, *A) (R, error)) Bind {
	return func(arguments []json.RawMessage) (Run, error) {
		var a *A
		if err := decode(arguments, 0, &a); err != nil {
			return nil, err
		}
		return func(ctx context.Context) (any, error) { return f(ctx, a) }, nil
	}
}

// OneMaybeTwo binds a method with one required and one optional argument. f gets nil if the second is missing.
func OneMaybeTwo[A, B, R any](f func(context.Context, A, *B) (R, error)) Bind {
	return func(arguments []json.RawMessage) (Run, error) {
		var a A
		var b *B
		if err := decode(arguments, 1, &a, &b); err != nil {
			return nil, err
		}
		return func(ctx context.Context) (any, error) { return f(ctx, a, b) }, nil
	}
}

// resume adapts a typed function to Row.Resume.
func resume[R any](
	f func(context.Context, json.RawMessage) (R, error)) func(context.Context, json.RawMessage) (any, error) {
	return func(ctx context.Context, checkpoint json.RawMessage) (any, error) { return f(ctx, checkpoint) }
}

// Checked is implemented by arguments that can be decoded and still be invalid. The error of Check is sent to the
// caller, before anything runs.
type Checked interface{ Check() error }

// decode decodes arguments into targets. Only the first required arguments must be present.
func decode(arguments []json.RawMessage, required int, targets ...any) error {
	if len(arguments) < required {
		return fmt.Errorf("not enough arguments, expected %d, got %d", required, len(arguments))
	}
	for i, target := range targets {
		if i >= len(arguments) {
			return nil
		}
		if isNull(arguments[i]) && scalar(target) {
			return fmt.Errorf("argument %d: expected a value, got null", i+1)
		}
		d := json.NewDecoder(bytes.NewReader(arguments[i]))
		d.UseNumber()
		if err := d.Decode(target); err != nil {
			return fmt.Errorf("argument %d: %w", i+1, hideContent(err))
		}
		if _, err := d.Token(); err != io.EOF {
			return fmt.Errorf("argument %d: more than one value", i+1)
		}
		if c, ok := target.(Checked); ok {
			if err := c.Check(); err != nil {
				return fmt.Errorf("argument %d: %w", i+1, err)
			}
		}
	}
	return nil
}

// scalar reports whether null is an invalid value for target: it would decode to "" or 0. For lists and objects null
// means empty; if that is wrong, Check of the type refuses it.
func scalar(target any) bool {
	switch target.(type) {
	case *string, *bool, *int, *int64, *uint64, *json.Number:
		return true
	}
	return false
}

func isNull(raw json.RawMessage) bool { return bytes.Equal(bytes.TrimSpace(raw), []byte("null")) }

// hideContent rewrites decoder errors, which may quote the document and name Go types.
func hideContent(err error) error {
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) {
		what := wrong.Value
		if len(what) > 6 && what[:6] == "number" {
			what = "number" // the decoder appends the number itself
		}
		if wrong.Field != "" {
			return fmt.Errorf("%s: unexpected %s", wrong.Field, what)
		}
		return fmt.Errorf("unexpected %s", what)
	}
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		return errors.New("malformed JSON")
	}
	return err
}
