package settings

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"cambium/internal/secret"
)

func seed(f *testing.F, dir string, more ...string) {
	f.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil || len(files) == 0 {
		f.Fatal(files, err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	for _, m := range more {
		f.Add([]byte(m))
	}
}

// FuzzDecode: no input from a source causes a panic, and accepted input survives the cache unchanged, in a form that
// upstream's types accept.
func FuzzDecode(f *testing.F) {
	// Short documents, because a change in the middle of a long one rarely leaves it a document.
	seed(f, "testdata/settings", `{`, `null`,
		`{"agent_id":"a","disks":{"persistent":{"x":{"lun":1e400}}}}`,
		`{"agent_id":"a","disks":{"persistent":{"x":{"iscsi_settings":{"password":1,"other":[]}}},`+
			`"ephemeral":{"id":null,"z":1}}}`,
		`{"agent_id":"a","disks":{"raw_ephemeral":[{"ID":"x","volume_id":2},"s",3,null],"system":{"path":1}}}`,
		`{"agent_id":"a","env":{"bosh":{"parallel":1e30,"swap_size":1e2}}}`,
		`{"agent_id":"a","env":{"bosh":{"blobstores":[{"provider":"p","options":{"a":[1]},"x":1},null],"ntp":[]}}}`,
		`{"agent_id":"a","env":{"bosh":{"mbus":{"urls":["nats://h",null],"cert":{"ca":"c","more":1}},`+
			`"agent":{"settings":{"tmpfs":true,"x":2}}}}}`,
		`{"agent_id":"a","networks":{"":{"prefix":1.0,"routes":[{"Gateway":"g"}]},"B":null,"b":{"mac":"AA","dns":[""]}}}`,
		`{"AGENT_ID":"a","agent_id":"b","x":1,"X":2,"x":3,"vm":{"NAME":"n","name":null}}`)
	f.Fuzz(func(t *testing.T, data []byte) {
		s, rep := Decode("doc", secret.NewJSON(data))
		Validate("doc", secret.NewJSON(data))
		if rep.Failed() {
			return
		}
		Merge(s, Update{}).Explain()
		if !json.Valid(s.Redacted()) {
			t.Fatalf("redacted copy is not JSON: %s", s.Redacted())
		}
		cached := s.Encode()
		var u upstream
		if err := json.Unmarshal(cached.Reveal(), &u); err != nil {
			t.Fatalf("upstream cannot read %s: %v", cached.Reveal(), err)
		}
		for cid, disk := range u.Disks.Persistent {
			onlyStrings(t, cid, disk)
		}
		decoded, rep := Decode("cached", cached)
		if rep.Failed() {
			t.Fatalf("cached copy %s: %v", cached.Reveal(), rep)
		}
		if !reflect.DeepEqual(withoutForm(decoded), withoutForm(s)) {
			t.Fatalf("%s\nbecame\n%+v\nwant\n%+v", cached.Reveal(), withoutForm(decoded), withoutForm(s))
		}
		if string(decoded.Encode().Reveal()) != string(cached.Reveal()) {
			t.Fatalf("encoding is not stable:\n%s\n%s", cached.Reveal(), decoded.Encode().Reveal())
		}
	})
}

// FuzzDecodeUpdate: no panic, and applying an accepted update twice changes nothing.
func FuzzDecodeUpdate(f *testing.F) {
	seed(f, "testdata/update", `{`, `{"mbus":[]}`, `{"disk_associations":[null]}`)
	f.Fuzz(func(t *testing.T, data []byte) {
		u, rep := DecodeUpdate("update", secret.NewJSON(data))
		if rep.Failed() {
			return
		}
		stored := Update{}.Apply(u)
		decoded, rep := DecodeUpdate("stored", stored.Encode())
		if rep.Failed() {
			t.Fatalf("stored update %s: %v", stored.Encode().Reveal(), rep)
		}
		next := decoded.Apply(u)
		if string(next.Encode().Reveal()) != string(stored.Encode().Reveal()) {
			t.Fatalf("applied again it changes:\n%s\n%s", stored.Encode().Reveal(), next.Encode().Reveal())
		}
		Merge(Settings{}, next).Explain()
	})
}

// FuzzDisks decodes disk hints from the Director, and the content of the hints file.
func FuzzDisks(f *testing.F) {
	for _, s := range []string{`"/dev/sdc"`, `{"lun":1,"host_device_id":"{f8b3}"}`, `{"path":null}`,
		`{"iscsi_settings":{"target":1}}`, `3`,
		`{"d":{"ID":"d","Lun":"1","ISCSISettings":{"Password":"p"},"MountOptions":["a"]}}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if h, err := DecodeHint(secret.NewJSON(data)); err == nil {
			records := map[string]PersistentDisk{"cid": Settings{}.Disk("cid", h)}
			got, rep := DecodeHints(EncodeHints(records))
			// The record form cannot tell a bare string, nor iSCSI settings that are all empty.
			h.Bare = false
			if h.ISCSI != nil && *h.ISCSI == (ISCSI{}) {
				h.ISCSI = nil
			}
			if rep.Failed() || !reflect.DeepEqual(got["cid"].Hint, h) {
				t.Fatalf("%+v became %+v, %v", h, got["cid"].Hint, rep)
			}
		}
		if disks, rep := DecodeHints(secret.NewJSON(data)); !rep.Failed() {
			decoded, rep := DecodeHints(EncodeHints(disks))
			if rep.Failed() || !reflect.DeepEqual(decoded, disks) {
				t.Fatalf("%+v became %+v, %v", disks, decoded, rep)
			}
		}
	})
}
