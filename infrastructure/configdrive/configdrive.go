// Package configdrive implements the sources ConfigDrive and CDROM: settings on a medium that the hypervisor attaches.
// It opens media read-only and parses their file systems itself, without mounting them.
package configdrive

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/sirupsen/logrus"

	"cambium/infrastructure/internal/source"
	"cambium/internal/medium"
	"cambium/internal/secret"
)

// Options holds the options of agent.json, and settings for tests.
type Options struct {
	// DiskPaths lists devices, links in /dev/disk/by-label, or image files, in order of preference.
	DiskPaths    []string
	MetaDataPath string
	UserDataPath string
	// SettingsPath is read if UserDataPath is empty or the medium has no such file.
	SettingsPath string

	Root string // directory that contains dev, sys and run; "/" if empty
	Log  *logrus.Entry
}

// Source reads the settings from a config drive.
type Source struct {
	o      Options
	finder finder
}

// New returns a ConfigDrive source without opening a device.
func New(o Options) *Source {
	return &Source{o: o, finder: newFinder(o.Root, o.Log)}
}

// Name returns the type and the paths.
func (s *Source) Name() string {
	return "ConfigDrive " + strings.Join(s.o.DiskPaths, ", ")
}

// Settings reads the user data. A missing medium is a final error once the kernel and udev have enumerated all devices.
func (s *Source) Settings(ctx context.Context) (source.Answer, error) {
	var names []string
	for _, name := range []string{s.o.UserDataPath, s.o.SettingsPath} {
		if name != "" {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return source.Answer{}, source.Final(errors.New("UserDataPath is empty"))
	}
	body, from, err := s.read(ctx, names...)
	if err != nil {
		return source.Answer{}, err
	}
	document, err := source.Decode(body)
	if err != nil {
		return source.Answer{}, source.NotYet(fmt.Errorf("%s: %w", from, err))
	}
	return source.Answer{Raw: secret.NewJSON(document), From: "ConfigDrive " + from}, nil
}

// PublicKey returns the first key in the metadata file, which must exist.
func (s *Source) PublicKey(ctx context.Context) (string, error) {
	metadata, err := s.metadata(ctx)
	return metadata.PublicKey, err
}

// InstanceID returns the machine's key in a registry, from the metadata file.
func (s *Source) InstanceID(ctx context.Context) (string, error) {
	if s.o.MetaDataPath == "" {
		return "", nil
	}
	metadata, err := s.metadata(ctx)
	return metadata.InstanceID, err
}

func (s *Source) metadata(ctx context.Context) (source.Metadata, error) {
	if s.o.MetaDataPath == "" {
		return source.Metadata{}, source.Final(errors.New("MetaDataPath is empty"))
	}
	body, from, err := s.read(ctx, s.o.MetaDataPath)
	if err != nil {
		return source.Metadata{}, err
	}
	metadata, err := source.DecodeMetadata(body)
	if err != nil {
		return source.Metadata{}, source.NotYet(fmt.Errorf("%s: %w", from, err))
	}
	return metadata, nil
}

// read returns the first of the named files on the first usable medium.
func (s *Source) read(ctx context.Context, names ...string) (body []byte, from string, err error) {
	if len(s.o.DiskPaths) == 0 {
		return nil, "", source.Final(errors.New("DiskPaths is empty"))
	}
	err = s.finder.untilSettled(ctx, func(ctx context.Context) error {
		var failures []error
		for _, path := range s.o.DiskPaths {
			file, failure := s.finder.readFrom(ctx, path, names)
			if failure == nil {
				body, from = file.body, file.from
				return nil
			}
			failures = append(failures, failure)
		}
		return combine(failures)
	})
	return body, from, err
}

// combine joins the errors of several media. If one of them may be temporary, so may the result. If a medium is absent,
// the result is errAbsent, too, so that the caller waits for devices to appear.
func combine(failures []error) error {
	if len(failures) == 1 {
		return failures[0]
	}
	texts := make([]string, len(failures))
	kind, absent := source.Definite, false
	for i, f := range failures {
		texts[i] = f.Error()
		kind = min(kind, source.KindOf(f))
		absent = absent || errors.Is(f, errAbsent)
	}
	err := errors.New(strings.Join(texts, "; "))
	switch {
	case absent && kind == source.Definite:
		return source.Final(fmt.Errorf("%s%w", err, quietly{errAbsent}))
	case kind == source.Definite:
		return source.Final(err)
	case kind == source.NotYetThere:
		return source.NotYet(err)
	}
	return err
}

// quietly hides the text of an error, which the surrounding text already contains, and keeps it for errors.Is.
type quietly struct{ error }

func (quietly) Error() string   { return "" }
func (q quietly) Unwrap() error { return q.error }

// readVolume returns the first of the named files that the volume has.
func readVolume(v *medium.Volume, names []string) (body []byte, name string, err error) {
	var missing error
	for _, name := range names {
		body, err := v.ReadFile(name, source.MaxDocument)
		if err == nil {
			return body, name, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return nil, "", err
		}
		if missing == nil {
			missing = err
		}
	}
	return nil, "", source.Final(missing)
}
