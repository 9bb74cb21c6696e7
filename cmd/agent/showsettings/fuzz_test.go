package showsettings

import (
	"testing"

	"cambium/internal/secret"
	"cambium/settings"
)

// FuzzQuery asks for parts of any document by any path. Every value that is listed can be asked for.
func FuzzQuery(f *testing.F) {
	for path, document := range map[string]string{
		"agent_id":                `{"agent_id":"a","mbus":"nats://u:p@h:4222"}`,
		"mbus":                    `{"agent_id":"a","mbus":"nats://u:p@h:4222"}`,
		"env.bosh.mbus.urls[0]":   `{"agent_id":"a","env":{"bosh":{"mbus":{"urls":["nats://u:p@h"]}}}}`,
		`disks.persistent["d"]`:   `{"agent_id":"a","disks":{"persistent":{"d":{"path":"/dev/sdb","iscsi_settings":{"password":"p"}}}}}`,
		"blobstore.options":       `{"agent_id":"a","blobstore":{"provider":"dav","options":{"password":"p"}}}`,
		"networks.default.routes": `{"agent_id":"a","networks":{"default":{"routes":[{"gateway":"g"}]}}}`,
		"env.bosh.ntp":            `{"agent_id":"a","env":{"bosh":{"ntp":["a","b"]}}}`,
		"":                        `{"agent_id":"a"}`,
	} {
		f.Add([]byte(document), path)
	}
	f.Fuzz(func(t *testing.T, document []byte, path string) {
		s, rep := settings.Decode("document", secret.NewJSON(document))
		if rep.Failed() {
			return
		}
		a := Answer{Effective: settings.Merge(s, settings.Update{})}
		a.values(path)
		for _, line := range a.Effective.Explain() {
			if len(a.values(line.Path)) == 0 {
				t.Fatalf("%q is listed and not found", line.Path)
			}
		}
	})
}
