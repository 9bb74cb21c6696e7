package settings

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"cambium/internal/secret"
)

func TestTaskAnswerHold(t *testing.T) {
	for document, want := range map[string]any{`0`: uint64(0), `1`: uint64(1), `"2"`: uint64(2)} {
		s := decode(t, `{"agent_id":"a","env":{"bosh":{"agent":{"task_answer_hold":`+document+`}}}}`)
		if got := s.Env.Bosh.Agent.TaskAnswerHoldSeconds; got == nil || *got != want {
			t.Errorf("task_answer_hold %s is %v, want %v", document, got, want)
		}
	}
	if s := decode(t, `{"agent_id":"a"}`); s.Env.Bosh.Agent.TaskAnswerHoldSeconds != nil {
		t.Error("absent, yet set")
	}
}

func decode(t *testing.T, document string) Settings {
	t.Helper()
	s, rep := Decode("doc", secret.NewJSON([]byte(document)))
	if rep.Failed() {
		t.Fatal(rep)
	}
	return s
}

// Contract S.1.
func TestShapesOfDisks(t *testing.T) {
	hint := func(document string) DiskHint {
		h := decode(t, `{"agent_id":"a","disks":{"persistent":{"d":`+document+`}}}`).Disks.Persistent["d"]
		return h
	}
	for document, want := range map[string]DiskHint{
		`"/dev/sdc"`:                   {Path: "/dev/sdc", VolumeID: "/dev/sdc", Bare: true},
		`"3"`:                          {Path: "3", VolumeID: "3", Bare: true},
		`3`:                            {Path: "3", VolumeID: "3", Bare: true},
		`null`:                         {},
		`[]`:                           {},
		`true`:                         {},
		`{}`:                           {},
		`{"path":null,"id":"x"}`:       {DeviceID: "x"},
		`{"lun":0}`:                    {LUN: "0"},
		`{"lun":2.0}`:                  {LUN: "2"},
		`{"LUN":"1","Path":"/dev/x"}`:  {LUN: "1", Path: "/dev/x"},
		`{"volume_id":"v"}`:            {VolumeID: "v"},
		`{"host_device_id":"{f8b3}"}`:  {HostDeviceID: "{f8b3}"},
		`{"iscsi_settings":"ignored"}`: {},
		`{"iscsi_settings":{"initiator_name":"i","username":"u","target":"t","password":null}}`: {
			ISCSI: &ISCSI{InitiatorName: "i", Username: "u", Target: "t"}},
	} {
		if got := hint(document); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %+v, want %+v", document, got, want)
		}
		if !strings.HasPrefix(document, "[") && document != "true" {
			if got, err := DecodeHint(secret.NewJSON([]byte(document))); err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("DecodeHint(%s): got %+v, %v, want %+v", document, got, err, want)
			}
		}
	}
	for _, document := range []string{`[]`, `true`, `{"path":[]}`, `{`, `"a" 1`, `{"path":{"deep":true}}`} {
		if _, err := DecodeHint(secret.NewJSON([]byte(document))); err == nil {
			t.Errorf("DecodeHint(%s) succeeded, want an error", document)
		}
	}
}

func TestShapesOfEphemeralSystemAndRawDisks(t *testing.T) {
	for document, want := range map[string]string{
		`""`: "", `null`: "", `{}`: "", `[]`: "", `"/dev/sdb"`: "/dev/sdb", `{"path":"/dev/sdb"}`: "/dev/sdb",
	} {
		got := ""
		if e := decode(t, `{"agent_id":"a","disks":{"ephemeral":`+document+`}}`).Disks.Ephemeral; e != nil {
			got = e.Path
		}
		if got != want {
			t.Errorf("ephemeral %s is %q, want %q", document, got, want)
		}
	}
	for document, want := range map[string]string{`"/dev/sda"`: "/dev/sda", `{"path":"/dev/sda"}`: "/dev/sda", `0`: "0",
		`null`: "", `{}`: ""} {
		if got := decode(t, `{"agent_id":"a","disks":{"system":`+document+`}}`).Disks.System; got != want {
			t.Errorf("system %s is %q, want %q", document, got, want)
		}
	}
	raw := decode(t, `{"agent_id":"a","disks":{"raw_ephemeral":[{"path":"/dev/x"},
		{"volume_id":"v","host_device_id":"h","device_id":"d","id":"cid"},
		{"VolumeID":"other","HostDeviceID":"h","DeviceID":"d","ID":"cid","volume_id":"v"},"/dev/y",null]}}`).Disks
	if raw.RawEphemeral[1].ID != "cid" || raw.RawEphemeral[2].ID != "cid" {
		t.Errorf("raw ephemeral disks are %+v, want their CIDs", raw.RawEphemeral)
	}
	want := []DiskHint{{Path: "/dev/x"}, {VolumeID: "v", HostDeviceID: "h", DeviceID: "d"}, {VolumeID: "v",
		HostDeviceID: "h", DeviceID: "d"},
		{Path: "/dev/y", VolumeID: "/dev/y"}, {}}
	if got := raw.RawHints(); !reflect.DeepEqual(got, want) {
		t.Errorf("raw ephemeral disks are\n%+v\nwant\n%+v", got, want)
	}
}

