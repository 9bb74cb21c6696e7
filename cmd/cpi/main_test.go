package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestAnswerWithoutAHolder(t *testing.T) {
	dir := t.TempDir()
	config := func(text string) string {
		path := filepath.Join(t.TempDir(), "cpi.json")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	good := config(`{"dir":"` + dir + `","name":"test"}`)
	for name, c := range map[string]struct {
		request, config string
		err             string
	}{
		"info needs no configuration":   {`{"method":"info","arguments":[]}`, "/nothing", ""},
		"nothing is there":              {`{"method":"has_vm","arguments":["vm-1"],"api_version":2}`, good, ""},
		"deletes succeed":               {`{"method":"delete_vm","arguments":["vm-1"],"api_version":2}`, good, ""},
		"no request":                    {``, good, "not a JSON object"},
		"no configuration":              {`{"method":"has_vm","arguments":["vm-1"]}`, "/nothing", "configuration"},
		"configuration is no JSON":      {`{"method":"has_vm","arguments":["vm-1"]}`, config("x"), "configuration"},
		"name with a slash":             {`{"method":"has_vm","arguments":["vm-1"]}`, config(`{"name":"../x"}`), "name"},
		"host without certificates":     {`{"method":"has_vm","arguments":["vm-1"]}`, config(`{"host":"tls://10.0.0.1:25778"}`), "lab.tls"},
		"host of another kind":          {`{"method":"has_vm","arguments":["vm-1"]}`, config(`{"host":"http://10.0.0.1"}`), "lab.host"},
		"unknown method, configuration": {`{"method":"x","arguments":[]}`, "/nothing", "no method"},
	} {
		t.Run(name, func(t *testing.T) {
			r := answer(t.Context(), strings.NewReader(c.request), c.config)
			if c.err == "" && r.Error != nil || c.err != "" && (r.Error == nil || !strings.Contains(r.Error.Message, c.err)) {
				t.Errorf("got %+v, want an error with %q", r.Error, c.err)
			}
		})
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
		t.Errorf("%v (%v) was made for nothing", entries, err)
	}
}
