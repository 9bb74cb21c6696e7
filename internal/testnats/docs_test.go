package testnats

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"

	"cambium/internal/testca"
)

// TestClusterOfTheDocs has nats-server read the configuration and the file of users that docs/protocol.md shows.
func TestClusterOfTheDocs(t *testing.T) {
	page := string(must[[]byte](t)(os.ReadFile("../../docs/protocol.md")))
	_, section, _ := strings.Cut(page, "### A cluster of NATS servers")
	block := func(language string) []byte {
		_, after, ok := strings.Cut(section, "```"+language+"\n")
		text, _, closed := strings.Cut(after, "```")
		if !ok || !closed {
			t.Fatalf("docs/protocol.md has no block of %s in its section about clusters", language)
		}
		return []byte(text)
	}
	ca := must[*testca.CA](t)(testca.New("ca"))
	pair := must[testca.Pair](t)(ca.Issue(testca.Request{CommonName: testca.ServerName,
		Hosts: []string{"127.0.0.1"}, Peer: true}))
	dir := t.TempDir()
	t.Chdir(dir) // the files are named without one
	for name, data := range map[string][]byte{"nats.conf": block("text"), "auth.json": block("json"),
		"nats.crt": pair.Certificate, "nats.key": pair.PrivateKey, "ca.crt": ca.PEM} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	o := must[*server.Options](t)(server.ProcessConfigFile("nats.conf"))
	if len(o.Users) != 3 || o.Cluster.Name != "bosh" || len(o.Routes) != 3 || !o.TLSMap || o.Cluster.TLSConfig == nil {
		t.Errorf("%d users, cluster %q with %d routes", len(o.Users), o.Cluster.Name, len(o.Routes))
	}
	want := Agent(testca.AgentName("<id>"), "<id>")
	if got := o.Users[0]; got.Username != want.Username || !same(got.Permissions.Publish, want.Permissions.Publish) ||
		!same(got.Permissions.Subscribe, want.Permissions.Subscribe) {
		t.Errorf("the agent is %+v", got)
	}
}

func same(a, b *server.SubjectPermission) bool {
	return strings.Join(a.Allow, " ") == strings.Join(b.Allow, " ")
}
