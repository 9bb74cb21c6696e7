package source

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestDecode(t *testing.T) {
	document := `{"agent_id":"a?>~","x":"ÿþ>>?>"}`
	std, safe := base64.StdEncoding.EncodeToString([]byte(document)), base64.URLEncoding.EncodeToString([]byte(document))
	if !strings.Contains(std, "+") || !strings.Contains(std, "/") || !strings.Contains(std, "=") {
		t.Fatalf("the document does not tell the alphabets apart: %s %s", std, safe)
	}
	quoted, _ := json.Marshal(document)
	wrapped := std[:20] + "\r\n" + std[20:] + "\n"
	for name, body := range map[string]string{
		"object":                  document,
		"object with space":       "\n\t " + document + " \r\n",
		"byte order mark":         "\xef\xbb\xbf" + document,
		"JSON string":             string(quoted),
		"standard base64":         std,
		"standard, no padding":    strings.TrimRight(std, "="),
		"url-safe":                safe,
		"url-safe, no padding":    strings.TrimRight(safe, "="),
		"base64 in quotes":        `"` + safe + `"`,
		"base64 with line breaks": wrapped,
		"quotes in odd places":    `"` + safe[:8] + `"` + safe[8:],
	} {
		if got, err := Decode([]byte(body)); err != nil || string(got) != document {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	for body, want := range map[string]string{
		"":                 "empty answer",
		" \n":              "empty answer",
		`""`:               "empty answer",
		`"  "`:             "empty answer",
		"====":             "empty answer",
		"[1]":              "not a JSON object",
		"null":             "", // four letters of base64
		"<html>canary":     "neither a JSON object nor base64",
		"{\n \"canary\":1": "not valid JSON at line 2, column 12: document ends early",
		"{\"a\":1,\n}":     "not valid JSON at line 1, column 7: trailing comma",
		"{\"ä\":1,,}":      "not valid JSON at line 1, column 8",
		`{"a":1}{"canary"`: "not valid JSON at line 1, column 8",
		base64.StdEncoding.EncodeToString([]byte("canary")): "base64 of something other than a JSON object",
	} {
		got, err := Decode([]byte(body))
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "canary") {
			t.Errorf("%q: %q, %v; want an error with %q and no content", body, got, err, want)
		}
	}
}

func FuzzDecode(f *testing.F) {
	for _, seed := range []string{`{"agent_id":"a"}`, `"eyJhIjoxfQ"`, "eyJhIjoxfQ==", `"{\"a\":1}"`, "\xef\xbb\xbf{}", "",
		`"`, `{"a":`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		got, err := Decode(body)
		if err == nil && (!json.Valid(got) || got[0] != '{') {
			t.Errorf("%q: accepted %q", body, got)
		}
		_, _ = DecodeMetadata(body)
	})
}

func TestDecodeMetadata(t *testing.T) {
	got, err := DecodeMetadata([]byte(`{"instance-id":"i-1",` +
		`"public-keys":{"0":{"openssh-key":"ssh-rsa A"},"1":{"openssh-key":"no"}}}`))
	if err != nil || got != (Metadata{InstanceID: "i-1", PublicKey: "ssh-rsa A"}) {
		t.Errorf("%+v, %v", got, err)
	}
	for _, body := range []string{`{}`, `{"instance-id":null,"public-keys":null}`,
		`{"public-keys":{"1":{"openssh-key":"x"}}}`} {
		if got, err := DecodeMetadata([]byte(body)); err != nil || got != (Metadata{}) {
			t.Errorf("%s: %+v, %v; want nothing", body, got, err)
		}
	}
	for _, body := range []string{``, `[]`, `{"instance-id":7}`, `{"public-keys":["x"]}`} {
		if got, err := DecodeMetadata([]byte(body)); err == nil {
			t.Errorf("%s: %+v, want an error", body, got)
		}
	}
}

func TestKinds(t *testing.T) {
	unmarked := errors.New("x")
	for _, c := range []struct {
		err  error
		want Kind
	}{
		{unmarked, Transport}, {Final(unmarked), Definite}, {NotYet(unmarked), NotYetThere},
		{NotYet(Final(unmarked)), NotYetThere}, {Final(NotYet(unmarked)), Definite},
		{fmt.Errorf("at: %w", Final(unmarked)), Definite},
	} {
		if got := KindOf(c.err); got != c.want || !errors.Is(c.err, unmarked) {
			t.Errorf("%v: kind %d, want %d", c.err, got, c.want)
		}
	}
}

func TestReadFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := ReadFile(path); err != nil || string(got) != "x" {
		t.Errorf("%q, %v", got, err)
	}
	if err := os.Truncate(path, MaxDocument+1); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadFile(path); !errors.Is(err, ErrTooLarge) {
		t.Errorf("error %v, want too large", err)
	}
	fifo := filepath.Join(dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{fifo, dir, "/dev/zero", filepath.Join(dir, "missing")} {
		if _, err := ReadFile(bad); KindOf(err) != Definite {
			t.Errorf("%s: error %v, want a final one", bad, err)
		}
	}
}