func TestNumbersAndDefaults(t *testing.T) {
	swap := func(document string) any {
		s := decode(t, `{"agent_id":"a","env":{"bosh":{"swap_size":`+document+`}}}`)
		if s.Env.Bosh.SwapSizeMiB == nil {
			return nil
		}
		return *s.Env.Bosh.SwapSizeMiB
	}
	for document, want := range map[string]any{`null`: nil, `0`: uint64(0), `2048`: uint64(2048), `"2048"`: uint64(2048),
		`2048.0`: uint64(2048), `2.048e3`: uint64(2048)} {
		if got := swap(document); got != want {
			t.Errorf("swap_size %s is %v, want %v", document, got, want)
		}
	}
	for document, want := range map[string]int{`null`: 5, `1`: 1, `0`: 1, `-3`: 1, `"7"`: 7, `99999999999`: 1<<31 - 1} {
		if got := decode(t, `{"agent_id":"a","env":{"bosh":{"parallel":`+document+`}}}`).Env.Bosh.Parallel; got != want {
			t.Errorf("parallel %s is %d, want %d", document, got, want)
		}
	}
	s := decode(t, `{"agent_id":"a"}`)
	if s.Env.Bosh.Parallel != defaultParallel || s.Env.Bosh.NTP != nil || s.Networks != nil || s.Disks.Persistent != nil {
		t.Errorf("defaults are %+v", s)
	}
	if s := decode(t, `{"agent_id":"a","env":{"bosh":{"ntp":[]}}}`); s.Env.Bosh.NTP == nil {
		t.Error("an explicit empty list of time servers was lost")
	}
}

// Contract S.2.
func TestKeysIgnoreCaseAndTheLastOneCounts(t *testing.T) {
	s, rep := Decode("doc", secret.NewJSON([]byte(`{"AGENT_ID":"first",
"Mbus":"nats://h",
"agent_id":"last","Networks":{"A":{"IP":"10.0.0.1"},"a":{},"A":{"Mac":"0A:00:00:00:00:01"}}}`)))
	if s.AgentID != "last" || s.Mbus.Reveal() != "nats://h" || len(s.Networks) != 2 ||
		s.Networks["A"].MAC != "0a:00:00:00:00:01" || s.Networks["A"].IP != "" {
		t.Errorf("got %+v", s)
	}
	want := "doc:1:2: warning: AGENT_ID: duplicate key: the last one counts, this one is ignored"
	if !strings.Contains(rep.String(), want) || !strings.Contains(rep.String(),
		"doc:3:32: warning: Networks.A: duplicate key") && !strings.Contains(rep.String(), "networks.A: duplicate key") {
		t.Errorf("report is\n%s\nwant both duplicates in it", rep)
	}
}

// TestNetworksOnTheirOwn: the networks in user data are decoded and validated like those of a whole document.
func TestNetworksOnTheirOwn(t *testing.T) {
	for _, networks := range []string{
		`{"a":{"type":"manual","ip":"10.0.0.5","netmask":"255.255.255.0","mac":"AA:00:00:00:00:01"},"b":{"type":"dynamic"}}`,
		`{}`, `null`,
	} {
		got, rep := DecodeNetworks("user data", []byte(networks))
		if want := decode(t, `{"agent_id":"a","networks":`+networks+`}`).Networks; rep.Failed() ||
			!reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %+v, %v; want %+v", networks, got, rep, want)
		}
	}
	for networks, want := range map[string]string{
		`{"a":{"type":"manual","ip":"ten","netmask":"255.255.255.0"}}`: "a.ip", `[]`: "object", `{"a":`: "user data",
	} {
		if _, rep := DecodeNetworks("user data", []byte(networks)); rep.Err() == nil ||
			!strings.Contains(rep.Err().Error(), want) {
			t.Errorf("%s: got %v, want an error that names %q", networks, rep.Err(), want)
		}
	}
}

