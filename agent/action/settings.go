package action

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"cambium/agent/task"
	"cambium/internal/secret"
	"cambium/settings"
	"cambium/settings/store"
)

// SettingsStore loads the settings in force and updates them.
type SettingsStore interface {
	Load(ctx context.Context) (store.Loaded, error)
	Effective() settings.Effective
	// Preview returns what the update would change. Commit of the result persists it.
	Preview(u settings.Update) *store.Pending
}

// Rotation is a second, working bus connection beside the current one.
type Rotation interface {
	// Commit replaces the current connection, Abort closes the new one.
	Commit(ctx context.Context)
	Abort(ctx context.Context)
}

// Bus is the agent's connection to the Director.
type Bus interface {
	// Rotate connects with other addresses or another identity, and returns when the connection works.
	Rotate(ctx context.Context, b settings.Bus) (Rotation, error)
}

// Blobstore replaces the blobstore in use when the settings change.
type Blobstore interface {
	// Prepare checks the options. Calling use replaces the blobstore.
	Prepare(b settings.Blobstore) (use func(), err error)
}

// TrustedCertificates sets the certificate authorities that the machine trusts in addition to its own.
type TrustedCertificates interface {
	Trust(ctx context.Context, pem string) error
}

// Associations links disks to their names below instance/disks.
type Associations interface {
	Associate(ctx context.Context, associations []settings.DiskAssociation) error
}

// UpdateSettings changes the settings that may change on a running machine. The new connection must work before the
// settings are persisted, and only then is the old connection closed, because the Director deletes the old identity
// after the reply.
type UpdateSettings struct {
	Store        SettingsStore
	Bus          Bus
	Blobstore    Blobstore
	Certificates TrustedCertificates
	Disks        Associations
}

// rotateTime bounds the wait for a connection with a new identity. The server learns of the identity within ten
// seconds; the Director waits for minutes.
const rotateTime = time.Minute

// update is the argument of update_settings.
type update struct{ settings.Update }

// UnmarshalJSON decodes the update as the settings store does.
func (u *update) UnmarshalJSON(data []byte) error {
	decoded, report := settings.DecodeUpdate("update_settings", secret.NewJSON(data))
	if err := report.Err(); err != nil {
		return err
	}
	u.Update = decoded
	return nil
}

func (s UpdateSettings) run(ctx context.Context, u update) (string, error) {
	if _, err := s.Store.Load(ctx); err != nil {
		return "", fmt.Errorf("update settings: %w", err)
	}
	before := s.Store.Effective()
	pending := s.Store.Preview(u.Update)
	after := pending.Effective

	useBlobstore := func() {}
	if !after.Blobstore.Equal(before.Blobstore) {
		use, err := s.Blobstore.Prepare(after.Blobstore)
		if err != nil {
			return "", fmt.Errorf("update settings: blobstore: %w", err)
		}
		useBlobstore = use
	}
	rotation, err := s.rotate(ctx, before.Bus, after.Bus)
	if err != nil {
		return "", fmt.Errorf("update settings: %w", err)
	}
	if err := s.apply(ctx, u.Update, before, pending); err != nil {
		rotation.Abort(context.WithoutCancel(ctx))
		return "", fmt.Errorf("update settings: %w", err)
	}
	// The persisted settings are in force even if the task is canceled now.
	ctx = context.WithoutCancel(ctx)
	useBlobstore()
	rotation.Commit(ctx)
	return "ok", nil
}

type noRotation struct{}

func (noRotation) Commit(context.Context) {}
func (noRotation) Abort(context.Context)  {}

func (s UpdateSettings) rotate(ctx context.Context, before, after settings.Bus) (Rotation, error) {
	if after.Equal(before) {
		return noRotation{}, nil
	}
	limited, cancel := context.WithTimeout(ctx, rotateTime)
	defer cancel()
	return s.Bus.Rotate(limited, after)
}

// apply changes the machine and then persists the update. Nothing after that can fail.
func (s UpdateSettings) apply(ctx context.Context, u settings.Update, before settings.Effective,
	pending *store.Pending) (err error) {
	if u.Has("disk_associations") {
		if err := s.Disks.Associate(ctx, pending.Effective.Associations); err != nil {
			return fmt.Errorf("disk associations: %w", err)
		}
	}
	if u.Has("trusted_certs") {
		defer func() {
			if err != nil && pending.Effective.TrustedCerts != before.TrustedCerts {
				err = errors.Join(err, s.Certificates.Trust(context.WithoutCancel(ctx), before.TrustedCerts))
			}
		}()
		if err := s.Certificates.Trust(ctx, pending.Effective.TrustedCerts); err != nil {
			return fmt.Errorf("trusted certificates: %w", err)
		}
	}
	note, err := newFingerprint(pending.Effective)
	if err != nil {
		return err
	}
	if err := checkpoint(ctx, note); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	return pending.Commit(ctx)
}

// resume is called after a restart in the middle of run. The update is complete if the settings in force are those that
// run was about to persist. If not, it fails.
func (s UpdateSettings) resume(_ context.Context, checkpoint json.RawMessage) (string, error) {
	var f fingerprint
	if checkpoint == nil || json.Unmarshal(checkpoint, &f) != nil || f.sum(s.Store.Effective()) != f.Sum {
		return "", task.ErrRestarted
	}
	return "ok", nil
}

// fingerprint identifies settings without containing them.
type fingerprint struct {
	Salt string `json:"salt"`
	Sum  string `json:"sum"`
}

func newFingerprint(e settings.Effective) (json.RawMessage, error) {
	f := fingerprint{Salt: rand.Text()}
	f.Sum = f.sum(e)
	return json.Marshal(f)
}

func (f fingerprint) sum(e settings.Effective) string {
	h := sha256.New()
	write := func(parts ...string) {
		for _, p := range parts {
			fmt.Fprintf(h, "%d:%s", len(p), p)
		}
	}
	write(f.Salt, e.Bus.Cert.CA, e.Bus.Cert.Certificate, e.Bus.Cert.PrivateKey.Reveal(), e.TrustedCerts)
	for _, u := range e.Bus.URLs {
		write(u.Reveal())
	}
	write(e.Blobstore.Provider, string(e.Blobstore.Options.Reveal()))
	for _, a := range e.Associations {
		write(a.Name, a.CID)
	}
	return hex.EncodeToString(h.Sum(nil))
}
