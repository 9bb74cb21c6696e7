package scripts

import (
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"encoding/xml"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestMetalink reads the metalink as the builder of Ubuntu stemcells does: it looks up a file by its name, fetches it
// from the URL and checks size and hashes.
func TestMetalink(t *testing.T) {
	content := []byte("agent")
	path := filepath.Join(t.TempDir(), "bosh-agent-1.2.3-linux-amd64")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("./metalink", "1.2.3", "https://files.example.com/1.2.3/", path).Output()
	if err != nil {
		t.Fatal(err)
	}
	var link struct {
		XMLName xml.Name `xml:"urn:ietf:params:xml:ns:metalink metalink"`
		Files   []struct {
			Name   string `xml:"name,attr"`
			Hashes []struct {
				Type  string `xml:"type,attr"`
				Value string `xml:",chardata"`
			} `xml:"hash"`
			Size    int    `xml:"size"`
			URL     string `xml:"url"`
			Version string `xml:"version"`
		} `xml:"file"`
	}
	if err := xml.Unmarshal(out, &link); err != nil || len(link.Files) != 1 {
		t.Fatalf("%v: %s", err, out)
	}
	f := link.Files[0]
	if f.Name != "bosh-agent-1.2.3-linux-amd64" || f.Size != 5 || f.Version != "1.2.3" ||
		f.URL != "https://files.example.com/1.2.3/"+f.Name {
		t.Errorf("got %+v", f)
	}
	one, two, five := sha1.Sum(content), sha256.Sum256(content), sha512.Sum512(content)
	want := map[string]string{"sha-1": hex.EncodeToString(one[:]), "sha-256": hex.EncodeToString(two[:]),
		"sha-512": hex.EncodeToString(five[:])}
	for _, h := range f.Hashes {
		if w, known := want[h.Type]; known && w != h.Value {
			t.Errorf("%s is %s, want %s", h.Type, h.Value, w)
		}
		delete(want, h.Type)
	}
	if len(want) > 0 {
		t.Errorf("hashes are missing: %v", want)
	}
	for _, args := range [][]string{{}, {"1.2.3"}, {"1.2.3", "https://a"}, {"1.2.3", "https://a/?b&c", path},
		{"1.2.3", "https://a", path + "x"}} {
		if out, err := exec.Command("./metalink", args...).CombinedOutput(); err == nil {
			t.Errorf("metalink %q: %s", args, out)
		}
	}
}
