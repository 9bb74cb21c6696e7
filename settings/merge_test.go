package settings

import (
	"fmt"
	"strings"
	"testing"

	"cambium/internal/secret"
)

func decodeUpdate(t *testing.T, document string) Update {
	t.Helper()
	u, rep := DecodeUpdate("update", secret.NewJSON([]byte(document)))
	if rep.Failed() {
		t.Fatal(rep)
	}
	return u
}

func TestPrecedence(t *testing.T) {
	const cert = `{"ca":"%[1]s-ca","certificate":"%[1]s-c","private_key":"%[1]s-k"}`
	root := `"mbus":"nats://root","blobstore":{"provider":"root"},"ntp":["root"]`
	env := `"env":{"bosh":{"mbus":{"urls":["nats://env1","nats://env2"],"cert":` + fmt.Sprintf(cert,
		"env") + `},"blobstores":[{"provider":"env"},{"provider":"second"}],"ntp":["env"]}}`
	upd := `{"mbus":{"urls":["nats://update"],"cert":` + fmt.Sprintf(cert,
		"update") + `},"blobstores":[{"provider":"update"}],"trusted_certs":"T","disk_associations":[{"name":"n","cid":"c"}]}`
	for name, c := range map[string]struct{ settings, update, want string }{
		"nothing":             {``, `{}`, `[]    []`},
		"root":                {root, `{}`, `[nats://root]  root  [root]`},
		"env over root":       {root + "," + env, `{}`, `[nats://env1 nats://env2] env-k env  [env]`},
		"update over env":     {root + "," + env, upd, `[nats://update] update-k update T [env]`},
		"update over nothing": {``, upd, `[nats://update] update-k update T []`},
		"empty lists are none": {root + `,"env":{"bosh":{"mbus":{"urls":[]},"blobstores":[]}}`,
			`{"mbus":{"urls":[]},"blobstores":[]}`, `[nats://root]  root  [root]`},
		"explicit empty ntp": {root + `,"env":{"bosh":{"ntp":[]}}`, `{}`, `[nats://root]  root  []`},
		"null ntp":           {root + `,"env":{"bosh":{"ntp":null}}`, `{}`, `[nats://root]  root  [root]`},
		"cert without ca": {env, `{"mbus":{"urls":["nats://update"],"cert":{"certificate":"c","private_key":"k"}}}`,
			`[nats://update] env-k env  [env]`},
		"cert without urls": {env, `{"mbus":{"cert":` + fmt.Sprintf(cert, "update") + `}}`,
			`[nats://env1 nats://env2] update-k env  [env]`},
	} {
		t.Run(name, func(t *testing.T) {
			document := `{"agent_id":"a"`
			if c.settings != "" {
				document += "," + c.settings
			}
			e := Merge(decode(t, document+"}"), decodeUpdate(t, c.update))
			got := fmt.Sprintf("%v %s %s %s %v", e.Bus.URLs, e.Bus.Cert.PrivateKey.Reveal(), e.Blobstore.Provider,
				e.TrustedCerts, e.NTP)
			if got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

func TestExplainNamesTheOrigin(t *testing.T) {
	s, rep := Decode("HTTP http://169.254.169.254/latest/user-data", secret.NewJSON([]byte(`{"agent_id":"a","mbus":"nats://r","vm":{"Name":"v"},
		"env":{"bosh":{"mbus":{"urls":["nats://nats:pw@10.0.0.6:4222"],"cert":{"ca":"x","private_key":"y"}},"swap_size":0,"ntp":[]}},
		"networks":{"n-1":{"ip":"10.0.0.1","netmask":"255.0.0.0","use_dhcp":true}},
		"disks":{"persistent":{"vol-1":{"path":"/dev/x","lun":5}},"raw_ephemeral":[{"path":"/dev/y"}],"ephemeral":"/dev/z"}}`)))
	if rep.Failed() {
		t.Fatal(rep)
	}
	e := Merge(s, decodeUpdate(t, `{"blobstores":[{"provider":"dav","options":{"password":"pw"}}],"trusted_certs":"pw","disk_associations":[{"name":"n","cid":"c"}]}`))
	var lines []string
	for _, l := range e.Explain() {
		lines = append(lines, l.String())
	}
	const from = " (HTTP http://169.254.169.254/latest/user-data)"
	want := []string{
		"agent_id = a   from agent_id" + from,
		"mbus.urls[0] = nats://***@10.0.0.6:4222   from env.bosh.mbus.urls" + from,
		"mbus.cert.ca = *** (no PEM certificate)   from env.bosh.mbus.cert" + from,
		"mbus.cert.certificate = (none)   from env.bosh.mbus.cert" + from,
		"mbus.cert.private_key = ***   from env.bosh.mbus.cert" + from,
		"blobstore.provider = dav   from update_settings.blobstores[0]",
		"blobstore.options = {***}   from update_settings.blobstores[0]",
		"ntp = (none)   from env.bosh.ntp" + from,
		"trusted_certs = *** (no PEM certificate)   from update_settings.trusted_certs",
		"disk_associations[0] = n → c   from update_settings.disk_associations",
		"disks.ephemeral = /dev/z   from disks.ephemeral" + from,
		`disks.persistent["vol-1"].path = /dev/x   from disks.persistent["vol-1"].path` + from,
		`disks.persistent["vol-1"].lun = 5   from disks.persistent["vol-1"].lun` + from,
		"disks.raw_ephemeral[0].Path = /dev/y   from disks.raw_ephemeral" + from,
		"env.bosh.swap_size = 0   from env.bosh.swap_size" + from,
		"env.bosh.parallel = 5   from default",
		`networks["n-1"].ip = 10.0.0.1   from networks["n-1"].ip` + from,
		`networks["n-1"].netmask = 255.0.0.0   from networks["n-1"].netmask` + from,
		`networks["n-1"].use_dhcp = true   from networks["n-1"].use_dhcp` + from,
		"vm.name = v   from vm.name" + from,
	}
	if got := strings.Join(lines, "\n"); got != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", got, strings.Join(want, "\n"))
	}
}

func TestUpdatesOverUpdates(t *testing.T) {
	stored := decodeUpdate(t, `{"mbus":{"urls":["nats://a"],"cert":{"ca":"A"}},"blobstores":[{"provider":"dav","options":{"x":1,"y":2}}],"trusted_certs":"T","disk_associations":[{"name":"n","cid":"c"}],"other":{"kept":1}}`)
	for name, c := range map[string]struct {
		newer string
		want  Changes
		state string // urls, ca, blobstores, certs, associations
	}{
		"nothing": {`{}`, Changes{}, "[nats://a] A 1 T 1"},
		"nulls": {`{"mbus":null,"blobstores":null,"trusted_certs":null,"disk_associations":null}`,
			Changes{}, "[nats://a] A 1 T 1"},
		"the same":                 {`{"mbus":{"urls":["nats://a"],"cert":{"ca":"A"}},"blobstores":[{"options":{"y": 2, "x": 1},"provider":"dav"}],"trusted_certs":"T"}`, Changes{}, "[nats://a] A 1 T 1"},
		"empty certs clear":        {`{"trusted_certs":""}`, Changes{TrustedCerts: true}, "[nats://a] A 1  1"},
		"empty associations clear": {`{"disk_associations":[]}`, Changes{Associations: true}, "[nats://a] A 1 T 0"},
		"empty blobstores clear":   {`{"blobstores":[]}`, Changes{Blobstores: true}, "[nats://a] A 0 T 1"},
		"an empty bus keeps": {`{"mbus":{"cert":{"ca":"","certificate":"","private_key":""},"urls":null}}`, Changes{},
			"[nats://a] A 1 T 1"},
		"a bus replaces as a whole": {`{"mbus":{"urls":["nats://b"]}}`, Changes{Mbus: true}, "[nats://b]  1 T 1"},
		"other options": {`{"blobstores":[{"provider":"dav","options":{"x":1,"y":3}}]}`,
			Changes{Blobstores: true}, "[nats://a] A 1 T 1"},
	} {
		t.Run(name, func(t *testing.T) {
			next, changed := stored.Apply(decodeUpdate(t, c.newer))
			got := fmt.Sprintf("%v %s %d %s %d", next.Mbus.URLs, next.Mbus.Cert.CA, len(next.Blobstores), next.TrustedCerts,
				len(next.Associations))
			if changed != c.want || got != c.state {
				t.Errorf("got %+v and %s, want %+v and %s", changed, got, c.want, c.state)
			}
			if !strings.Contains(string(next.Encode().Reveal()), `"other":{"kept":1}`) {
				t.Errorf("the unknown member was lost: %s", next.Encode().Reveal())
			}
			repeated, changed := next.Apply(decodeUpdate(t, c.newer))
			if changed.Any() || string(repeated.Encode().Reveal()) != string(next.Encode().Reveal()) {
				t.Errorf("applied twice it changes %+v", changed)
			}
		})
	}
}
