package settings

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"

	"cambium/internal/jsontree"
	"cambium/internal/secret"
)

// writer builds the documents that the store keeps. It is the one encoder that writes secrets
// in clear, and Redacted is the same encoder with them replaced.
type writer struct {
	out    bytes.Buffer
	redact bool
}

type field struct {
	key   string
	write func()
	// only, when false, leaves the member out.
	only bool
}

func always(key string, write func()) field { return field{key: key, write: write, only: true} }

// object writes the given members and behind them those of the original that none of the given
// keys names, as they came. A redacted document leaves the unknown ones out: they may be
// secret.
func (w *writer) object(original jsontree.Value, fields ...field) {
	w.out.WriteByte('{')
	first := true
	key := func(k string) {
		if !first {
			w.out.WriteByte(',')
		}
		first = false
		w.text(k)
		w.out.WriteByte(':')
	}
	for _, f := range fields {
		if f.only {
			key(f.key)
			f.write()
		}
	}
	if !w.redact {
		for _, m := range unknownMembers(original, fields) {
			key(m.key)
			w.out.Write(m.raw.Reveal())
		}
	}
	w.out.WriteByte('}')
}

// unknownMember holds its value as a secret: it may be one.
type unknownMember struct {
	key string
	raw secret.JSON
}

func unknownMembers(original jsontree.Value, fields []field) (kept []unknownMember) {
	if original.Kind() != jsontree.Object {
		return nil
	}
	at := map[string]int{}
members:
	for _, m := range original.Node().Members {
		for _, f := range fields {
			if strings.EqualFold(f.key, m.Key) {
				continue members
			}
		}
		var compact bytes.Buffer
		if json.Compact(&compact, original.Bytes(m.Value)) != nil {
			continue // the document was reported as unusable; its store copy must still parse
		}
		member := unknownMember{key: m.Key, raw: secret.NewJSON(compact.Bytes())}
		if i, duplicate := at[m.Key]; duplicate {
			kept[i] = member
			continue
		}
		at[m.Key] = len(kept)
		kept = append(kept, member)
	}
	return kept
}

func (w *writer) text(s string) {
	if needsNoEscape(s) {
		w.out.WriteByte('"')
		w.out.WriteString(s)
		w.out.WriteByte('"')
		return
	}
	quoted, err := json.Marshal(s)
	if err != nil { // not possible for a string
		quoted = []byte(`""`)
	}
	w.out.Write(quoted)
}

// needsNoEscape reports a text that stands in JSON as it is.
func needsNoEscape(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' {
			return false
		}
	}
	return true
}

func (w *writer) bool(b bool)      { w.out.WriteString(strconv.FormatBool(b)) }
func (w *writer) literal(s string) { w.out.WriteString(s) }

func (w *writer) secret(s secret.String) {
	if w.redact {
		w.text(s.String())
		return
	}
	w.text(s.Reveal())
}

func (w *writer) url(u secret.URL) {
	if w.redact {
		w.text(u.String())
		return
	}
	w.text(u.Reveal())
}

// certificate is described in a redacted document: a bundle may hold its key as well.
func (w *writer) certificate(bundle string) {
	if w.redact && bundle != "" {
		bundle = certificates(bundle)
	}
	w.text(bundle)
}

// list writes null for a nil list, as encoding/json does and upstream's files have it.
func list[T any](w *writer, items []T, write func(T)) {
	if items == nil {
		w.literal("null")
		return
	}
	w.out.WriteByte('[')
	for i, item := range items {
		if i > 0 {
			w.out.WriteByte(',')
		}
		write(item)
	}
	w.out.WriteByte(']')
}

func (w *writer) strings(items []string) { list(w, items, w.text) }

// Encode writes the document in the form of the cached settings.json: every member upstream
// knows with its zero value, the forms upstream can read, and unknown members as they came.
// Updates are not part of it. The result is in clear.
func (s Settings) Encode() secret.JSON { return secret.NewJSON(s.encode(false)) }

// Redacted writes the same document without secrets and without unknown members.
func (s Settings) Redacted() json.RawMessage { return s.encode(true) }

func (s Settings) encode(redact bool) []byte {
	w := &writer{redact: redact}
	root := s.root()
	w.object(root,
		always("agent_id", func() { w.text(s.AgentID) }),
		always("blobstore", func() { w.blobstore(root.At("blobstore"), s.Blobstore) }),
		always("disks", func() { w.disks(root.At("disks"), s.Disks) }),
		always("env", func() { w.env(root.At("env"), s.Env) }),
		always("networks", func() { w.networks(root.At("networks"), s.Networks) }),
		always("ntp", func() { w.strings(s.NTP) }),
		always("mbus", func() { w.url(s.Mbus) }),
		always("vm", func() {
			w.object(root.At("vm"), always("name", func() { w.text(s.VM.Name) }))
		}),
	)
	return w.out.Bytes()
}

func (s Settings) root() jsontree.Value {
	if s.document == nil {
		return jsontree.Value{}
	}
	return s.document.root
}

func (w *writer) blobstore(original jsontree.Value, b Blobstore) {
	w.object(original,
		always("provider", func() { w.text(b.Provider) }),
		always("options", func() {
			switch {
			case b.Options.Empty():
				w.literal("null")
			case w.redact:
				w.text(secret.Redacted)
			default:
				w.out.Write(b.Options.Reveal())
			}
		}),
	)
}

func (w *writer) blobstores(original jsontree.Value, all []Blobstore) {
	i := 0
	list(w, all, func(b Blobstore) {
		w.blobstore(original.Item(i), b)
		i++
	})
}

func (w *writer) bus(original jsontree.Value, b Bus) {
	w.object(original,
		always("cert", func() {
			w.object(original.At("cert"),
				always("ca", func() { w.certificate(b.Cert.CA) }),
				always("private_key", func() { w.secret(b.Cert.PrivateKey) }),
				always("certificate", func() { w.certificate(b.Cert.Certificate) }))
		}),
		always("urls", func() { list(w, b.URLs, w.url) }),
	)
}

func (w *writer) networks(original jsontree.Value, networks map[string]Network) {
	if networks == nil {
		w.literal("null")
		return
	}
	var fields []field
	for _, name := range sortedKeys(networks) {
		n := networks[name]
		fields = append(fields, always(name, func() { w.network(original.Member(name), n) }))
	}
	w.object(jsontree.Value{}, fields...)
}

func (w *writer) network(original jsontree.Value, n Network) {
	w.object(original,
		always("type", func() { w.text(n.Type) }),
		always("ip", func() { w.text(n.IP) }),
		always("netmask", func() { w.text(n.Netmask) }),
		always("gateway", func() { w.text(n.Gateway) }),
		always("prefix", func() { w.text(n.Prefix) }),
		always("resolved", func() { w.bool(n.Resolved) }),
		always("use_dhcp", func() { w.bool(n.UseDHCP) }),
		always("default", func() { w.strings(n.Default) }),
		always("dns", func() { w.strings(n.DNS) }),
		always("mac", func() { w.text(n.MAC) }),
		always("preconfigured", func() { w.bool(n.Preconfigured) }),
		field{key: "alias", write: func() { w.text(n.Alias) }, only: n.Alias != ""},
		field{key: "routes", write: func() {
			list(w, n.Routes, func(r Route) {
				w.object(jsontree.Value{},
					always("Destination", func() { w.text(r.Destination) }),
					always("Gateway", func() { w.text(r.Gateway) }),
					always("Netmask", func() { w.text(r.Netmask) }))
			})
		}, only: len(n.Routes) > 0},
	)
}
