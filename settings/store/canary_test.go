package store

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/sirupsen/logrus"

	"cambium/internal/secret"
	"cambium/settings"
	"cambium/settings/agentjson"
)

// canary is the value of each field that can contain a secret.
const canary = "hush-4711"

const secretSettings = `{
  "agent_id": "a-1", "vm": {"name": "vm", "token": "` + canary + `"},
  "mbus": "nats://nats:` + canary + `@10.0.0.6:4222",
  "blobstore": {"provider": "dav", "options": {"password": "` + canary + `", "deep": [{"x": "` + canary + `"}]},
    "secret": "` + canary + `"},
  "registry": {"endpoint": "http://u:` + canary + `@10.0.0.6:25777"},
  "unknown": {"anything": "` + canary + `"},
  "disks": {"persistent": {"d-1": {"path": "/dev/sdc", "iscsi_settings": {"initiator_name": "i", "username": "u",
              "target": "t", "password": "` + canary + `", "extra": "` + canary + `"}}},
            "raw_ephemeral": [{"path": "/dev/x", "ISCSISettings": {"Password": "` + canary + `"}}]},
  "networks": {"n": {"ip": "10.0.0.1", "netmask": "255.0.0.0", "cloud_properties": {"key": "` + canary + `"}}},
  "env": {"token": "` + canary + `", "bosh": {"password": "` + canary + `", "other": "` + canary + `",
    "mbus": {"urls": ["nats://nats:` + canary + `@10.0.0.6:4222", "nats://` + canary + `@h:%zz"],
      "cert": {"ca": "CA", "certificate": "C", "private_key": "` + canary + `"}},
    "blobstores": [{"provider": "s3", "options": {"secret_access_key": "` + canary + `"}}]}}
}`

const secretUpdate = `{"mbus": {"urls": ["nats://u:` + canary + `@h:4222"],
    "cert": {"ca": "CA", "certificate": "C", "private_key": "` + canary + `"}},
  "blobstores": [{"provider": "dav", "options": {"password": "` + canary + `"}}],
  "trusted_certs": "PEM", "extra": "` + canary + `"}`

const secretAgentJSON = `{"Infrastructure": {"Settings": {"Sources": [
  {"Type": "HTTP", "URI": "http://u:` + canary + `@h",
    "Headers": {"Authorization": "` + canary + `"}, "Password": "` + canary + `"}]}}}`

// output collects everything that is printed, in all possible ways.
type output struct{ bytes.Buffer }

func (o *output) print(values ...any) {
	for _, v := range values {
		fmt.Fprintf(o, "%v %+v %#v %s %q %x %d\n", v, v, v, v, v, v, v)
		if err, ok := v.(error); ok && err != nil {
			fmt.Fprintln(o, err.Error())
		}
		data, err := json.Marshal(v)
		fmt.Fprintf(o, "%s %v\n", data, err)
	}
}

func (o *output) mustBeClean(t *testing.T) {
	t.Helper()
	if o.Len() == 0 {
		t.Fatal("nothing was printed")
	}
	text := o.String()
	for _, form := range []string{canary, hex.EncodeToString([]byte(canary)),
		base64.StdEncoding.EncodeToString([]byte(canary)),
		strings.Trim(fmt.Sprint([]byte(canary)), "[]"), strings.ToUpper(hex.EncodeToString([]byte(canary)))} {
		if at := strings.Index(text, form); at >= 0 {
			t.Fatalf("a secret was printed as %s:\n…%s…", form, text[max(0, at-200):min(len(text), at+100)])
		}
	}
}

func (o *output) log() *logrus.Entry {
	logger := logrus.New()
	logger.SetOutput(o)
	logger.SetLevel(logrus.TraceLevel)
	logger.SetFormatter(&logrus.JSONFormatter{})
	return logrus.NewEntry(logger)
}

