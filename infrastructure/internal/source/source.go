// Package source holds what all settings sources share: the answer, the kinds of errors, which decide on retries, the
// size limits, and the decoding of user data.
package source

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"cambium/internal/secret"
)

// Size limits of all input. The largest user data that an IaaS accepts is 256 KiB; a document of several MiB is not
// settings but a wrong address.
const (
	MaxDocument = 4 << 20  // settings, user data, registry answers, metadata files
	MaxShort    = 64 << 10 // SSH keys, instance ids, tokens
)

// Answer is a settings document from a source.
type Answer struct {
	// Raw is the JSON document, extracted from base64 and envelopes.
	Raw secret.JSON
	// From names the source and the location, without credentials.
	From string
	// Clear ejects the medium or erases the original. The caller calls it, unless it is nil, once the settings are
	// durably cached; an error is only logged.
	Clear func(context.Context) error
}

// The kind of an error decides what happens next:
//
//    - Final: the source definitely has nothing, such as a missing file or medium. It is not tried again in this round,
//      and the next source takes over.
//    - NotYet: the source responds, but the document is missing or invalid. The source is retried about every second,
//      since CPIs write settings after the machine exists.
//    - Any other error is one of transport. The source is retried after growing, jittered pauses.
//
// NeedNetwork is separate: the source was not tried at all.

// Kind classifies an error by what to do next.
type Kind int

// Kinds of errors.
const (
	Transport Kind = iota
	NotYetThere
	Definite
)

type marked struct {
	error
	kind  Kind
	spent bool
}

func (m marked) Unwrap() error { return m.error }

// Final marks err as permanent: the source is not tried again.
func Final(err error) error { return marked{error: err, kind: Definite} }

// Spent marks err as permanent, and as expected from a source that the agent itself has cleared: an ejected disc, or an
// erased value. Each start after the first finds the source like this.
func Spent(err error) error { return marked{error: err, kind: Definite, spent: true} }

// IsSpent reports whether err was marked by Spent.
func IsSpent(err error) bool {
	var m marked
	return errors.As(err, &m) && m.spent
}

// NotYet marks err as temporary: the CPI may still provide the settings.
func NotYet(err error) error { return marked{error: err, kind: NotYetThere} }

// KindOf returns the kind of an error. If it was marked more than once, the outermost mark counts.
func KindOf(err error) Kind {
	var m marked
	if errors.As(err, &m) {
		return m.kind
	}
	return Transport
}

// NeedNetwork means that a source needs a network, and none is up. Networks is the network to bring up, from the user
// data that names a registry; if it is empty, DHCP will do.
type NeedNetwork struct{ Networks json.RawMessage }

func (n *NeedNetwork) Error() string { return "needs network" }

// ErrTooLarge is returned for input above its size limit.
var ErrTooLarge = errors.New("too large")

// ReadAll reads r to its end. It returns ErrTooLarge if that is beyond limit bytes.
func ReadAll(r io.Reader, limit int64) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("%w: more than %d KiB", ErrTooLarge, limit>>10)
	}
	return data, nil
}

// Metadata is the EC2-style metadata of a config drive.
type Metadata struct {
	InstanceID string
	PublicKey  string
}

// DecodeMetadata parses {"instance-id": …, "public-keys": {"0": {"openssh-key": …}}}. Either member may be missing.
func DecodeMetadata(body []byte) (Metadata, error) {
	document, err := Decode(body)
	if err != nil {
		return Metadata{}, err
	}
	var wire struct {
		InstanceID json.RawMessage `json:"instance-id"`
		Keys       json.RawMessage `json:"public-keys"`
	}
	if err := json.Unmarshal(document, &wire); err != nil {
		return Metadata{}, errors.New("not metadata")
	}
	var m Metadata
	if len(wire.InstanceID) > 0 && json.Unmarshal(wire.InstanceID, &m.InstanceID) != nil {
		return Metadata{}, errors.New("instance-id: expected a string")
	}
	var keys map[string]struct {
		Key string `json:"openssh-key"`
	}
	if len(wire.Keys) > 0 && json.Unmarshal(wire.Keys, &keys) != nil {
		return Metadata{}, errors.New("public-keys: expected an object of objects")
	}
	m.PublicKey = keys["0"].Key
	return m, nil
}
