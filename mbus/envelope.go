// Package mbus defines what travels on the message bus, whatever the transport: the request and
// reply envelopes, the size limits, the audit line, and the Handler that both transports serve.
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
)

// Request is one decoded request envelope.
type Request struct {
	Method    string
	Arguments []json.RawMessage
	// BadArguments reports that the arguments are not an array. The caller learns that from an
	// exception, as from cloudfoundry/bosh-agent, rather than from the transport.
	BadArguments bool
	// ReplyTo is the reply subject on NATS, and means nothing on HTTPS.
	ReplyTo string
	// Protocol is 3 for a Director and 0 for create-env, which sends none.
	Protocol int
	// Status is the envelope's own member of that name, as it came. Only test suites send one; see agent/dummy.
	Status json.RawMessage
	// KeepsWaiting reports that the caller waits until the context of Handle ends, rather than
	// for a time that depends on the method.
	KeepsWaiting bool
}

// Handler serves requests. Handle returns at once, since a transport calls it in arrival order
// and from the goroutine that reads; reply is called exactly once, before or after Handle
// returns and from any goroutine. The context ends when the caller stops waiting for the reply,
// which does not stop the action.
type Handler interface {
	Handle(ctx context.Context, r Request, reply func(Reply))
}

// DecodeRequest reads an envelope. Keys match regardless of case, and unknown ones are ignored.
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
	r := Request{Method: envelope.Method, ReplyTo: envelope.ReplyTo, Protocol: envelope.Protocol, Status: envelope.Status}
	r.Arguments, r.BadArguments = arguments(envelope.Arguments)
	return r, nil
}

// maxArguments limits the arguments kept of a request. No method has more than a handful, and surplus ones are
// ignored. Each costs forty bytes of memory for the two that it takes in a message.
const maxArguments = 64

// arguments splits an array.
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

// withoutContent drops what a decoding error quotes from the message, which may hold secrets and goes to the log.
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

// Value is a successful reply; v must be what encoding/json can write.
func Value(v any) Reply { return Reply{value: v} }

// Exception is a failed reply; the text may be empty. It may quote names and output of jobs, and tools print it on a
// terminal: what could begin an escape sequence there becomes a space.
func Exception(text string) Reply {
	printable := strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) || r == '\n' || r == '\t' {
			return r
		}
		return ' '
	}, text)
	return Reply{exception: printable, failed: true}
}

// Private returns the reply for its caller alone: the text of an exception may hold a secret, and stays out of logs.
func (r Reply) Private() Reply {
	r.private = true
	return r
}

// Silence means that the request is not answered: the caller times out.
func Silence() Reply { return Reply{silent: true} }

// Silent reports a reply that is not sent.
func (r Reply) Silent() bool { return r.silent }

// Failed reports an exception, and its text as a log may have it.
func (r Reply) Failed() (string, bool) {
	if r.failed && r.private {
		return "not logged, because it may hold a secret", true
	}
	return r.exception, r.failed
}

// TooLong is the exception for a value that does not fit into one message.
const TooLong = "Response exceeded maximum allowed length"

type exceptionEnvelope struct {
	Exception exceptionBody `json:"exception"`
}

type exceptionBody struct {
	Message string `json:"message,omitempty"`
}

// Encode writes the reply in at most limit bytes; a limit of 0 means any length. A value that
// is too long becomes the exception TooLong, a long exception loses its middle.
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

func exceptionBytes(text string) []byte {
	// A struct of strings always encodes.
	data, _ := marshal(exceptionEnvelope{exceptionBody{text}})
	return data
}

// marshal leaves <, > and & as they are: six bytes each would be taken from the limit.
func marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}