func TestNoSecretIsEverPrinted(t *testing.T) {
	var o output
	raw := secret.NewJSON([]byte(secretSettings))
	m := newMachine(t)
	options := m.options()
	options.Log = o.log()
	options.Fetch = func(context.Context) (Fetched, error) { return Fetched{Raw: raw, From: "HTTP http://h"}, nil }
	c, err := Open(m.dirs, options)
	if err != nil {
		t.Fatal(err)
	}
	loaded, err := c.Load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	u, rep := settings.DecodeUpdate("update", secret.NewJSON([]byte(secretUpdate)))
	if rep.Failed() {
		t.Fatal(rep)
	}
	pending := c.Preview(u)
	o.print(loaded, c.Effective(), c.Disks(), c.Last(), u, rep, pending.Effective, raw)
	if err := pending.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	hint, err := settings.DecodeHint(secret.NewJSON([]byte(`{"iscsi_settings":{"password":"` + canary + `"}}`)))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.PutHint("d-2", hint); err != nil {
		t.Fatal(err)
	}
	e := c.Effective()
	o.print(e, e.Settings, e.Bus, e.Blobstore, c.Disks(), hint, settings.Validate("doc", raw))
	next := u.Apply(u)
	o.print(next, next.Encode(), e.Settings.Encode(), settings.EncodeHints(c.Disks()))
	for _, line := range e.Explain() {
		o.print(line, line.String())
	}
	o.Write(e.Settings.Redacted())
	config, rep := agentjson.Parse("agent.json", []byte(secretAgentJSON))
	o.print(config, rep, rep.Err())
	if !strings.Contains(o.String(), "nats://***@10.0.0.6:4222") {
		t.Error("the output does not even have the redacted URL; is anything printed?")
	}
	o.mustBeClean(t)

	// It is there where it must be: in the files, which only root can read.
	for _, file := range settingsFiles {
		if !strings.Contains(m.read(t, m.dirs.Bosh()+"/"+file), canary) {
			t.Errorf("%s lost its secrets", file)
		}
	}
}

// TestNoErrorShowsAValue damages the documents in many ways: truncated at each byte, and with each value replaced by
// values of other types that contain the secret.
func TestNoErrorShowsAValue(t *testing.T) {
	var o output
	m := newMachine(t)
	var broken []byte
	options := m.options()
	options.Log = o.log()
	options.Fetch = func(context.Context) (Fetched, error) {
		return Fetched{Raw: secret.NewJSON(broken), From: "HTTP http://h"}, nil
	}
	options.ReadOnly = true
	c, err := Open(m.dirs, options)
	if err != nil {
		t.Fatal(err)
	}
	try := func(document []byte) {
		broken = document
		if l, err := c.Load(t.Context()); err != nil {
			fmt.Fprintln(&o, err, errors.Unwrap(err))
		} else {
			fmt.Fprintln(&o, l.Why, l.Report)
		}
		_, rep := settings.DecodeUpdate("update", secret.NewJSON(document))
		_, rep2 := settings.DecodeHints(secret.NewJSON(document))
		_, err := settings.DecodeHint(secret.NewJSON(document))
		_, rep3 := agentjson.Parse("agent.json", document)
		fmt.Fprintln(&o, rep, rep2, err, rep3, settings.Validate("doc", secret.NewJSON(document)))
	}
	for _, document := range []string{secretSettings, secretUpdate, secretAgentJSON} {
		for i := range document {
			if i%17 == 0 { // every kind of place, in a reasonable time
				try([]byte(document[:i]))
			}
		}
		var tree any
		if err := json.Unmarshal([]byte(document), &tree); err != nil {
			t.Fatal(err)
		}
		for _, value := range []any{canary, []any{canary}, map[string]any{"k": canary}, true, json.Number("4711")} {
			replaceEach(tree, value, func() {
				data, err := json.Marshal(tree)
				if err != nil {
					t.Fatal(err)
				}
				try(data)
			})
		}
		o.mustBeClean(t)
	}
}

// replaceEach calls visit with each value below node replaced in turn.
func replaceEach(node, value any, visit func()) {
	switch n := node.(type) {
	case map[string]any:
		for key, old := range n {
			n[key] = value
			visit()
			n[key] = old
			replaceEach(old, value, visit)
		}
	case []any:
		for i, old := range n {
			n[i] = value
			visit()
			n[i] = old
			replaceEach(old, value, visit)
		}
	}
}
