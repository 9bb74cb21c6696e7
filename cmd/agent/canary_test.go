package main

import (
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cambium/cmd/agent/validate"
)

// TestCommandsNeverPrintASecret runs validate, settings and doctor over a document with a marked secret
// wherever one can be, whole and broken, and over state that holds it.
func TestCommandsNeverPrintASecret(t *testing.T) {
	const canary = "hush-0815"
	const document = `{"agent_id":"a-1","mbus":"nats://u:` + canary + `@10.0.0.6:4222","unknown":"` + canary + `",
"blobstore":{"provider":"dav","options":{"password":"` + canary + `"}},
"disks":{"persistent":{"d":{"iscsi_settings":{"password":"` + canary + `"}}}},
"env":{"bosh":{"password":"` + canary + `","mbus":{"urls":["nats://u:` + canary + `@h"],"cert":{"ca":"c","private_key":"` + canary + `"}},"blobstores":[{"provider":"p","options":{"k":"` + canary + `"}}]}}}`
	const update = `{"mbus":{"urls":["nats://u:` + canary + `@h"],"cert":{"ca":"c","private_key":"` + canary + `"}},"blobstores":[{"options":{"k":"` + canary + `"}}]}`
	dir := t.TempDir()
	put := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	good, cut := put("good.json", document), put("cut.json", document[:len(document)/2])
	wrong := put("wrong.json", strings.ReplaceAll(document, `"`+canary+`"`, `["`+canary+`"]`))
	put("base/bosh/settings.json", document)
	put("base/bosh/update_settings.json", update)
	source := func(path string) string {
		return `{"Infrastructure":{"Settings":{"Sources":[{"Type":"File","SettingsPath":"` + path + `"}]}}}`
	}
	headers := put("headers.json", `{"Infrastructure":{"Settings":{"Sources":[{"Type":"HTTP","URI":"ftp://u:`+canary+`@h","Headers":{"A":"`+canary+`","B":["`+canary+`"]}}]}}}`)

	var out bytes.Buffer
	run := func(args ...string) { dispatch(t.Context(), append([]string{"agent"}, args...), &out, &out) }
	for _, form := range []string{"", "--json"} {
		flags := strings.Fields(form)
		for _, path := range []string{good, cut, wrong, headers} {
			for _, kind := range validate.Kinds() {
				run(append(append([]string{"validate"}, flags...), kind, path)...)
			}
		}
		for i, path := range []string{good, cut, wrong} {
			config := put("agent"+string(rune('0'+i))+".json", source(path))
			for _, base := range []string{"base", "empty"} {
				run(append(append([]string{"settings"}, flags...), "--explain", "--timeout", "100ms", "-C", config, "-b",
					filepath.Join(dir, base))...)
				run(append(append([]string{"doctor", "-v"}, flags...), "--timeout", "100ms", "-C", config, "-b",
					filepath.Join(dir, base))...)
			}
		}
		run(append(append([]string{"settings"}, flags...), "-C", headers)...)
	}
	checkArchive(t, canary, filepath.Join(dir, "base"), headers)
	if !strings.Contains(out.String(), "nats://***@h") {
		t.Errorf("the redacted URL is not in the output:\n%s", out.String())
	}
	if at := strings.Index(out.String(), canary); at >= 0 {
		t.Errorf("the secret is in the output:\n%s", out.String()[max(0, at-300):at+20])
	}
}

// checkArchive looks for the secret in every byte of an archive of agent support, also where others have printed it.
func checkArchive(t *testing.T, canary, base, config string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(base, "bosh", "cambium_boots.json"),
		[]byte(`{"boots":[{"verdict":"a job said `+canary+`"}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	var archive, complaints bytes.Buffer
	if code := dispatch(t.Context(), []string{"agent", "support", "-", "--timeout", "500ms", "-b", base, "-C", config},
		&archive, &complaints); code != 0 {
		t.Fatalf("exit code %d: %s", code, complaints.String())
	}
	zip, err := gzip.NewReader(&archive)
	if err != nil {
		t.Fatal(err)
	}
	content, err := io.ReadAll(zip)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"support/doctor.txt", "support/settings.json", "support/agent.json",
		"support/disks/mounts.txt", "a job said ***"} {
		if !bytes.Contains(content, []byte(want)) {
			t.Errorf("the archive has no %q", want)
		}
	}
	if at := bytes.Index(content, []byte(canary)); at >= 0 {
		t.Errorf("the secret is in the archive: %q", content[max(0, at-300):at+20])
	}
}
