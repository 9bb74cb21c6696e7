package settings

import (
	"bytes"
	"encoding/json"
	"slices"

	"cambium/internal/jsontree"
	"cambium/internal/report"
	"cambium/internal/secret"
)

// UpdateName is what updates are called in reports and explanations.
const UpdateName = "update_settings"

// DecodeUpdate reads the argument of update_settings or the content of update_settings.json.
// A null member counts as absent.
func DecodeUpdate(name string, raw secret.JSON) (Update, report.Report) {
	var (
		u   Update
		rep report.Report
	)
	root := jsontree.Parse(name, raw.Reveal(), &rep)
	if root.Kind() == jsontree.Absent {
		return u, rep
	}
	if root.Kind() != jsontree.Object {
		root.Expected("an object")
		return u, rep
	}
	u.document = &document{name: name, root: root}
	f := root.Fields()
	mbus := f.Get("mbus")
	u.Mbus, u.HasMbus = decodeBus(mbus), mbus.Present()
	if u.Mbus.Cert.CA == "" && !u.Mbus.Cert.Empty() {
		mbus.Warnf("the certificate has no effect without cert.ca")
	}
	blobstores := f.Get("blobstores")
	u.Blobstores, u.HasBlobstores = decodeBlobstores(blobstores), blobstores.Present()
	trusted := f.Get("trusted_certs")
	trusted.Text(&u.TrustedCerts)
	u.HasTrustedCerts = trusted.Present()
	associations := f.Get("disk_associations")
	u.HasAssociations = associations.Present()
	for _, item := range associations.Items() {
		u.Associations = append(u.Associations, decodeAssociation(item))
	}
	f.Done(jsontree.Tolerate)
	rep.Sort()
	return u, rep
}

func decodeAssociation(v jsontree.Value) (a DiskAssociation) {
	f := v.Fields()
	name, cid := f.Get("name"), f.Get("cid")
	name.Text(&a.Name)
	cid.Text(&a.CID)
	f.Done(jsontree.Tolerate)
	// The name becomes a file name below instance/disks.
	if a.Name == "" || a.Name == "." || a.Name == ".." || bytes.ContainsAny([]byte(a.Name), "/\x00") {
		name.Errorf("expected a name that can be a file name")
	}
	if a.CID == "" {
		cid.Errorf("missing; it says which disk is meant")
	}
	return a
}

// Changes tells which parts an update changed.
type Changes struct {
	Mbus         bool
	Blobstores   bool
	TrustedCerts bool
	Associations bool
}

// Any reports whether anything changed.
func (c Changes) Any() bool { return c != Changes{} }

// Apply lays a newer update over what earlier ones left and tells what changed.
//
//  1. A member that the newer update does not have keeps what was.
//  2. trusted_certs and disk_associations replace the earlier value, also when they are empty.
//  3. mbus replaces the earlier one as a whole, never member by member: URLs and certificates
//     belong together. One that is entirely empty keeps what was, as upstream does; without a
//     bus the agent could not be reached any more.
//  4. blobstores replaces the earlier list, also by an empty one, which puts the settings'
//     blobstore in force again.
//  5. Unknown members replace those of the same name.
func (u Update) Apply(newer Update) (Update, Changes) {
	next, c := u.clone(), Changes{}
	if newer.HasTrustedCerts {
		c.TrustedCerts = newer.TrustedCerts != u.TrustedCerts
		next.TrustedCerts, next.HasTrustedCerts = newer.TrustedCerts, true
	}
	if newer.HasAssociations {
		c.Associations = !slices.Equal(newer.Associations, u.Associations)
		next.Associations, next.HasAssociations = slices.Clone(newer.Associations), true
	}
	if newer.HasMbus && !newer.Mbus.empty() && !newer.Mbus.Equal(u.Mbus) {
		c.Mbus = true
		next.Mbus, next.HasMbus = newer.Mbus.clone(), true
	}
	if newer.HasBlobstores && (!u.HasBlobstores || !slices.EqualFunc(newer.Blobstores, u.Blobstores, Blobstore.Equal)) {
		c.Blobstores = true
		next.Blobstores, next.HasBlobstores = slices.Clone(newer.Blobstores), true
	}
	next.unknown = mergeUnknown(u.unknownMembers(), newer.unknownMembers())
	next.document = nil
	return next, c
}

// empty reports a bus without URL and without certificate.
func (b Bus) empty() bool { return len(b.URLs) == 0 && b.Cert.Empty() }

// Equal compares URLs and certificates.
func (b Bus) Equal(o Bus) bool {
	return b.Cert.Equal(o.Cert) && slices.EqualFunc(b.URLs, o.URLs, secret.URL.Equal)
}

// Equal compares two blobstores; the order of keys and white space do not count.
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

func (b Bus) clone() Bus {
	b.URLs = slices.Clone(b.URLs)
	return b
}

func (u Update) clone() Update {
	u.Mbus = u.Mbus.clone()
	u.Blobstores = slices.Clone(u.Blobstores)
	u.Associations = slices.Clone(u.Associations)
	return u
}

// Blank reports an update that never happened: nothing in it differs from no update at all.
func (u Update) Blank() bool {
	return u.Mbus.empty() && len(u.Blobstores) == 0 && u.TrustedCerts == "" && len(u.Associations) == 0 && len(u.unknownMembers()) == 0
}

// Encode writes update_settings.json, in clear.
func (u Update) Encode() secret.JSON {
	w := &writer{}
	fields := []field{
		always("blobstores", func() { w.blobstores(u.at("blobstores"), u.Blobstores) }),
		always("disk_associations", func() {
			list(w, u.Associations, func(a DiskAssociation) {
				w.object(jsontree.Value{},
					always("name", func() { w.text(a.Name) }),
					always("cid", func() { w.text(a.CID) }))
			})
		}),
		always("mbus", func() { w.bus(u.at("mbus"), u.Mbus) }),
		always("trusted_certs", func() { w.text(u.TrustedCerts) }),
	}
	for _, m := range u.unknownMembers() {
		fields = append(fields, always(m.key, func() { w.out.Write(m.raw.Reveal()) }))
	}
	w.object(jsontree.Value{}, fields...)
	return secret.NewJSON(w.out.Bytes())
}

func (u Update) at(key string) jsontree.Value {
	if u.document == nil {
		return jsontree.Value{}
	}
	return u.document.root.At(key)
}

// unknownMembers are those of the decoded document, or those that Apply collected.
func (u Update) unknownMembers() []unknownMember {
	if u.document == nil {
		return u.unknown
	}
	known := []field{{key: "blobstores"}, {key: "disk_associations"}, {key: "mbus"}, {key: "trusted_certs"}}
	return unknownMembers(u.document.root, known)
}

func mergeUnknown(older, newer []unknownMember) (all []unknownMember) {
	for _, m := range append(older[:len(older):len(older)], newer...) {
		replaced := false
		for i := range all {
			if all[i].key == m.key {
				all[i], replaced = m, true
			}
		}
		if !replaced {
			all = append(all, m)
		}
	}
	return all
}
