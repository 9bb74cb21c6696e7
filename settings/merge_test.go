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
	const document = `{"agent_id":"a","mbus":"nats://r","vm":{"Name":"v"},
		"env":{"bosh":{"mbus":{"urls":["nats://nats:pw@10.0.0.6:4222"],"cert":{"ca":"x","private_key":"y"}},
			"swap_size":0,"ntp":[]}},
		"networks":{"n-1":{"ip":"10.0.0.1","netmask":"255.0.0.0","use_dhcp":true}},
		"disks":{"persistent":{"vol-1":{"path":"/dev/x","lun":5}},"raw_ephemeral":[{"path":"/dev/y"}],
			"ephemeral":"/dev/z"}}`
	s, rep := Decode("HTTP http://169.254.169.254/latest/user-data", secret.NewJSON([]byte(document)))
	if rep.Failed() {
		t.Fatal(rep)
	}
	e := Merge(s, decodeUpdate(t, `{"blobstores":[{"provider":"dav","options":{"password":"pw"}}],`+
		`"trusted_certs":"pw","disk_associations":[{"name":"n","cid":"c"}]}`))
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
	stored := decodeUpdate(t, `{"mbus":{"urls":["nats://a"],"cert":{"ca":"A"}},`+
		`"blobstores":[{"provider":"dav","options":{"x":1,"y":2}}],"trusted_certs":"T",`+
		`"disk_associations":[{"name":"n","cid":"c"}],"other":{"kept":1}}`)
	for name, c := range map[string]struct {
		newer string
		state string // urls, ca, options of blobstores, certs, associations
	}{
		"nothing": {`{}`, `[nats://a] A {"x":1,"y":2} T 1`},
		"nulls": {`{"mbus":null,"blobstores":null,"trusted_certs":null,"disk_associations":null}`,
			`[nats://a] A {"x":1,"y":2} T 1`},
		"the same": {`{"mbus":{"urls":["nats://a"],"cert":{"ca":"A"}},` +
			`"blobstores":[{"options":{"y": 2, "x": 1},"provider":"dav"}],"trusted_certs":"T"}`,
			`[nats://a] A {"y":2,"x":1} T 1`},
		"empty certs clear":        {`{"trusted_certs":""}`, `[nats://a] A {"x":1,"y":2}  1`},
		"empty associations clear": {`{"disk_associations":[]}`, `[nats://a] A {"x":1,"y":2} T 0`},
		"empty blobstores clear":   {`{"blobstores":[]}`, `[nats://a] A  T 1`},
		"an empty bus keeps": {`{"mbus":{"cert":{"ca":"","certificate":"","private_key":""},"urls":null}}`,
			`[nats://a] A {"x":1,"y":2} T 1`},
		"a bus replaces as a whole": {`{"mbus":{"urls":["nats://b"]}}`, `[nats://b]  {"x":1,"y":2} T 1`},
		"other options": {`{"blobstores":[{"provider":"dav","options":{"x":1,"y":3}}]}`,
			`[nats://a] A {"x":1,"y":3} T 1`},
	} {
		t.Run(name, func(t *testing.T) {
			next := stored.Apply(decodeUpdate(t, c.newer))
			var options string
			for _, blobs := range next.Blobstores {
				options += string(blobs.Options.Reveal())
			}
			got := fmt.Sprintf("%v %s %s %s %d", next.Mbus.URLs, next.Mbus.Cert.CA, options, next.TrustedCerts,
				len(next.Associations))
			if got != c.state {
				t.Errorf("got %s, want %s", got, c.state)
			}
			if !strings.Contains(string(next.Encode().Reveal()), `"other":{"kept":1}`) {
				t.Errorf("the unknown member was lost: %s", next.Encode().Reveal())
			}
			repeated := next.Apply(decodeUpdate(t, c.newer)).Encode()
			if string(repeated.Reveal()) != string(next.Encode().Reveal()) {
				t.Errorf("applied twice it is %s", repeated.Reveal())
			}
		})
	}
}
