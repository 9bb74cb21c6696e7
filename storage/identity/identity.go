// Package identity defines what a store says about itself, as one value: the content of an extended attribute of its
// top directory. It reads and writes no disk; package persistent does.
package identity

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// Attribute is the extended attribute of the top directory of a store. Only root sees it.
const Attribute = "trusted.cambium.store"

// Limit bounds what is read of an attribute.
const Limit = 64 << 10

// version is the version of the format. A newer one may say what this agent would not honor.
const version = 1

// Store is the statement of a store about itself.
type Store struct {
	Version int    `json:"version"`
	CID     string `json:"cid"`
	// FileSystem identifies the file system to which the statement was written. Found on another one, it was carried
	// along by a program that copies attributes.
	FileSystem string `json:"file_system,omitempty"`
	// Generation rises with each read-write mount on the store. A disk that has never been there has 0.
	Generation uint64 `json:"generation"`
	// Origin identifies the source of a copy; zero if the disk is not a copy.
	Origin Origin `json:"origin,omitzero"`
	// Incomplete is set from before the first byte of a copy until it is verified. Empty is set if the disk was empty
	// before the copy: then all its files belong to the copy until it is mounted on the store.
	Incomplete bool `json:"incomplete,omitempty"`
	Empty      bool `json:"empty,omitempty"`
}

// Origin is the state of a store from which a copy was made.
type Origin struct {
	CID        string `json:"cid"`
	FileSystem string `json:"file_system,omitempty"`
	Generation uint64 `json:"generation"`
}

// Decode reads an attribute. It is read whole or not at all.
func Decode(data []byte) (Store, error) {
	var s Store
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&s); err != nil {
		return Store{}, err
	}
	if decoder.More() {
		return Store{}, errors.New("unexpected data after the document")
	}
	if s.Version != version {
		return Store{}, fmt.Errorf("version %d, want %d", s.Version, version)
	}
	if s.CID == "" {
		return Store{}, errors.New("it names no disk")
	}
	return s, nil
}

// Encode writes an attribute.
func (s Store) Encode() ([]byte, error) {
	s.Version = version
	return json.Marshal(s)
}

// Used reports a complete store that jobs have been able to write to.
func (s Store) Used() bool { return s.CID != "" && !s.Incomplete && s.Generation > 0 }

// Of reports whether s was copied from a store, in whatever state that was.
func (s Store) Of(cid, fileSystem string) bool {
	return s.Origin.CID == cid && cid != "" && SameFileSystem(s.Origin.FileSystem, fileSystem)
}

// SameFileSystem compares identifiers; one that is not known may be any.
func SameFileSystem(a, b string) bool { return a == "" || b == "" || strings.EqualFold(a, b) }
