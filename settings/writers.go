package settings

import (
	"fmt"
	"strings"
)

// writers tells where the values of settings come from. A star stands for the name of a network or disk.
var writers = []struct{ key, from string }{
	{
		"networks.*.ip",
		"from instance_groups[].networks[].static_ips of the manifest, or from the range in the cloud config",
	},
	{"networks.*.netmask", "from networks[].subnets[].range of the cloud config"},
	{"networks.*.gateway", "from networks[].subnets[].gateway of the cloud config"},
	{"networks.*.dns", "from networks[].subnets[].dns of the cloud config"},
	{"networks.*.default", "from instance_groups[].networks[].default of the manifest"},
	{"networks.*.mac", "written by the CPI"},
	{"networks.*.alias", "written by the CPI"},
	{"ntp", "written by the CPI, from its property ntp"},
	{"mbus", "written by the CPI, from its property agent.mbus"},
	{"blobstore", "written by the CPI, from its property agent.blobstore"},
	{"env.bosh.mbus.urls", "written by the Director, from its property nats.address"},
	{"env.bosh.mbus.cert", "written by the Director, from its properties nats.tls"},
	{"env.bosh.blobstores", "written by the Director, from its properties blobstore"},
	{"env.bosh.password", "from instance_groups[].env.bosh.password of the manifest"},
	{"disks.ephemeral", "written by the CPI"},
	{"disks.raw_ephemeral", "written by the CPI"},
}

// DescribeKey describes a key of the settings and where its value comes from. names replace the stars in key. It panics
// if the key is not in the table.
func DescribeKey(key string, names ...string) string {
	for _, o := range writers {
		if o.key == key {
			for _, name := range names {
				key = strings.Replace(key, "*", name, 1)
			}
			return fmt.Sprintf("%s in the settings (%s)", key, o.from)
		}
	}
	panic("nothing is known of the writer of " + key)
}
