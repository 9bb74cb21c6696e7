// Package identity defines the statement of a store about itself: the content of an extended attribute of its top
// directory. Package persistent reads and writes it.
package identity

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// Attribute is the name of the extended attribute, which only root can see.
const Attribute = "trusted.cambium.store"

// Limit is the maximum size of an attribute.
const Limit = 64 << 10

// version is the version of the format. Newer versions are refused, since they may contain facts that this agent would
// ignore.
const version = 1

// Store is a store's statement about itself.
type Store struct {
	Version int    `json:"version"`
	CID     string `json:"cid"`
	// FileSystem is the UUID of the file system to which the statement was written. On another file system, it was
	// copied there by a program that preserves attributes.
	FileSystem string `json:"file_system,omitempty"`
	// Generation increases with each read-write mount on the store. It is 0 for a disk that was never mounted there.
	Generation uint64 `json:"generation"`
	// Origin identifies the source of a copy. It is zero if the disk is not a copy.
	Origin Origin `json:"origin,omitzero"`
	// Incomplete is set before a copy begins and cleared once it is verified. Empty is set if the disk was empty before
	// the copy: all its files then belong to the copy, until it is mounted on the store.
	Incomplete bool `json:"incomplete,omitempty"`
	Empty      bool `json:"empty,omitempty"`
}

// Origin identifies the state of a store from which a copy was made.
type Origin struct {
	CID        string `json:"cid"`
	FileSystem string `json:"file_system,omitempty"`
	Generation uint64 `json:"generation"`
}

// Decode parses an attribute. It returns an error, and no statement, if any part is invalid.
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

// Encode returns the content of the attribute.
func (s Store) Encode() ([]byte, error) {
	s.Version = version
	return json.Marshal(s)
}

// Used reports whether the store is complete and has been mounted read-write.
func (s Store) Used() bool { return s.CID != "" && !s.Incomplete && s.Generation > 0 }

// IsCopyOf reports whether s is a copy of a store, made at any time.
func (s Store) IsCopyOf(cid, fileSystem string) bool {
	return s.Origin.CID == cid && cid != "" && SameFileSystem(s.Origin.FileSystem, fileSystem)
}

// SameFileSystem compares UUIDs. An unknown one matches any.
func SameFileSystem(a, b string) bool { return a == "" || b == "" || strings.EqualFold(a, b) }