// Contract S.3.
func TestNotationsOfMACs(t *testing.T) {
	for mac, warns := range map[string]bool{
		"52:54:00:00:00:09": false, "52-54-00-00-00-09": false, "5254.0000.0009": false,
		"525400000009": false, "52:54:0:0:0:9": false, "52:54:00:00:00": true, "eth0": true,
	} {
		_, rep := DecodeNetworks("user data", []byte(`{"n":{"type":"dynamic","mac":"`+mac+`"}}`))
		if got := strings.Contains(rep.String(), "no interface will match"); got != warns {
			t.Errorf("%s: got %q, want a warning: %v", mac, rep, warns)
		}
	}
}

func TestStaticNetworksMustHaveAddresses(t *testing.T) {
	for document, bad := range map[string]bool{
		`{"ip":"10.0.0.1","netmask":"255.255.255.0","gateway":"10.0.0.254"}`:      false,
		`{"ip":"fd00::1","netmask":"ffff:ffff:ffff:ffff::","gateway":"fd00::ff"}`: false,
		`{"ip":"ten","netmask":"255.255.255.0"}`:                                  true,
		`{"ip":"10.0.0.1","netmask":"/24"}`:                                       true,
		`{"ip":"10.0.0.1","netmask":"255.255.255.0","gateway":"router"}`:          true,
		`{"ip":"ten","netmask":"255.255.255.0","use_dhcp":true}`:                  false,
		`{"ip":"ten","netmask":"255.255.255.0","preconfigured":true}`:             false,
		`{"type":"vip","ip":"ten","netmask":"x"}`:                                 false,
		`{"alias":"eth0:0"}`: false, `{"alias":""}`: false, `{"alias":".."}`: true, `{"alias":"a b"}`: true,
	} {
		_, rep := Decode("doc", secret.NewJSON([]byte(`{"agent_id":"a","networks":{"n":`+document+`}}`)))
		if rep.Failed() != bad {
			t.Errorf("%s: got %v, want an error: %v", document, rep, bad)
		}
	}
}

// upstream has the strict types into which cloudfoundry/bosh-agent decodes its cached copy.
type upstream struct {
	AgentID   string `json:"agent_id"`
	Blobstore struct {
		Provider string                 `json:"provider"`
		Options  map[string]interface{} `json:"options"`
	} `json:"blobstore"`
	Disks struct {
		System       string                 `json:"system"`
		Ephemeral    interface{}            `json:"ephemeral"`
		Persistent   map[string]interface{} `json:"persistent"`
		RawEphemeral []struct {
			ID, DeviceID, VolumeID, Lun, HostDeviceID, Path, FileSystemType, Partitioner string
			MountOptions                                                                 []string
		} `json:"raw_ephemeral"`
	} `json:"disks"`
	Networks map[string]struct {
		Type, IP, Netmask, Gateway, Prefix, Mac, Alias string
		Resolved, Preconfigured                        bool
		UseDHCP                                        bool `json:"use_dhcp"`
		Default, DNS                                   []string
		Routes                                         []struct{ Destination, Gateway, Netmask string }
	} `json:"networks"`
	Ntp  []string `json:"ntp"`
	Mbus string   `json:"mbus"`
	VM   struct {
		Name string `json:"name"`
	} `json:"vm"`
	Env struct {
		Bosh struct {
			Password string  `json:"password"`
			SwapSize *uint64 `json:"swap_size"`
			Parallel *int    `json:"parallel"`
			Mbus     struct {
				Cert struct {
					CA, Certificate string
					PrivateKey      string `json:"private_key"`
				} `json:"cert"`
				URLs []string `json:"urls"`
			} `json:"mbus"`
			NTP []string `json:"ntp"`
		} `json:"bosh"`
		FS string `json:"persistent_disk_fs"`
	} `json:"env"`
}

