// Package bus runs a NATS server as a BOSH deployment has it: mutual TLS under one CA, clients identified by the subject
// of their certificate, and no permissions beyond those that a Director's nats-sync grants. The server is part of the
// lab's process, or Debian's nats-server.
package bus

import (
	"bytes"
	"encoding/json"
	"sort"
	"strings"

	"cambium/internal/testca"
)

// permissions has the subjects that a user may use. It is a list or, because an empty list would allow all, a denial.
type permissions struct {
	Publish   any `json:"publish"`
	Subscribe any `json:"subscribe"`
}

var nothing = map[string]any{"deny": ">"}

// user is an entry in the server's list of users.
type user struct {
	User        string      `json:"user"`
	Permissions permissions `json:"permissions"`
}

func agentPermissions(id string) permissions {
	return permissions{
		Publish: []string{"hm.agent.heartbeat." + id, "hm.agent.alert." + id, "hm.agent.shutdown." + id,
			"director.*." + id + ".*"},
		Subscribe: []string{"agent." + id},
	}
}

// deployment returns the users that every deployment has.
func deployment() []user {
	return []user{
		{testca.UserOf(testca.DirectorName), permissions{
			Publish: []string{"agent.*", "hm.director.alert"}, Subscribe: []string{"director.>"}}},
		{testca.UserOf(testca.HealthMonitorName), permissions{
			Publish: nothing,
			Subscribe: []string{"hm.agent.heartbeat.*", "hm.agent.alert.*", "hm.agent.shutdown.*",
				"hm.director.alert"}}},
	}
}

// files has the paths of the server's certificate, its key and the CA's certificate.
type files struct{ certificate, key, ca string }

// config returns the configuration for nats-server, whose language includes JSON.
func config(host string, port int, f files, agents map[string]bool) ([]byte, error) {
	users := deployment()
	for name := range agents {
		users = append(users, user{testca.UserOf(name), agentPermissions(agentID(name))})
	}
	sort.Slice(users, func(i, j int) bool { return users[i].User < users[j].User })
	var b bytes.Buffer
	encode := json.NewEncoder(&b)
	encode.SetEscapeHTML(false) // nats-server does not understand \u003e
	encode.SetIndent("", "  ")
	err := encode.Encode(map[string]any{
		"host": host, "port": port,
		"max_payload":   1 << 20,
		"ping_interval": "5s", "ping_max": 2, "write_deadline": "10s",
		"tls": map[string]any{"cert_file": f.certificate, "key_file": f.key, "ca_file": f.ca,
			"verify_and_map": true, "timeout": 30},
		"authorization": map[string]any{"users": users},
	})
	return b.Bytes(), err
}

// agentID returns the agent id in a common name of testca.AgentName or testca.BootstrapName.
func agentID(commonName string) string {
	id := strings.TrimSuffix(commonName, testca.AgentName(""))
	return strings.TrimSuffix(id, ".bootstrap")
}
