package settings

import "cambium/internal/secret"

// Origin tells which member of which document an effective value came from.
type Origin struct {
	Path     string // such as "env.bosh.mbus.urls"; empty when nothing gave the value
	Document string // such as "HTTP http://169.254.169.254/latest/user-data"
}

// String formats the origin for Explain.
func (o Origin) String() string {
	switch {
	case o.Path == "":
		return "default"
	case o.Document == "" || o.Document == UpdateName:
		return o.Path
	}
	return o.Path + " (" + o.Document + ")"
}

type origins struct {
	urls, cert, blobstore, ntp, trustedCerts, associations Origin
}

// Merge combines a settings document with updates. The result shares their slices, maps and pointers. There is one rule
// for each value:
//
//  1. Bus URLs: the first of update_settings mbus.urls, env.bosh.mbus.urls and the root's mbus
//     that is not empty. The lists are never joined.
//  2. Bus certificates: those of update_settings if its mbus.cert.ca is not empty, otherwise
//     those of env.bosh.mbus.cert. CA, certificate and key are taken together.
//  3. Blobstore: the first member of update_settings blobstores, else of env.bosh.blobstores,
//     else the root's blobstore. An empty list does not count.
//  4. Time servers: env.bosh.ntp if present, even if empty; else the root's ntp.
//  5. Trusted certificates and disk associations: update_settings only.
//  6. Everything else comes from the settings document.
func Merge(s Settings, u Update) Effective {
	e := Effective{Settings: s, TrustedCerts: u.TrustedCerts, Associations: u.Associations}
	o := &e.origins
	bosh := e.Settings.Env.Bosh

	switch {
	case len(u.Mbus.URLs) > 0:
		e.Bus.URLs, o.urls = u.Mbus.URLs, updateOrigin("mbus.urls")
	case len(bosh.Mbus.URLs) > 0:
		e.Bus.URLs, o.urls = bosh.Mbus.URLs, s.origin("env.bosh.mbus.urls")
	case !s.Mbus.Empty():
		e.Bus.URLs, o.urls = []secret.URL{s.Mbus}, s.origin("mbus")
	}
	switch {
	case u.Mbus.Cert.CA != "":
		e.Bus.Cert, o.cert = u.Mbus.Cert, updateOrigin("mbus.cert")
	case !bosh.Mbus.Cert.Empty():
		e.Bus.Cert, o.cert = bosh.Mbus.Cert, s.origin("env.bosh.mbus.cert")
	}
	switch {
	case len(u.Blobstores) > 0:
		e.Blobstore, o.blobstore = u.Blobstores[0], updateOrigin("blobstores[0]")
	case len(bosh.Blobstores) > 0:
		e.Blobstore, o.blobstore = bosh.Blobstores[0], s.origin("env.bosh.blobstores[0]")
	case s.Blobstore.Provider != "" || !s.Blobstore.Options.Empty():
		e.Blobstore, o.blobstore = s.Blobstore, s.origin("blobstore")
	}
	switch {
	case bosh.NTP != nil:
		e.NTP, o.ntp = bosh.NTP, s.origin("env.bosh.ntp")
	case s.NTP != nil:
		e.NTP, o.ntp = s.NTP, s.origin("ntp")
	}
	if u.TrustedCerts != "" {
		o.trustedCerts = updateOrigin("trusted_certs")
	}
	if len(u.Associations) > 0 {
		o.associations = updateOrigin("disk_associations")
	}
	return e
}

func updateOrigin(path string) Origin {
	return Origin{Path: UpdateName + "." + path, Document: UpdateName}
}

func (s Settings) origin(path string) Origin {
	return Origin{Path: path, Document: s.name}
}