// TestTheCachedCopyIsReadableByBoth encodes each example: upstream's types accept it, its disks contain only strings,
// our decoder returns the same settings, and the encoding is stable. Contract S.4.
func TestTheCachedCopyIsReadableByBoth(t *testing.T) {
	files, err := filepath.Glob("testdata/settings/*.json")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			s, _ := Decode(file, secret.NewJSON(data))
			encoded := s.Encode()
			var u upstream
			if err := json.Unmarshal(encoded.Reveal(), &u); err != nil {
				t.Fatalf("%v\n%s", err, encoded.Reveal())
			}
			for cid, disk := range u.Disks.Persistent {
				onlyStrings(t, cid, disk)
			}
			onlyStrings(t, "ephemeral", u.Disks.Ephemeral)
			decoded, rep := Decode("cached", encoded)
			if rep.Failed() && s.AgentID != "" {
				t.Fatal(rep)
			}
			if got, want := withoutForm(decoded), withoutForm(s); !reflect.DeepEqual(got, want) {
				t.Errorf("the cached copy is read as\n%+v\nwant\n%+v", got, want)
			}
			if second := decoded.Encode(); string(second.Reveal()) != string(encoded.Reveal()) {
				t.Errorf("encoding again gives\n%s\nafter\n%s", second.Reveal(), encoded.Reveal())
			}
			wantMembers(t, data, encoded.Reveal())
		})
	}
}

func onlyStrings(t *testing.T, name string, disk any) {
	t.Helper()
	object, ok := disk.(map[string]any)
	if !ok {
		return
	}
	for _, key := range []string{"path", "volume_id", "id", "lun", "host_device_id"} {
		if value, there := object[key]; there {
			if _, isString := value.(string); !isString {
				t.Errorf("%s has %s of type %T; upstream wants a string", name, key, value)
			}
		}
	}
}

// withoutForm removes what may differ: where a document came from.
func withoutForm(s Settings) Settings {
	s.name = ""
	return s
}

// wantMembers checks that the copy contains all members of the original, in any form.
func wantMembers(t *testing.T, original, copied []byte) {
	t.Helper()
	var a, b map[string]any
	if json.Unmarshal(original, &a) != nil || json.Unmarshal(copied, &b) != nil {
		t.Fatal("not JSON")
	}
	var compare func(path string, a, b any)
	compare = func(path string, a, b any) {
		have, ok := a.(map[string]any)
		if !ok || path == ".disks.system" || strings.HasPrefix(path, ".disks.persistent.") || path == ".disks.ephemeral" {
			return
		}
		other, _ := b.(map[string]any)
		for key, sub := range have {
			if _, there := other[key]; !there && sub != nil && sub != "" {
				t.Errorf("the copy lacks %s.%s", path, key)
			}
			compare(path+"."+key, sub, other[key])
		}
	}
	compare("", a, b)
}

func TestHintsRoundTrip(t *testing.T) {
	s := decode(t, `{"agent_id":"a","env":{"persistent_disk_fs":"xfs","persistent_disk_mount_options":["noatime"]},
		"disks":{"persistent":{"d-1":"/dev/sdc","d-2":{"lun":1}}}}`)
	records := map[string]PersistentDisk{
		"d-2": s.Disk("d-2", DiskHint{ISCSI: &ISCSI{InitiatorName: "i", Username: "u", Target: "t",
			Password: secret.New("p")}}),
		"d-3": {CID: "d-3", Hint: DiskHint{DeviceID: "x", HostDeviceID: "h", LUN: "2", VolumeID: "v", Path: "/p"},
			Partitioner: "parted"},
	}
	got, rep := DecodeHints(EncodeHints(records))
	if rep.Failed() || !reflect.DeepEqual(got, records) {
		t.Errorf("got %+v, %v, want %+v", got, rep, records)
	}
	all := s.PersistentDisks(got)
	if len(all) != 3 || all["d-1"].FileSystem != "xfs" || all["d-1"].MountOptions[0] != "noatime" ||
		all["d-2"].Hint.LUN != "" || all["d-2"].Hint.ISCSI.Password.Reveal() != "p" {
		t.Errorf("disks are %+v; want the record of d-2 to win completely", all)
	}
	for _, broken := range []string{`[]`, `{"d":5}`, `{"d":{"Lun":{}}}`, `{`} {
		if _, rep := DecodeHints(secret.NewJSON([]byte(broken))); !rep.Failed() {
			t.Errorf("%s was accepted", broken)
		}
	}
}
