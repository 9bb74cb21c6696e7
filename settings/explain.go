package settings

import (
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"strings"

	"cambium/internal/jsontree"
	"cambium/internal/report"
	"cambium/internal/secret"
)

// Line is one effective value, without secrets, and where it came from.
type Line struct {
	Path   string
	Value  string
	Origin Origin
}

// MarshalJSON writes the line for machines.
func (l Line) MarshalJSON() ([]byte, error) {
	return json.Marshal(map[string]string{"path": l.Path, "value": l.Value, "from": l.Origin.Path, "document": l.Origin.Document})
}

// String prints the line for people.
func (l Line) String() string { return l.Path + " = " + l.Value + "   from " + l.Origin.String() }

// Explain lists every effective value that is set, merged ones first, then the rest of the
// settings document in its own order.
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
	var rep report.Report
	flatten(jsontree.Parse("", s.Redacted(), &rep), func(v jsontree.Value, value string) {
		path := v.Path()
		if merged(path) {
			return
		}
		add(s.provenance(v), path, value)
	})
	return lines
}

// merged reports members that Merge chose among and that are listed by their result.
func merged(path string) bool {
	for _, p := range []string{"agent_id", "mbus", "blobstore", "ntp", "env.bosh.mbus", "env.bosh.blobstores", "env.bosh.ntp"} {
		if rest, ok := strings.CutPrefix(path, p); ok && (rest == "" || rest[0] == '.' || rest[0] == '[') {
			return true
		}
	}
	return false
}

// flatten visits every scalar that differs from an absent member: no empty strings, null or false.
func flatten(v jsontree.Value, visit func(jsontree.Value, string)) {
	switch v.Kind() {
	case jsontree.Object:
		for _, member := range v.Fields().All() {
			flatten(member, visit)
		}
	case jsontree.List:
		for _, item := range v.Items() {
			flatten(item, visit)
		}
	case jsontree.String, jsontree.Number:
		if text := v.Node().Text; text != "" {
			visit(v, shown(text))
		}
	case jsontree.Bool:
		if v.Node().True {
			visit(v, "true")
		}
	}
}

// provenance is the document's member, or the default where the document has none.
func (s Settings) provenance(v jsontree.Value) Origin {
	path := v.Path()
	if strings.HasPrefix(path, "disks.raw_ephemeral") {
		return s.origin("disks.raw_ephemeral") // its members have other names in the document
	}
	at := s.root()
	for _, step := range v.Steps() {
		if at = at.Step(step); !at.Present() {
			return Origin{}
		}
		if at.Kind() != jsontree.Object && at.Kind() != jsontree.List {
			break // a bare string or number that the encoded form spells out
		}
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

// certificates describes a bundle for operators: count, first subject and its expiry.
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
