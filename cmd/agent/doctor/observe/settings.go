package observe

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io/fs"
	"maps"
	"os"
	"slices"
	"time"

	"cambium/cmd/agent/showsettings"
	"cambium/internal/secret"
	"cambium/internal/vcap"
	"cambium/settings"
	"cambium/settings/agentjson"
	"cambium/settings/store"
)

// Settings describes the settings that a boot would use now, and their files.
type Settings struct {
	AgentID string `json:"agent_id,omitempty"`
	// From is the source, or the file of the cached copy.
	From string `json:"from,omitempty"`
	// SourcesErr is the error of the sources if none of them answered, unless the agent itself has cleared them.
	SourcesErr string         `json:"sources_error,omitempty"`
	Err        string         `json:"error,omitempty"` // the reason why there are no settings
	Files      []SettingsFile `json:"files"`
	ManagedCID string         `json:"mounted_disk,omitempty"`
	// Addresses has the addresses of networks that are not dynamic, and DNS the name servers.
	Addresses []OfNetwork `json:"addresses"`
	DNS       []OfNetwork `json:"dns"`
	// Gateways has the gateways of default routes.
	Gateways []OfNetwork `json:"gateways"`
	// PlainPassword means that env.bosh.password is not a hash.
	PlainPassword bool   `json:"plain_password,omitempty"`
	Blobstore     string `json:"blobstore,omitempty"` // its provider
}

// OfNetwork is an address that the settings give to a network.
type OfNetwork struct {
	Network string `json:"network"`
	IP      string `json:"ip"`
}

// SettingsFile is one of the files that survive a restart.
type SettingsFile struct {
	Path     string    `json:"path"`
	Modified time.Time `json:"modified"`
	Damage   string    `json:"damage,omitempty"`
	Aside    bool      `json:"aside,omitempty"` // it was damaged, and the agent has renamed it
}

// agentConfig reads agent.json.
func agentConfig(path string) (agentjson.Config, Config) {
	found := Config{Path: path}
	config, rep, err := agentjson.Load(path)
	if err == nil {
		err = rep.Err()
	}
	if err != nil {
		found.Err, found.Denied = err.Error(), errors.Is(err, fs.ErrPermission)
		return agentjson.Config{}, found
	}
	for _, e := range rep.Entries {
		found.Warnings = append(found.Warnings, e.String())
	}
	return config, found
}

// loadSettings loads the settings as a boot would, without side effects. If agent.json cannot be used, it reads only
// the cached copy.
func loadSettings(ctx context.Context, o Options, config agentjson.Config, configured bool,
	found *Settings) settings.Effective {
	found.Files = settingsFiles(o.Dirs)
	cache, err := store.Open(o.Dirs, store.Options{ReadOnly: true})
	if err != nil {
		found.Err = err.Error()
		return settings.Effective{}
	}
	if found.ManagedCID, err = cache.ManagedCID(); err != nil {
		found.Err = err.Error()
	}
	effective := cache.Effective()
	if cache.Present() {
		found.From = cache.Last().From
	}
	if configured {
		ctx, cancel := context.WithTimeout(ctx, o.Timeout)
		defer cancel()
		answer, err := showsettings.Ask(ctx, config, o.Dirs, o.Timeout, func(string) {})
		switch {
		case err == nil:
			effective, found.From = answer.Effective, answer.Loaded.From
			if answer.Loaded.Why != nil && !answer.Loaded.Spent {
				found.SourcesErr = answer.Loaded.Why.Error()
			}
		case !cache.Present():
			found.Err = err.Error()
		default:
			found.SourcesErr = err.Error()
		}
	} else if !cache.Present() {
		found.Err = "agent.json names no usable source, and there is no cached copy"
	}
	found.AgentID, found.Blobstore = effective.Settings.AgentID, effective.Blobstore.Provider
	found.PlainPassword = settings.IsPlaintextPassword(effective.Settings.Env.Bosh.Password)
	for _, name := range slices.Sorted(maps.Keys(effective.Settings.Networks)) {
		n := effective.Settings.Networks[name]
		if !n.DHCP() && !n.VIP() && n.IP != "" {
			found.Addresses = append(found.Addresses, OfNetwork{name, n.IP})
		}
		if n.Gateway != "" && n.DefaultFor("gateway") {
			found.Gateways = append(found.Gateways, OfNetwork{name, n.Gateway})
		}
		for _, server := range n.DNS {
			found.DNS = append(found.DNS, OfNetwork{name, server})
		}
	}
	return effective
}

