package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cambium/lab/cpi"
	"cambium/lab/iaas"
	"cambium/lab/iaas/value"
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
		"info needs no configuration": {`{"method":"info","arguments":[]}`, "/nothing", ""},
		"nothing is there":            {`{"method":"has_vm","arguments":["vm-1"],"api_version":2}`, good, ""},
		"deletes succeed":             {`{"method":"delete_vm","arguments":["vm-1"],"api_version":2}`, good, ""},
		"no request":                  {``, good, "does not have the form of the CPI contract"},
		"no configuration":            {`{"method":"has_vm","arguments":["vm-1"]}`, "/nothing", "configuration"},
		"configuration is not JSON":   {`{"method":"has_vm","arguments":["vm-1"]}`, config("x"), "configuration"},
		"name with a slash":           {`{"method":"has_vm","arguments":["vm-1"]}`, config(`{"name":"../x"}`), "name"},
		"host without certificates": {`{"method":"has_vm","arguments":["vm-1"]}`,
			config(`{"host":"tls://10.0.0.1:25778"}`), "lab.tls"},
		"host of another kind": {`{"method":"has_vm","arguments":["vm-1"]}`, config(`{"host":"http://10.0.0.1"}`),
			"lab.host"},
		"cpi-config with a bad name": {`{"method":"has_vm","arguments":["vm-1"],"context":{"lab":{"name":"../x"}}}`, good,
			"name"},
		"cpi-config with a directory": {`{"method":"has_vm","context":{"lab":{"dir":"/tmp/x"}}}`, good, "lab.dir"},
		"cpi-config of another kind": {`{"method":"has_vm","arguments":["vm-1"],"context":{"lab":7}}`, good,
			"property lab"},
		"cpi-config names another host": {`{"method":"has_vm","arguments":["vm-1"],"context":{"lab":{"host":"http://x"}}}`,
			good, "lab.host"},
		"other keys of the context":     {`{"method":"has_vm","arguments":["vm-1"],"context":{"aws":{"region":"x"},"vm":{"stemcell":{}}}}`, good, ""},
		"unknown method, configuration": {`{"method":"x","arguments":[]}`, "/nothing", "no method"},
	} {
		t.Run(name, func(t *testing.T) {
			var r cpi.Reply
			answer(t.Context(), strings.NewReader(c.request), c.config, func(reply cpi.Reply) error {
				r = reply
				return nil
			})
			if c.err == "" && r.Error != nil || c.err != "" && (r.Error == nil || !strings.Contains(r.Error.Message, c.err)) {
				t.Errorf("got %+v, want an error with %q", r.Error, c.err)
			}
		})
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
		t.Errorf("%v (%v) was made for nothing", entries, err)
	}
}

// Properties of a cpi-config take the place of the job's, one by one.
// Contract C.6.
func TestCPIConfigOverTheJobs(t *testing.T) {
	defaults := iaas.AgentDefaults{Mbus: "nats://job", NTP: []value.Name{value.MustName("ntp")}}
	job := config{Dir: "/job", Name: "job", Agent: defaults}
	context := cpi.Context{Lab: json.RawMessage(`{"name":"two"}`), Agent: json.RawMessage(`{"mbus":"nats://two"}`)}
	got, err := job.complete(context)
	if err != nil || got.Dir != "/job" || got.Name != "two" || got.Agent.Mbus != "nats://two" || len(got.Agent.NTP) != 1 {
		t.Errorf("got %+v, %v", got, err)
	}
	if got, err := job.complete(cpi.Context{}); err != nil || got.Name != "job" || got.Agent.Mbus != "nats://job" {
		t.Errorf("without a cpi-config: got %+v, %v", got, err)
	}
	t.Setenv("CAMBIUM_LAB_DIR", "")
	if got, err := (config{}).complete(cpi.Context{}); err != nil || got.Dir != "/var/lib/cambium-lab" ||
		got.Name != iaas.DefaultName {
		t.Errorf("without any configuration: got %+v, %v; want the default lab directory", got, err)
	}
}
