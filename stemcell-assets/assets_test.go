package assets

import (
	"bufio"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cambium/settings/agentjson"
)

// iaas are the names that the install script takes, with the types of their sources in order.
var iaas = map[string]string{
	"alicloud":   "HTTP",
	"aws":        "HTTP",
	"azure":      "File",
	"cloudstack": "HTTP",
	"docker":     "File",
	"google":     "InstanceMetadata",
	"openstack":  "File ConfigDrive HTTP",
	"qemu":       "ConfigDrive CDROM HTTP",
	"vsphere":    "VsphereGuestInfo CDROM",
	"warden":     "File",
}

// Contract T.1.
func TestAgentJSON(t *testing.T) {
	entries, err := files.ReadDir("agent.json")
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != len(iaas) {
		t.Errorf("%d files, want %d", len(entries), len(iaas))
	}
	for name, want := range iaas {
		t.Run(name, func(t *testing.T) {
			data, err := AgentJSON(name)
			if err != nil {
				t.Fatal(err)
			}
			c, report := agentjson.Parse(name+".json", data)
			if report.Failed() {
				t.Errorf("not accepted: %s", report)
			}
			var types []string
			for _, s := range c.Infrastructure.Settings.Sources {
				types = append(types, s.Type)
			}
			if got := strings.Join(types, " "); got != want {
				t.Errorf("sources are %s, want %s", got, want)
			}
			// It means that the stemcell guards monit by cgroup v1; these have v2, and would be without any rule.
			if c.Platform.Linux.UseMonitIptablesFirewall {
				t.Error("UseMonitIptablesFirewall is set")
			}
			container := name == "warden" || name == "docker"
			if c.Platform.Linux.SkipDiskSetup != container {
				t.Errorf("SkipDiskSetup is %v, want %v", c.Platform.Linux.SkipDiskSetup, container)
			}
		})
	}
}

// unit reads a unit file into lists of values by section and key.
func unit(t *testing.T, name string) map[string][]string {
	t.Helper()
	data, err := files.ReadFile("systemd/" + name)
	if err != nil {
		t.Fatal(err)
	}
	values, section := map[string][]string{}, ""
	for s := bufio.NewScanner(strings.NewReader(string(data))); s.Scan(); {
		line := strings.TrimSpace(s.Text())
		if strings.HasPrefix(line, "[") {
			section = strings.Trim(line, "[]")
		} else if key, value, ok := strings.Cut(line, "="); ok && !strings.HasPrefix(line, "#") {
			values[section+"."+key] = append(values[section+"."+key], value)
		}
	}
	return values
}

// Contract T.2.
func TestAgentUnit(t *testing.T) {
	u := unit(t, "bosh-agent.service")
	for key, want := range map[string]string{
		"Unit.StartLimitIntervalSec":     "0", // never give up
		"Service.Type":                   "notify",
		"Service.ExecStart":              "/var/vcap/bosh/bin/bosh-agent -P ubuntu -C /var/vcap/bosh/agent.json -M systemd",
		"Service.Restart":                "always",
		"Service.KillMode":               "process",
		"Service.FileDescriptorStoreMax": "1", // the alert port
		"Service.TimeoutStartSec":        "infinity",
		"Service.SyslogIdentifier":       "bosh-agent",
		"Install.Alias":                  "agent.service",
	} {
		if got := strings.Join(u[key], "|"); got != want {
			t.Errorf("%s is %q, want %q", key, got, want)
		}
	}
	for _, key := range []string{"Service.WatchdogSec", "Service.OOMScoreAdjust", "Service.Nice"} {
		if len(u[key]) != 1 {
			t.Errorf("%s is %q, want one value", key, u[key])
		}
	}
	// What would give the agent a mount namespace, or reach the scripts it starts.
	for key := range u {
		name := strings.TrimPrefix(key, "Service.")
		for _, prefix := range []string{"Protect", "Private", "ReadOnly", "ReadWrite", "Inaccessible", "Bind", "Temporary",
			"Root", "NoNewPrivileges",
			"Restrict", "SystemCall", "Capability", "AmbientCapabilities", "LockPersonality", "MemoryDenyWriteExecute", "Limit",
			"UMask"} {
			if strings.HasPrefix(name, prefix) {
				t.Errorf("%s must not be set", key)
			}
		}
	}
}

// Contract T.3.
func TestMonitUnit(t *testing.T) {
	u := unit(t, "monit.service")
	for key, want := range map[string]string{
		"Unit.ConditionPathExists": "/var/vcap/data/sys/run",
		"Service.Restart":          "always",
		"Service.KillMode":         "process",
	} {
		if got := strings.Join(u[key], "|"); got != want {
			t.Errorf("%s is %q, want %q", key, got, want)
		}
	}
}

func TestUnpack(t *testing.T) {
	dir := t.TempDir()
	install, err := Unpack(dir)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(install)
	if err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("install script is %v (%v), want mode 755", info, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "systemd/bosh-agent.service")); err != nil {
		t.Error(err)
	}
}

// TestScriptsShareFunctions: swap is one file, for machines that it is copied to, so that it has functions of install
// again.
func TestScriptsShareFunctions(t *testing.T) {
	var shared []string
	for _, name := range []string{"install", "swap"} {
		data, err := files.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(data), "\ndie() {\n")
		functions, _, found := strings.Cut(rest, "\n# end of functions\n")
		if !found {
			t.Fatalf("%s has no shared functions", name)
		}
		shared = append(shared, functions)
	}
	if shared[0] != shared[1] {
		t.Errorf("the functions of install are\n%s\nthose of swap\n%s", shared[0], shared[1])
	}
}
