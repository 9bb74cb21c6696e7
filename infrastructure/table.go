package infrastructure

import (
	"fmt"

	"cambium/infrastructure/configdrive"
	"cambium/infrastructure/filesource"
	"cambium/infrastructure/guestinfo"
	"cambium/infrastructure/metadata"
	"cambium/settings/agentjson"
)

// table has a constructor for each source type of agent.json.
var table = map[string]func(agentjson.Source, agentjson.Settings, Options) Source{
	agentjson.HTTP: func(c agentjson.Source, _ agentjson.Settings, o Options) Source {
		return metadata.NewHTTP(
			metadata.Options{
				URI:            c.URI,
				Headers:        c.Headers,
				SettingsPath:   c.UserDataPath,
				InstanceIDPath: c.InstanceIDPath,
				SSHKeysPath:    c.SSHKeysPath,
				TokenPath:      c.TokenPath,
				NetworkUp:      o.NetworkUp,
				Connecting:     o.Connecting,
				Log:            o.Log,
			},
		)
	},
	agentjson.InstanceMetadata: func(c agentjson.Source, _ agentjson.Settings, o Options) Source {
		return metadata.NewInstanceMetadata(
			metadata.Options{URI: c.URI, Headers: c.Headers, SettingsPath: c.SettingsPath,
				NetworkUp: o.NetworkUp, Connecting: o.Connecting, Log: o.Log},
		)
	},
	agentjson.ConfigDrive: func(c agentjson.Source, _ agentjson.Settings, o Options) Source {
		return configdrive.New(
			configdrive.Options{DiskPaths: c.DiskPaths, MetaDataPath: c.MetaDataPath, UserDataPath: c.UserDataPath,
				SettingsPath: c.SettingsPath, Root: o.Root, Log: o.Log},
		)
	},
	agentjson.CDROM: func(c agentjson.Source, _ agentjson.Settings, o Options) Source {
		return configdrive.NewCD(configdrive.CDOptions{FileName: c.FileName, Root: o.Root, Log: o.Log})
	},
	agentjson.File: func(c agentjson.Source, s agentjson.Settings, _ Options) Source {
		return filesource.New(
			filesource.Options{
				SettingsPath: c.SettingsPath,
				MetaDataPath: c.MetaDataPath,
				UserDataPath: c.UserDataPath,
				UseRegistry:  s.UseRegistry,
			},
		)
	},
	agentjson.VsphereGuestInfo: func(c agentjson.Source, _ agentjson.Settings, _ Options) Source {
		return guestinfo.New(guestinfo.Options{RPCToolPath: c.RpcToolPath, VMToolsdPath: c.VmToolsdPath})
	},
}

func construct(c agentjson.Source, s agentjson.Settings, o Options) (Source, error) {
	make, known := table[c.Type]
	if !known {
		return nil, fmt.Errorf("unknown type %q", c.Type)
	}
	return make(c, s, o), nil
}
