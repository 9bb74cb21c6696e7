package main

import (
	"context"
	"io"

	"github.com/sirupsen/logrus"

	"cambium/internal/vcap"
	"cambium/settings/agentjson"
)

// describeDisk tells what is on a persistent disk, for `agent disk format`. It asks no source: the disk is one that the
// agent knows.
func describeDisk(ctx context.Context, dirs vcap.Dirs, cid string) (string, error) {
	config, rep, err := agentjson.Load(dirs.AgentJSON())
	if err == nil {
		err = rep.Err()
	}
	if err != nil {
		return "", err
	}
	quiet := logrus.New()
	quiet.SetOutput(io.Discard)
	m, err := newMachine(machineOptions{dirs: dirs, config: config, log: logrus.NewEntry(quiet), readOnly: true})
	if err != nil {
		return "", err
	}
	return m.disks.Persistent.Describe(ctx, cid)
}
