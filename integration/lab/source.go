package lab

import (
	"context"
	"encoding/json"
	"fmt"

	"cambium/integration/lab/machine"
)

// Source is a way in which settings reach a machine.
type Source string

// File is a file in the machine, as warden, docker and Azure's cloud-init have it.
const File Source = "file"

// settingsFile is where the file source looks.
const settingsFile = "/var/vcap/bosh/agent-bootstrap-env.json"

// delivery is how the settings of one machine get there.
type delivery struct {
	agentJSON []byte
	put       func(ctx context.Context, settings []byte) error
}

// agentJSON has the options of the lab's own stemcell. The machine is a container: disks are named
// by their path.
func agentJSON(source Document) []byte {
	data, err := json.MarshalIndent(Document{
		"Platform": map[string]any{"Linux": map[string]any{"PartitionerType": "parted", "ServiceManager": "systemd"}},
		"Infrastructure": map[string]any{"Settings": map[string]any{
			"Sources": []any{source}}},
	}, "", "  ")
	if err != nil {
		panic(err) // constant input
	}
	return data
}

func (i *Instance) deliver() (delivery, error) {
	switch i.vm.Source {
	case File:
		return delivery{
			agentJSON: agentJSON(Document{"Type": "File", "SettingsPath": settingsFile}),
			put: func(_ context.Context, settings []byte) error {
				return i.WriteFile(machine.File{Path: settingsFile, Data: settings, Mode: 0o600})
			},
		}, nil
	}
	return delivery{}, fmt.Errorf("settings source %q is not known", i.vm.Source)
}
