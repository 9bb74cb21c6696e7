// Package configdrive is the ConfigDrive and the CDROM source: settings on a medium that the
// hypervisor attaches. Media are opened for reading only and read without mounting them where
// their file system allows it.
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

// Options are those of agent.json, and where the machine's own files are.
type Options struct {
	// DiskPaths are devices, links of /dev/disk/by-label or image files, in order of preference.
	DiskPaths    []string
	MetaDataPath string
	UserDataPath string
	// SettingsPath is read where there is no UserDataPath, or no such file on the medium.
	SettingsPath string

	Root string // where /dev, /sys and /run are; "/" if empty
	Log  *logrus.Entry
}

// Source reads a config drive.
type Source struct {
	o      Options
	finder finder
}

// New returns the source; it touches nothing.
func New(o Options) *Source {
	return &Source{o: o, finder: newFinder(o.Root, o.Log)}
}

// Name says what is asked.
func (s *Source) Name() string {
	return "ConfigDrive " + strings.Join(s.o.DiskPaths, ", ")
}

// Settings reads the user data. That no medium is there is final once the kernel and udev have
// finished looking for devices.
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

// PublicKey reads the first key of the metadata file, which must be there.
func (s *Source) PublicKey(ctx context.Context) (string, error) {
	metadata, err := s.metadata(ctx)
	return metadata.PublicKey, err
}

// InstanceID reads the key of this machine in a registry.
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

// read returns the first of the named files that the first usable medium has.
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

// combine joins the failures of several media. The least definite one decides the kind: as long as
// one of them may be temporary, so may that of the source. If one is only absent, devices that are
// still to appear are worth waiting for.
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

// quietly is an error with an empty text, for errors.Is only: the text around it says it already.
type quietly struct{ error }

func (quietly) Error() string   { return "" }
func (q quietly) Unwrap() error { return q.error }

// readVolumes returns the first of the named files that any of the volumes has.
func readVolumes(all []*medium.Volume, names []string) (body []byte, name string, err error) {
	var missing error
	for _, v := range all {
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
	}
	return nil, "", source.Final(missing)
}