// settingsFiles checks each file of the settings store.
func settingsFiles(dirs vcap.Dirs) (files []SettingsFile) {
	kinds := []struct {
		path  func(vcap.Place) string
		check func([]byte) error
	}{
		{vcap.Place.Settings, func(data []byte) error {
			_, rep := settings.Decode("settings", secret.NewJSON(data))
			return rep.Err()
		}},
		{vcap.Place.UpdateSettings, func(data []byte) error {
			_, rep := settings.DecodeUpdate(settings.UpdateName, secret.NewJSON(data))
			return rep.Err()
		}},
		{vcap.Place.DiskHints, func(data []byte) error {
			_, rep := settings.DecodeHints(secret.NewJSON(data))
			return rep.Err()
		}},
	}
	for _, place := range dirs.Places() {
		for _, kind := range kinds {
			path := kind.path(place)
			info, err := os.Stat(path)
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			f := SettingsFile{Path: path}
			if err == nil {
				f.Modified = info.ModTime()
				var data []byte
				if data, err = os.ReadFile(path); err == nil {
					err = kind.check(data)
				}
			}
			if err != nil {
				f.Damage = err.Error()
			}
			files = append(files, f)
		}
	}
	for _, path := range store.CorruptFiles(dirs) {
		f := SettingsFile{Path: path, Aside: true}
		if info, err := os.Stat(path); err == nil {
			f.Modified = info.ModTime()
		}
		files = append(files, f)
	}
	return files
}

// Identity describes the agent's certificate, its key and the CA that it trusts.
type Identity struct {
	// Needed is false if the bus does not ask for a client certificate.
	Needed       bool          `json:"needed"`
	Certificates []Certificate `json:"certificates"`
	// KeyErr is set if certificate and key do not match, and ChainErr if the CA has not signed the certificate.
	KeyErr   string `json:"key_error,omitempty"`
	ChainErr string `json:"chain_error,omitempty"`
}

// Certificate summarizes a certificate for the report.
type Certificate struct {
	Role      string    `json:"role"` // RoleClient or RoleAuthority
	Name      string    `json:"name"` // common name
	NotBefore time.Time `json:"not_before"`
	NotAfter  time.Time `json:"not_after"`
}

// Roles of certificates.
const (
	RoleClient    = "bus client"
	RoleAuthority = "bus CA"
)

func identity(e settings.Effective) (found Identity) {
	cert := e.Bus.Cert
	if cert.Empty() {
		return found
	}
	found.Needed = true
	client, authority := certificates(cert.Certificate), certificates(cert.CA)
	for role, list := range map[string][]*x509.Certificate{RoleClient: client, RoleAuthority: authority} {
		for _, c := range list {
			found.Certificates = append(found.Certificates, Certificate{Role: role, Name: c.Subject.CommonName,
				NotBefore: c.NotBefore, NotAfter: c.NotAfter})
		}
	}
	if _, err := tls.X509KeyPair([]byte(cert.Certificate), []byte(cert.PrivateKey.Reveal())); err != nil {
		found.KeyErr = err.Error()
		return found
	}
	roots, between := x509.NewCertPool(), x509.NewCertPool()
	for _, c := range authority {
		roots.AddCert(c)
	}
	for _, c := range client[1:] {
		between.AddCert(c)
	}
	// Validity is another question: the chain is looked at as of the certificate's own time.
	_, err := client[0].Verify(x509.VerifyOptions{Roots: roots, Intermediates: between,
		CurrentTime: client[0].NotBefore.Add(time.Second), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
	if err != nil && len(authority) > 0 {
		found.ChainErr = err.Error()
	}
	return found
}

// certificates parses PEM and skips everything that is not a certificate.
func certificates(text string) (found []*x509.Certificate) {
	for rest := []byte(text); ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			return found
		}
		if cert, err := x509.ParseCertificate(block.Bytes); err == nil && block.Type == "CERTIFICATE" {
			found = append(found, cert)
		}
	}
}
