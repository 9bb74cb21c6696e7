package settings

import (
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"strings"

	"cambium/internal/jsondoc"
	"cambium/internal/secret"
)

// Line is an effective value, without secrets, and its origin.
type Line struct {
	Path   string
	Value  string
	Origin Origin
}

// MarshalJSON encodes the line as an object with path, value, from and document.
func (l Line) MarshalJSON() ([]byte, error) {
	return json.Marshal(
		map[string]string{"path": l.Path, "value": l.Value, "from": l.Origin.Path, "document": l.Origin.Document})
}

// String formats the line for people.
func (l Line) String() string { return l.Path + " = " + l.Value + "   from " + l.Origin.String() }

// Explain lists every effective value that is set: first the merged ones, then the rest of the settings in their order.
func (e Effective) Explain() (lines []Line) {
	add := func(o Origin, path, value string) { lines = append(lines, Line{Path: path, Value: value, Origin: o}) }
	s, o := e.Settings, e.origins
	add(s.origin("agent_id"), "agent_id", s.AgentID)
	for i, u := range e.Bus.URLs {
		add(o.urls, fmt.Sprintf("mbus.urls[%d]", i), u.String())
	}
	if !e.Bus.Cert.Empty() {
		add(o.cert, "mbus.cert.ca", certificates(e.Bus.Cert.CA))
		add(o.cert, "mbus.cert.certificate", certificates(e.Bus.Cert.Certificate))
		add(o.cert, "mbus.cert.private_key", shown(e.Bus.Cert.PrivateKey.String()))
	}
	if o.blobstore.Path != "" {
		add(o.blobstore, "blobstore.provider", shown(e.Blobstore.Provider))
		add(o.blobstore, "blobstore.options", shown(e.Blobstore.Options.String()))
	}
	for i, server := range e.NTP {
		add(o.ntp, fmt.Sprintf("ntp[%d]", i), server)
	}
	if len(e.NTP) == 0 && o.ntp.Path != "" {
		add(o.ntp, "ntp", "(none)")
	}
	if e.TrustedCerts != "" {
		add(o.trustedCerts, "trusted_certs", certificates(e.TrustedCerts))
	}
	for i, a := range e.Associations {
		add(o.associations, fmt.Sprintf("disk_associations[%d]", i), a.Name+" → "+a.CID)
	}
	document := jsondoc.Read(s.name, s.document.Reveal())
	for _, v := range jsondoc.Read("", s.Redacted()).Values() {
		if value := scalar(v.Raw); value != "" && !merged(v.Path) {
			add(s.provenance(document, v.Path), v.Path, value)
		}
	}
	return lines
}

// merged reports whether Merge has chosen the value of a member; Explain lists the result instead.
func merged(path string) bool {
	for _, p := range []string{"agent_id", "mbus", "blobstore", "ntp", "env.bosh.mbus", "env.bosh.blobstores",
		"env.bosh.ntp"} {
		if rest, ok := strings.CutPrefix(path, p); ok && (rest == "" || rest[0] == '.' || rest[0] == '[') {
			return true
		}
	}
	return false
}

// scalar formats a value. It returns "" for what means the same as an absent member: an empty string, null or false.
func scalar(raw string) string {
	switch jsondoc.KindOf(raw) {
	case jsondoc.String:
		var text string
		if json.Unmarshal([]byte(raw), &text) != nil || text == "" {
			return ""
		}
		return shown(text)
	case jsondoc.Number:
		return raw
	case jsondoc.Bool:
		if raw[0] == 't' {
			return "true"
		}
	}
	return ""
}

// provenance returns the origin of a member of the document, or the default's if the document does not have it.
func (s Settings) provenance(document *jsondoc.Document, path string) Origin {
	if strings.HasPrefix(path, "disks.raw_ephemeral") {
		return s.origin("disks.raw_ephemeral") // its members have other names in the document
	}
	if v, ok := document.At(path); !ok || jsondoc.KindOf(v.Raw) == jsondoc.Null {
		return Origin{}
	}
	return s.origin(path)
}

func shown(text string) string {
	if text == "" {
		return "(none)"
	}
	if strings.ContainsAny(text, "\n\r\t") {
		return fmt.Sprintf("%q", text)
	}
	return text
}

// certificates summarizes a bundle: the number of certificates, and the subject and expiry of the first.
func certificates(bundle string) string {
	if bundle == "" {
		return "(none)"
	}
	count, first := 0, ""
	for rest := []byte(bundle); ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			continue
		}
		if count++; count > 1 {
			continue
		}
		if c, err := x509.ParseCertificate(block.Bytes); err == nil {
			first = fmt.Sprintf(", first is %q until %s", c.Subject.String(), c.NotAfter.UTC().Format("2006-01-02"))
		}
	}
	switch count {
	case 0:
		return secret.Redacted + " (no PEM certificate)"
	case 1:
		return "1 certificate" + first
	}
	return fmt.Sprintf("%d certificates%s", count, first)
}
