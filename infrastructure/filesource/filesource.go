// Package filesource is the File source: settings that a CPI, cloud-init or a hypervisor's
// guest agent leaves in a file of the machine, and may rewrite at any time.
package filesource

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"cambium/infrastructure/internal/source"
	"cambium/internal/secret"
)

// Options are the paths of agent.json.
type Options struct {
	SettingsPath string
	// MetaDataPath holds {"instance-id": …}, the key of a registry.
	MetaDataPath string
	// UserDataPath holds what metadata services call user data: a settings document, or a
	// pointer to a registry.
	UserDataPath string
	// UseRegistry makes UserDataPath, if it can be read, win over SettingsPath, as it did in
	// the agents that knew this option.
	UseRegistry bool
}

// Source reads files.
type Source struct{ o Options }

// New returns the source; it touches nothing.
func New(o Options) *Source { return &Source{o: o} }

// Name says what is asked.
func (s *Source) Name() string { return "File " + s.o.SettingsPath }

// Settings reads the settings file. A missing file is final: nothing is waited for, and the
// next source is asked. A document that does not parse may be one that is just being written.
func (s *Source) Settings(context.Context) (source.Answer, error) {
	if s.o.SettingsPath == "" {
		return source.Answer{}, source.Final(errors.New("SettingsPath is empty"))
	}
	path := s.o.SettingsPath
	body, err := source.ReadFile(path)
	if err != nil {
		return source.Answer{}, err
	}
	if s.o.UseRegistry && s.o.UserDataPath != "" && s.o.UserDataPath != path {
		if userData, err := source.ReadFile(s.o.UserDataPath); err == nil {
			path, body = s.o.UserDataPath, userData
		}
	}
	document, err := source.Decode(body)
	if err != nil {
		return source.Answer{}, source.NotYet(fmt.Errorf("%s: %w; 'agent validate settings %s' shows where", path, err, path))
	}
	return source.Answer{Raw: secret.NewJSON(document), From: "File " + path}, nil
}

// PublicKey returns the document's "public_key", which registry-era CPIs wrote. That the file
// must exist is part of the contract: the search for a key ends at the first source without
// an error, and a machine whose file is missing gets its key from the next one.
func (s *Source) PublicKey(context.Context) (string, error) {
	if s.o.SettingsPath == "" {
		return "", source.Final(errors.New("SettingsPath is empty"))
	}
	body, err := source.ReadFile(s.o.SettingsPath)
	if err != nil {
		return "", source.Final(err)
	}
	var document struct {
		PublicKey string `json:"public_key"`
	}
	if decoded, err := source.Decode(body); err == nil {
		_ = json.Unmarshal(decoded, &document) // a key of another type is not a key
	}
	return document.PublicKey, nil
}

// InstanceID reads the key of this machine in a registry.
func (s *Source) InstanceID(context.Context) (string, error) {
	if s.o.MetaDataPath == "" {
		return "", nil
	}
	body, err := source.ReadFile(s.o.MetaDataPath)
	if err != nil {
		return "", err
	}
	metadata, err := source.DecodeMetadata(body)
	if err != nil {
		return "", source.NotYet(fmt.Errorf("%s: %w", s.o.MetaDataPath, err))
	}
	return metadata.InstanceID, nil
}
