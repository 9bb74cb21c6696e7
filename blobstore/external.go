package blobstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"cambium/internal/atomicfile"
	"cambium/internal/command"
	"cambium/internal/retry"
	"cambium/internal/secret"
)

// external runs the stemcell's program for a provider. The program reads its options, with their secrets, from a file
// that only root can read.
type external struct {
	program, config, tmp string
	backoff              retry.Backoff
	// secrets lists values that no error may quote, whatever the program prints.
	secrets []secret.String
}

func newExternal(o Options) (*external, error) {
	if strings.ContainsAny(o.Provider, "/ \x00") {
		return nil, errors.New("blobstore: invalid provider name")
	}
	name := "bosh-blobstore-" + o.Provider
	program := ""
	if o.SearchPath == "" {
		program = command.Find(name)
	} else {
		for dir := range strings.SplitSeq(o.SearchPath, ":") {
			if path := command.Find(filepath.Join(dir, name)); path != "" && program == "" {
				program = path
			}
		}
	}
	if program == "" {
		return nil, fmt.Errorf("blobstore %s: the program %s is not installed", o.Provider, name)
	}
	e := &external{program: program, config: o.Dirs.BlobstoreConfig(o.Provider), tmp: o.Dirs.Tmp(), backoff: o.Backoff}
	content := []byte(o.Options.Reveal())
	if len(content) == 0 {
		content = []byte("{}")
	}
	var values any
	if err := json.Unmarshal(content, &values); err != nil {
		return nil, fmt.Errorf("blobstore %s: the options cannot be decoded", o.Provider)
	}
	e.secrets = secretsOf(values, false)
	if err := os.MkdirAll(filepath.Dir(e.config), 0o755); err != nil {
		return nil, fmt.Errorf("blobstore %s: %w", o.Provider, err)
	}
	if _, err := atomicfile.WriteIfChanged(e.config, content, 0o600); err != nil {
		return nil, fmt.Errorf("blobstore %s: %w", o.Provider, err)
	}
	return e, nil
}

func (e *external) open(ctx context.Context, id string) (io.ReadCloser, error) {
	if strings.HasPrefix(id, "-") {
		return nil, errBadID
	}
	// Programs may replace the file instead of writing to it, so it has a name for a while.
	dir, err := os.MkdirTemp(e.tmp, "blob-get-")
	if err != nil {
		return nil, fmt.Errorf("temporary directory: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }() // sweep removes leftovers at the next start
	path := filepath.Join(dir, "blob")
	if err := e.run(ctx, "get", id, path); err != nil {
		return nil, err
	}
	return os.Open(path)
}

func (e *external) put(ctx context.Context, id string, content *spool) error {
	return e.run(ctx, "put", content.path(), id)
}

// missingBlob is the programs' exit status for a blob that does not exist. Any other failure is retried.
const missingBlob = 3

func (e *external) run(ctx context.Context, args ...string) error {
	err := attempts(ctx, e.backoff, func(ctx context.Context) error {
		_, err := command.Run(ctx, command.Cmd{Name: e.program, Args: append([]string{"-c", e.config}, args...),
			Env: append(os.Environ(), "TMPDIR="+e.tmp)})
		var exit *command.ExitError
		if errors.As(err, &exit) && exit.ExitCode == missingBlob {
			return retry.Final(ErrNotFound)
		}
		return err
	})
	return e.redact(err)
}

// redact removes the values of secret options from an error that quotes a program's output.
func (e *external) redact(err error) error {
	if err == nil {
		return nil
	}
	clean := err.Error()
	for _, s := range e.secrets {
		clean = strings.ReplaceAll(clean, s.Reveal(), "<redacted>")
	}
	if clean == err.Error() {
		return err
	}
	return errors.New(clean)
}

// secretsOf collects the strings below keys whose names suggest secrets.
func secretsOf(value any, sensitive bool) (found []secret.String) {
	switch v := value.(type) {
	case string:
		// A short one would redact parts of ordinary words.
		if sensitive && len(v) >= 4 {
			found = append(found, secret.New(v))
		}
	case []any:
		for _, each := range v {
			found = append(found, secretsOf(each, sensitive)...)
		}
	case map[string]any:
		for name, each := range v {
			name = strings.ToLower(name)
			secretly := slices.ContainsFunc([]string{"key", "secret", "password", "token", "credential"},
				func(part string) bool { return strings.Contains(name, part) })
			found = append(found, secretsOf(each, sensitive || secretly)...)
		}
	}
	return found
}
