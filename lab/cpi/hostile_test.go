package cpi

import (
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"cambium/lab/iaas"
)

// validRequests is a request of each method, with an object in every argument that may be one. VMs do not start: the
// stemcell has no disk.
func validRequests(stemcell, disk string) []string {
	const vm = `"vm-000000000000000000"`
	const end = `,"api_version":2,"context":{"director_uuid":"d","request_id":"r","vm":{"stemcell":{"api_version":2}}}}`
	create := `{"method":"create_vm","arguments":["agent",` + stemcell + `,{"engine":"qemu","cpu":1,"ram":64,` +
		`"ephemeral_disk":1,"root_disk":1,"disk_bus":"virtio","firmware":"bios","settings_source":"configdrive"},` +
		`{"net":{"type":"%s","ip":"10.9.0.5","prefix":"32","netmask":"255.255.255.0","gateway":"10.9.0.1",` +
		`"dns":["10.9.0.1"],"default":["dns"],"nic_group":"1","mac":"02:00:00:00:00:01",` +
		`"cloud_properties":{"name":"s","mac":"02:00:00:00:00:02","range":"10.9.0.0/24"}}},` +
		`[` + disk + `],{"bosh":{"password":"*"}}]` + end
	six := strings.NewReplacer(`"10.9.0.5"`, `"fd00::5"`, `"10.9.0.1"`, `"fd00::1"`, `"255.255.255.0"`, `"ffff::"`)
	requests := []string{fmt.Sprintf(create, "manual"), fmt.Sprintf(create, "dynamic"), fmt.Sprintf(create, "vip"),
		six.Replace(fmt.Sprintf(create, "manual"))}
	for method, arguments := range map[string]string{
		"create_stemcell":   `"image",{"path":"/p","sha256":"` + strings.Repeat("0", 64) + `"},{"tags":{"a":"b"}}`,
		"delete_stemcell":   `"sc-000000000000000000"`,
		"delete_vm":         vm,
		"has_vm":            vm,
		"reboot_vm":         vm,
		"set_vm_metadata":   vm + `,{"name":"x"}`,
		"get_disks":         vm,
		"create_disk":       `1,{"a":"b"},` + vm,
		"delete_disk":       `"d-000000000000000000"`,
		"has_disk":          disk,
		"attach_disk":       vm + `,` + disk,
		"detach_disk":       vm + `,` + disk,
		"resize_disk":       disk + `,16`,
		"update_disk":       disk + `,16,{"a":"b"}`,
		"set_disk_metadata": disk + `,{"name":"x"}`,
		"snapshot_disk":     disk + `,{"name":"x"}`,
		"delete_snapshot":   `"snap-000000000000000000"`,
		"create_network": `{"type":"manual","range":"10.9.1.0/24","gateway":"10.9.1.1",` +
			`"cloud_properties":{"name":"x"}}`,
		"delete_network": `"net-000000000000000000"`,
	} {
		requests = append(requests, `{"method":"`+method+`","arguments":[`+arguments+`]`+end)
	}
	slices.Sort(requests)
	return requests
}

// hostileValues lead to the files around the IaaS from each of its directories, and are not values of any other kind.
func hostileValues(base string) []any {
	values := []any{"..", "/", "", "a\x00b", "\x1b[2J", 1e300, map[string]any{}}
	for depth := range 3 {
		up := strings.Repeat("../", 3+depth) + "sentinel" // the DHCP servers' directory is 3 below that of all
		values = append(values, up, "fe80::1%/"+up, "fe80::1%x/../"+up)
	}
	return append(values, filepath.Join(base, "sentinel"), "fe80::1%"+filepath.Join(base, "sentinel"))
}

// mutations calls f with the request with the value in place of each of its values below arguments and context, and
// in that of each name of a network.
func mutations(t *testing.T, request string, value any, f func(place string, request []byte)) {
	t.Helper()
	var whole map[string]any
	if err := json.Unmarshal([]byte(request), &whole); err != nil {
		t.Fatalf("%s: %v", request, err)
	}
	call := func(place string) {
		data, err := json.Marshal(whole)
		if err != nil {
			t.Fatal(err)
		}
		f(place, data)
	}
	var visit func(place string, node any)
	visit = func(place string, node any) {
		switch node := node.(type) {
		case map[string]any:
			for key, old := range maps.Clone(node) {
				node[key] = value
				call(place + "/" + key)
				node[key] = old
				visit(place+"/"+key, old)
			}
		case []any:
			for n, old := range node {
				node[n] = value
				call(fmt.Sprint(place, "/", n))
				node[n] = old
				visit(fmt.Sprint(place, "/", n), old)
			}
		}
	}
	visit(whole["method"].(string), whole["arguments"])
	visit("context", whole["context"])
	if text, ok := value.(string); ok && strings.Contains(request, `"net":`) {
		networks := whole["arguments"].([]any)[3].(map[string]any)
		networks[text] = networks["net"]
		delete(networks, "net")
		call("create_vm/3")
	}
}

// TestTextIsParsedBeforeItIsUsed: hostile text gets as far as the IaaS only in the places that are for text, and from
// there into records, or is dropped. There is no IaaS here: to be used is to panic.
func TestTextIsParsedBeforeItIsUsed(t *testing.T) {
	text := []string{"create_disk/1/a", "create_disk/2",
		"create_network/0/cloud_properties", "create_network/0/cloud_properties/name",
		"create_stemcell/0", "create_stemcell/1/path", "create_stemcell/2/tags/a",
		"create_vm/4", "create_vm/4/0", "create_vm/5/bosh", "create_vm/5/bosh/password",
		"set_disk_metadata/1/name", "set_vm_metadata/1/name", "snapshot_disk/1/name", "update_disk/2/a"}
	reached := map[string]bool{}
	use := func(place string, request []byte) {
		defer func() {
			if recover() != nil {
				reached[place] = true
			}
		}()
		if r, err := ReadRequest(request); err == nil {
			backend{}.do(t.Context(), r, iaas.AgentDefaults{}, nil)
		}
	}
	for _, request := range validRequests(`"sc-000000000000000000"`, `"d-000000000000000000"`) {
		for _, value := range []string{"../../x", "/etc/x", "fe80::1%/../x", "vm-000000000000000000/../x"} {
			mutations(t, request, value, use)
		}
	}
	if got := slices.Sorted(maps.Keys(reached)); !slices.Equal(got, text) {
		t.Errorf("hostile text is used as\n%s\nwant it used only as\n%s",
			strings.Join(got, "\n"), strings.Join(text, "\n"))
	}
}
