// Package source holds what all settings sources share: the shape of an answer, the
// kinds of failure that decide when a source is asked again, the size limits, and the decoding
// of user data. It is a leaf of infrastructure, which exports what others need of it.
package source

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"cambium/internal/neednet"
	"cambium/internal/secret"
)

// Size limits of everything that comes from outside. The largest user data an IaaS accepts is
// 256 KiB; a document of more than a few MiB is a wrong address, not settings.
const (
	MaxDocument = 4 << 20  // settings, user data, registry answers, metadata files
	MaxShort    = 64 << 10 // SSH keys, instance ids, tokens
)

// Answer is a settings document as a source gave it.
type Answer struct {
	// Raw is the JSON document; base64 and envelopes are gone.
	Raw secret.JSON
	// From names the source and where it looked, without credentials.
	From string
	// Clear is to be called once the settings are durably cached: it ejects the medium or erases
	// the original. It is nil if there is nothing to do. Its failure is only a warning.
	Clear func(context.Context) error
}

// A failure is one of three kinds, and the kind decides what happens next:
//
//   - Final: the source definitely has nothing (no such file, no such medium). It is not asked
//     again in this round, and the next source takes over.
//   - NotYet: the source is there, the answer is not, or is unusable: asked again about every
//     second, since CPIs write settings after the machine exists.
//   - anything else: transport. Asked again with growing, jittered pauses.
//
// NeedNetwork stands beside them: the source was not asked at all.

// Kind classifies a failure by its consequence for the next attempt.
type Kind int

// The kinds of failure.
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

// Final marks err as permanent: the source is not asked again.
func Final(err error) error { return marked{error: err, kind: Definite} }

// Spent is Final for a source that can be read once and is then cleared by the agent itself: an ejected disc, an
// erased value. Every start after the first finds the source in this state.
func Spent(err error) error { return marked{error: err, kind: Definite, spent: true} }

// IsSpent reports whether the failure is one that Spent marked.
func IsSpent(err error) bool {
	var m marked
	return errors.As(err, &m) && m.spent
}

// NotYet marks err as temporary: the CPI may still provide the settings.
func NotYet(err error) error { return marked{error: err, kind: NotYetThere} }

// KindOf returns the kind of a failure. Where marks are nested the outermost counts: the outer
// caller knows more.
func KindOf(err error) Kind {
	var m marked
	if errors.As(err, &m) {
		return m.kind
	}
	return Transport
}

// NeedNetwork says that the source cannot be asked before there is a network. It matches
// neednet.Err. Networks is the "networks" member of the user data that points to a registry,
// in the form of the settings document: the network to bring up. Without it a minimal DHCP
// network is wanted.
type NeedNetwork struct{ Networks json.RawMessage }

func (n *NeedNetwork) Error() string { return neednet.Err.Error() }

// Is makes errors.Is(err, neednet.Err) true.
func (n *NeedNetwork) Is(target error) bool { return target == neednet.Err }

// ErrTooLarge means that something exceeded its size limit.
var ErrTooLarge = errors.New("too large")

// ReadAll reads r to its end, and no further than limit.
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

// Metadata is the EC2-style metadata file of a config drive.
type Metadata struct {
	InstanceID string
	PublicKey  string
}

// DecodeMetadata reads {"instance-id": …, "public-keys": {"0": {"openssh-key": …}}}; either
// member may be missing.
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
