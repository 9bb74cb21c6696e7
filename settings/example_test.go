package settings_test

import (
	"fmt"

	"cambium/internal/secret"
	"cambium/settings"
)

// A settings document is decoded and merged with an update from the Director. Each value of the result has an origin.
// Secrets are not printed.
func Example() {
	s, problems := settings.Decode("settings.json", secret.NewJSON([]byte(`{
		"agent_id": "a-1", "mbus": "nats://user:password@10.0.0.6:4222",
		"disks": {"ephemeral": "/dev/sdb", "persistent": {"vol-9": {"path": "/dev/sdc"}}},
		"networks": {"default": {"type": "manual", "ip": "10.0.0.9", "netmask": "255.255.255.0"}}}`)))
	if problems.Failed() {
		fmt.Println(problems)
		return
	}
	u, _ := settings.DecodeUpdate("update_settings",
		secret.NewJSON([]byte(`{"mbus": {"urls": ["nats://10.0.0.7:4222"]}}`)))
	effective := settings.Merge(s, u)
	fmt.Println(s.Mbus)
	fmt.Println(effective.Bus.URLs)
	for _, line := range effective.Explain() {
		if line.Path == "mbus.urls[0]" || line.Path == "agent_id" {
			fmt.Println(line)
		}
	}
	// Output:
	// nats://***@10.0.0.6:4222
	// [nats://10.0.0.7:4222]
	// agent_id = a-1   from agent_id (settings.json)
	// mbus.urls[0] = nats://10.0.0.7:4222   from update_settings.mbus.urls
}

// Mistakes in a document are reported with their position, but never with a value, which may be a secret.
func ExampleValidate() {
	fmt.Println(settings.Validate("settings.json", secret.NewJSON([]byte(`{
  "agent_id": "a-1",
  "networks": {"default": {"type": "manual", "ip": "10.0.0.9", "netmask": "255.255.255.0"}},
  "disks": {"persistents": {}}
}`))))
	// Output:
	// settings.json:4:13: warning: disks.persistents: unknown key; did you mean persistent?
}
