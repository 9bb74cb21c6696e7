// Package filesource implements the source File: settings that a CPI, cloud-init or a hypervisor's guest agent writes
// to a file on the machine, and may rewrite at any time.
package filesource

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"cambium/infrastructure/internal/source"
	"cambium/internal/secret"
)

// Options holds the paths of agent.json.
type Options struct {
	SettingsPath string
	// MetaDataPath names a file with {"instance-id": …}, the machine's key in a registry.
	MetaDataPath string
	// UserDataPath names a file with user data: a settings document, or a pointer to a registry.
	UserDataPath string
	// UseRegistry makes UserDataPath win over SettingsPath if both can be read. Agents that had this option did the same.
	UseRegistry bool
}

// Source reads the settings from files.
type Source struct{ o Options }

// New returns a File source without opening a file.
func New(o Options) *Source { return &Source{o: o} }

// Name returns the type and the path.
func (s *Source) Name() string { return "File " + s.o.SettingsPath }

// Settings reads the settings file. If it is missing, the error is final, so that the next source is used at once. An
// invalid document may still be in the process of being written.
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
		return source.Answer{}, source.NotYet(
			fmt.Errorf("%s: %w; 'agent validate settings %s' shows where", path, err, path))
	}
	return source.Answer{Raw: secret.NewJSON(document), From: "File " + path}, nil
}

// PublicKey returns the document's "public_key", which registry-era CPIs wrote. A missing file must be an error: the
// search for a key ends at the first source without one, and the key may come from the next source.
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

// InstanceID returns the machine's key in a registry.
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
