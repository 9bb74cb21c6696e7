// Package mbus defines the messages of both transports: request and reply envelopes, size limits, the audit line, and
// the Handler that serves requests.
package mbus

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"cambium/internal/jsoncut"
)

// Request is one decoded request envelope.
type Request struct {
	Method    string
	Arguments []json.RawMessage
	// BadArguments reports that the arguments are not an array. As with cloudfoundry/bosh-agent, the caller then gets
	// an exception, and not an error of the transport.
	BadArguments bool
	// ReplyTo is the reply subject on NATS. HTTPS ignores it.
	ReplyTo string
	// Protocol is 3 for a Director and 0 for create-env, which sends none.
	Protocol int
	// Status is the envelope's member of that name, not decoded. Only test suites send one; see agent/dummy.
	Status json.RawMessage
	// KeepsWaiting reports that the caller waits until the context of Handle ends. If it is false, the time that the
	// caller waits depends on the method.
	KeepsWaiting bool
}

// Handler serves requests. Handle must return at once, because the transport calls it from the goroutine that reads, in
// order of arrival. It calls reply exactly once, before or after it returns, from any goroutine. ctx ends when the
// caller stops waiting for the reply; the action continues.
type Handler interface {
	Handle(ctx context.Context, r Request, reply func(Reply))
}

// DecodeRequest decodes an envelope. The case of keys does not matter, and unknown keys are ignored.
func DecodeRequest(data []byte) (Request, error) {
	var envelope struct {
		Method    string          `json:"method"`
		Arguments json.RawMessage `json:"arguments"`
		ReplyTo   string          `json:"reply_to"`
		Protocol  int             `json:"protocol"`
		Status    json.RawMessage `json:"status"`
	}
	if err := json.Unmarshal(data, &envelope); err != nil {
		return Request{}, fmt.Errorf("decode request: %w", withoutContent(err))
	}
	r := Request{
		Method:   envelope.Method,
		ReplyTo:  envelope.ReplyTo,
		Protocol: envelope.Protocol,
		Status:   envelope.Status,
	}
	r.Arguments, r.BadArguments = arguments(envelope.Arguments)
	return r, nil
}

// maxArguments bounds the number of arguments that are kept. No method has more than a handful, and surplus ones are
// ignored. Each takes forty bytes of memory, but only two in the message.
const maxArguments = 64

// arguments splits a JSON array.
func arguments(raw json.RawMessage) (list []json.RawMessage, bad bool) {
	if len(raw) == 0 || string(raw) == "null" {
		return nil, false
	}
	// What does not fit into a Go array is skipped by the decoder. An element that was given is never nil.
	var kept [maxArguments]json.RawMessage
	if json.Unmarshal(raw, &kept) != nil {
		return nil, true
	}
	given := slices.IndexFunc(kept[:], func(one json.RawMessage) bool { return one == nil })
	if given < 0 {
		given = maxArguments
	}
	return kept[:given], false
}

// withoutContent removes what a decoding error quotes from the message. The error is logged, and the message may hold
// secrets.
func withoutContent(err error) error {
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) {
		if wrong.Field == "" {
			return errors.New("not an object")
		}
		return fmt.Errorf("%s has the wrong type", wrong.Field)
	}
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		return fmt.Errorf("malformed JSON at byte %d", syntax.Offset)
	}
	return err
}

// Reply is the answer to a request: a value, an exception, or silence.
type Reply struct {
	value     any
	exception string
	failed    bool
	silent    bool
	private   bool
}

// Value returns a successful reply. encoding/json must be able to encode v.
func Value(v any) Reply { return Reply{value: v} }

// Exception returns a failed reply; text may be empty. It may quote names and output of jobs, and tools print it on a
// terminal, so characters that could begin an escape sequence become spaces.
func Exception(text string) Reply {
	printable := strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) || r == '\n' || r == '\t' {
			return r
		}
		return ' '
	}, text)
	return Reply{exception: printable, failed: true}
}

// Private returns the reply with its text kept out of logs, because the text of an exception may hold a secret.
func (r Reply) Private() Reply {
	r.private = true
	return r
}

// Silence returns a reply that is not sent, so that the caller times out.
func Silence() Reply { return Reply{silent: true} }

// Silent reports whether the reply is not sent.
func (r Reply) Silent() bool { return r.silent }

// ExceptionText returns the text of an exception, as far as it is safe to log. ok is false for another reply.
func (r Reply) ExceptionText() (text string, ok bool) {
	if r.failed && r.private {
		return "not logged, because it may hold a secret", true
	}
	return r.exception, r.failed
}

// TooLong is the exception that replaces a value that does not fit into one message.
const TooLong = "Response exceeded maximum allowed length"

type exceptionEnvelope struct {
	Exception exceptionBody `json:"exception"`
}

type exceptionBody struct {
	Message string `json:"message,omitempty"`
}

// Encode encodes the reply in at most limit bytes; 0 means no limit. It replaces a value that does not fit by TooLong,
// and the middle of a long exception by a mark.
func (r Reply) Encode(limit int) []byte {
	if r.failed {
		return encodeException(r.exception, limit)
	}
	data, err := marshal(struct {
		Value any `json:"value"`
	}{r.value})
	if err != nil {
		return encodeException("cannot encode the result: "+err.Error(), limit)
	}
	if limit > 0 && len(data) > limit {
		return encodeException(TooLong, limit)
	}
	return data
}

func encodeException(text string, limit int) []byte {
	data := exceptionBytes(text)
	if limit <= 0 || len(data) <= limit {
		return data
	}
	room := limit - len(exceptionBytes(truncated))
	if room > 0 {
		if data = exceptionBytes(shorten(text, room)); len(data) <= limit {
			return data
		}
	}
	return exceptionBytes(TooLong)
}

// truncated replaces the middle of a long exception.
const truncated = "\n...[truncated]...\n"

// shorten replaces the middle of text; what is left takes at most room bytes in JSON. The odd byte goes to the end,
// where tools print the cause.
func shorten(text string, room int) string {
	head := jsoncut.Head(text, room/2)
	return head + truncated + jsoncut.Tail(text[len(head):], room-room/2)
}

func exceptionBytes(text string) []byte {
	// A struct of strings always encodes.
	data, _ := marshal(exceptionEnvelope{exceptionBody{text}})
	return data
}

// marshal encodes v without escaping <, > and &, which would need six bytes each.
func marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}
