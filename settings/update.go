package settings

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"cambium/internal/jsondoc"
	"cambium/internal/report"
	"cambium/internal/secret"
)

// UpdateName identifies updates in reports and in Explain.
const UpdateName = "update_settings"

// DecodeUpdate parses the argument of update_settings or the content of update_settings.json. A null member counts as
// absent.
func DecodeUpdate(name string, raw secret.JSON) (Update, report.Report) {
	var u Update
	d, text := jsondoc.Decode(name, raw.Reveal(), &u, jsondoc.Tolerate,
		jsondoc.Rule{Path: "blobstores.*.options", Rewrite: object})
	_ = json.Unmarshal(text, &u.members) // reported if it is not an object
	maps.DeleteFunc(u.members, func(_ string, value secret.JSON) bool { return value.Empty() })
	u = Update{members: u.members}
	_ = json.Unmarshal(u.Encode().Reveal(), &u) // of duplicate keys, the last one counts
	checkURLs(d, "mbus.urls", u.Mbus.URLs)
	if u.Mbus.Cert.CA == "" && !u.Mbus.Cert.Empty() {
		d.Warnf("mbus", "the certificate has no effect without cert.ca")
	}
	for i, a := range u.Associations {
		at := "disk_associations" + jsondoc.Item(i)
		// The name becomes a file name below instance/disks.
		if a.Name == "" || a.Name == "." || a.Name == ".." || strings.ContainsAny(a.Name, "/\x00") {
			d.Errorf(at+".name", "expected a name that can be a file name")
		}
		if a.CID == "" {
			d.Errorf(at+".cid", "missing; it identifies the disk")
		}
	}
	return u, d.Findings()
}

// Has reports whether the update contains a member, even an empty one.
func (u Update) Has(key string) bool { _, there := u.members[key]; return there }

// Apply merges a newer update into the earlier ones.
//
//  1. An absent member keeps the earlier value.
//  2. trusted_certs and disk_associations replace the earlier value, even if they are empty.
//  3. mbus replaces the earlier value as a whole, since URLs and certificates belong together. An
//     empty mbus is ignored, as upstream does: without a bus the agent would be unreachable.
//  4. blobstores replaces the earlier list. After an empty list, the settings' blobstore is used
//     again.
//  5. Unknown members replace those of the same name.
func (u Update) Apply(newer Update) (next Update) {
	next = u
	next.members = maps.Clone(u.members)
	if next.members == nil {
		next.members = map[string]secret.JSON{}
	}
	for key, value := range newer.members {
		switch key {
		case "trusted_certs":
			next.TrustedCerts = newer.TrustedCerts
		case "disk_associations":
			next.Associations = newer.Associations
		case "mbus":
			if newer.Mbus.empty() {
				continue
			}
			next.Mbus = newer.Mbus
		case "blobstores":
			next.Blobstores = newer.Blobstores
		}
		next.members[key] = value
	}
	return next
}

// empty reports whether the bus has neither URLs nor certificates.
func (b Bus) empty() bool { return len(b.URLs) == 0 && b.Cert.Empty() }

// Equal reports whether URLs and certificates are the same.
func (b Bus) Equal(o Bus) bool {
	return b.Cert.Equal(o.Cert) && slices.EqualFunc(b.URLs, o.URLs, secret.URL.Equal)
}

// Equal reports whether two blobstores are the same. The order of keys and white space do not matter.
func (b Blobstore) Equal(o Blobstore) bool {
	return b.Provider == o.Provider && bytes.Equal(canonical(b.Options), canonical(o.Options))
}

func canonical(j secret.JSON) []byte {
	if j.Empty() {
		return nil
	}
	d := json.NewDecoder(bytes.NewReader(j.Reveal()))
	d.UseNumber()
	var tree any
	if err := d.Decode(&tree); err != nil {
		return j.Reveal()
	}
	out, err := json.Marshal(tree)
	if err != nil {
		return j.Reveal()
	}
	return out
}

// Blank reports whether the update has the same effect as no update.
func (u Update) Blank() bool {
	known := 0
	for _, key := range []string{"mbus", "blobstores", "trusted_certs", "disk_associations"} {
		if u.Has(key) {
			known++
		}
	}
	return known == len(u.members) &&
		u.Mbus.empty() && len(u.Blobstores) == 0 && u.TrustedCerts == "" && len(u.Associations) == 0
}

// Encode returns the content of update_settings.json, with secrets in clear.
func (u Update) Encode() secret.JSON {
	clear := map[string]json.RawMessage{}
	for key, value := range u.members {
		clear[key] = value.Reveal()
	}
	raw, _ := json.Marshal(clear) // JSON that was decoded
	return secret.NewJSON(raw)
}
