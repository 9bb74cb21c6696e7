//go:build nightly

package release

import (
	"bytes"
	"crypto/sha1"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"cambium/internal/eventually"
	"cambium/internal/testca"
	"cambium/lab/director"
)

// dummy is an agent without a machine that listens as create-env expects it.
type dummy struct {
	*director.Agent
	address string
	ca      *testca.CA
}

func start(t *testing.T, command ...string) dummy {
	t.Helper()
	ca, err := testca.New("test")
	if err != nil {
		t.Fatal(err)
	}
	pair, err := ca.Server("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	d := dummy{ca: ca, address: listener.Addr().String()}
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	base := t.TempDir()
	write := func(name string, content any) string {
		t.Helper()
		data, err := json.Marshal(content)
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(base, name)
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	url := "https://mbus:secret@" + d.address
	source := write("settings.json", map[string]any{
		"agent_id": "dummy-1", "vm": map[string]any{"name": "vm-dummy"},
		"disks": map[string]any{"persistent": map[string]any{}}, "mbus": url,
		"networks": map[string]any{"a": map[string]any{"type": "manual", "ip": "127.0.0.9", "netmask": "255.0.0.0"}},
		"blobstore": map[string]any{"provider": "local",
			"options": map[string]any{"blobstore_path": filepath.Join(base, "blobs")}},
		"env": map[string]any{"bosh": map[string]any{"mbus": map[string]any{
			"cert": map[string]any{"ca": string(ca.PEM), "certificate": string(pair.Certificate),
				"private_key": string(pair.PrivateKey)}}}},
	})
	config := write("agent.json", map[string]any{"Infrastructure": map[string]any{"Settings": map[string]any{
		"Sources": []any{map[string]any{"Type": "File", "SettingsPath": source}}}}})
	args := append(command[1:], "-P", "dummy", "-M", "dummy-nats", "-b", base, "-C", config)
	agent := exec.Command(command[0], args...)
	var log bytes.Buffer
	agent.Stderr = &log
	if err := agent.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = agent.Process.Kill()
		_ = agent.Wait()
		if t.Failed() {
			t.Logf("the agent's log:\n%s", log.Bytes())
		}
	})
	client, err := director.NewHTTPS(director.HTTPSOptions{URL: url, CA: ca.PEM})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	d.Agent = client.Agent()
	eventually.Nil(t, "an answer to ping", func() error {
		answer, err := d.Call(t.Context(), "ping")
		if err == nil && string(answer) != `"pong"` {
			t.Fatalf("ping: %s", answer)
		}
		return err
	})
	return d
}

// TestNightlyARM64: the agent for the other architecture answers under emulation.
func TestNightlyARM64(t *testing.T) {
	start(t, "qemu-aarch64", filepath.Join(dist(t), "cambium-agent-"+version+"-linux-arm64"))
}

// upload stores a blob whose digest is a SHA-1, as BOSH's are.
func upload(t *testing.T, d dummy, right bool) error {
	t.Helper()
	content := []byte("content")
	sum := sha1.Sum(content)
	if !right {
		sum[0]++
	}
	_, err := d.Do(t.Context(), "upload_blob", map[string]any{"blob_id": fmt.Sprint("blob-", right),
		"checksum": hex.EncodeToString(sum[:]), "payload": base64.StdEncoding.EncodeToString(content)})
	return err
}

// TestNightlyFIPS: the agent with the FIPS 140-3 module speaks approved suites only, and still checks SHA-1 digests.
func TestNightlyFIPS(t *testing.T) {
	// Go's client cannot choose a suite of TLS 1.3, openssl can.
	accepts := func(d dummy, suite string) bool {
		cmd := exec.CommandContext(t.Context(), "openssl", "s_client", "-connect", d.address, "-tls1_3", "-ciphersuites",
			suite, "-groups", "P-256")
		return cmd.Run() == nil
	}
	const approved, other = "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"

	goBinary := start(t, filepath.Join(dist(t), "cambium-agent-"+version+"-linux-amd64"))
	if !accepts(goBinary, approved) || !accepts(goBinary, other) {
		t.Error("the ordinary agent refuses one of the suites; the comparison says nothing")
	}
	fips := start(t, filepath.Join(dist(t), "cambium-agent-fips-"+version+"-linux-amd64"))
	if !accepts(fips, approved) {
		t.Error("the FIPS agent refuses AES-GCM")
	}
	if accepts(fips, other) {
		t.Error("the FIPS agent accepts ChaCha20-Poly1305, which is not approved")
	}
	if err := upload(t, fips, true); err != nil {
		t.Errorf("a blob with a SHA-1 digest: %v", err)
	}
	if upload(t, fips, false) == nil {
		t.Error("a blob with a wrong SHA-1 digest is accepted")
	}
}
