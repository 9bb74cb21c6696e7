package host

import (
	"os"
	"path/filepath"
	"testing"
)

// TestCertificateStore: the agent builds the store itself if it knows how the system's program would. It rebuilds the
// store if another program has left out a certificate. TestMachineHost compares both.
func TestCertificateStore(t *testing.T) {
	h, _ := newHost(t, map[string]string{storeConf: "# a comment\na/one.crt\n!a/two.crt\na/missing.crt\n",
		storeSource + "/a/one.crt": "one", storeSource + "/a/two.crt": "two\n", storeBundle: "one\nold\n"})
	bin := t.TempDir()
	for _, name := range []string{"openssl", "update-ca-certificates"} {
		script := "#!/bin/sh\necho " + name + " >>" + bin + "/runs\n"
		if err := os.WriteFile(filepath.Join(bin, name), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	ran := func(want string) {
		t.Helper()
		data, _ := os.ReadFile(filepath.Join(bin, "runs"))
		if string(data) != want {
			t.Errorf("programs run are %q, want %q", data, want)
		}
		_ = os.Remove(filepath.Join(bin, "runs"))
	}
	if err := os.Symlink(storeSource+"/a/two.crt", h.joinRoot(storeDir+"/two.pem")); err != nil {
		t.Fatal(err)
	}
	const block = "-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----\n"
	want := block
	converge(t, h, Desired{Certificates: &want})
	ran("openssl\n")
	if got := get(t, h, storeBundle); got != "one\n"+block {
		t.Errorf("the bundle is %q", got)
	}
	links := map[string]string{"one.pem": storeSource + "/a/one.crt", "two.pem": "",
		"bosh-trusted-cert-1.pem": certificateDir + "/bosh-trusted-cert-1.crt"}
	for name, target := range links {
		if got, _ := os.Readlink(h.joinRoot(storeDir + "/" + name)); got != target {
			t.Errorf("%s leads to %q, want %q", name, got, target)
		}
	}
	converge(t, h, Desired{Certificates: &want})
	ran("")
	if err := os.WriteFile(h.joinRoot(storeBundle), []byte("one\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	converge(t, h, Desired{Certificates: &want})
	ran("openssl\n")
	// The hooks of other packages are the program's to run.
	if err := h.write(storeHooks+"/jks-keystore", nil, 0o755); err != nil {
		t.Fatal(err)
	}
	none := ""
	converge(t, h, Desired{Certificates: &none})
	ran("update-ca-certificates\n")
}
