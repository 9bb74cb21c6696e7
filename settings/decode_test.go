package settings

import (
	"testing"

	"cambium/internal/secret"
)

func TestSmoke(t *testing.T) {
	s, rep := Decode("settings.json", secret.NewJSON([]byte(`{
  "agent_id": "0b7e", "vm": {"name": "vm-0b7e", "id": "x"},
  "mbus": "nats://10.0.0.6:4222", "ntp": ["10.0.0.3"], "cloud": {"a" : 1},
  "blobstore": {"provider": "dav", "options": {"endpoint": "https://10.0.0.6:25250"}},
  "disks": {"system": {"path":"/dev/sda"}, "ephemeral": {"lun": 1}, "persistent": {"vol-9": {"path": "/dev/sdc", "x": null, "lun": null}, "vol-8": 3, "n": null}, "raw_ephemeral": [{"path":"/dev/x","volume_id":"8"}]},
  "networks": {"a": {"type": "manual", "ip": "10.0.0.9", "netmask": "255.255.255.0", "gateway": "10.0.0.1", "prefix": 24, "routes":[{"destination":"1.1.1.1"}],
                     "default": ["dns", "gateway"], "dns": ["10.0.0.2"], "mac": "02:00:00:00:00:0A", "use_dhcp": false}},
  "env": {"persistent_disk_fs": "xfs", "bosh": {"password": "$6$...", "swap_size": "2048", "parallel": 0, "group": "g",
          "mbus": {"urls": ["nats://10.0.0.6:4222"], "cert": {"ca": "PEM", "certificate": "PEM", "private_key": "PEM"}},
          "blobstores": [{"provider": "dav", "options": {}}], "ntp": []}}
}`)))
	t.Log(rep)
	t.Logf("%+v", s)
	t.Log(string(s.Encode().Reveal()))
	t.Log(string(s.Redacted()))
}
