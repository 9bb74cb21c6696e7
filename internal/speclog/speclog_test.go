package speclog

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
)

// TestWhatSpecsSearchFor names the reader of each sentence: files below src/spec/integration of cloudfoundry/bosh.
func TestWhatSpecsSearchFor(t *testing.T) {
	request := func(method string, arguments ...json.RawMessage) string {
		line, _ := Request(method, arguments)
		return line
	}
	for _, c := range []struct{ reader, line, want string }{
		{"delete_arp_entries_spec.rb", Action("delete_arp_entries", false), "Running sync action delete_arp_entries"},
		{"delete_arp_entries_spec.rb", request("delete_arp_entries", json.RawMessage(`{"ips":["192.168.1.3"]}`)), `"method":"delete_arp_entries","arguments":[{"ips":["192.168.1.3"]`},
		{"the spec of orphaned VMs", Action("shutdown", false), "Running sync action shutdown"},
		{"the spec of orphaned VMs", request("shutdown"), `"method":"shutdown","arguments":[]`},
		{"the specs of local DNS", request("sync_dns", json.RawMessage(`"id"`), json.RawMessage(`"sha"`), json.RawMessage(`3`)), `"method":"sync_dns","arguments":`},
		{"deploy/pre_start_spec.rb", Script("/b/jobs/job_1_with_pre_start_script/bin/pre-start", nil), "/jobs/job_1_with_pre_start_script/bin/pre-start' script has successfully executed"},
		{"deploy/post_deploy_spec.rb", Script("/b/jobs/j/bin/post-deploy", errors.New("exit status 1")), "/jobs/j/bin/post-deploy' script has failed with error"},
		{"the spec of post-start scripts", Script("/b/jobs/job_with_post_start_script/bin/post-start", nil), "/jobs/job_with_post_start_script/bin/post-start' script has successfully executed"},
	} {
		if !strings.Contains(c.line, c.want) {
			t.Errorf("%s finds nothing: got %q, want %q in it", c.reader, c.line, c.want)
		}
	}
	for _, method := range []string{"apply", "ssh", "update_settings", "sync_dns_with_signed_url", "upload_blob"} {
		if line, read := Request(method, []json.RawMessage{json.RawMessage(`"secret"`)}); read || line != "" {
			t.Errorf("the arguments of %s are written to the log: %s", method, line)
		}
	}
}
