package network

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cambium/platform/network/networkd"
)

// Fake replaces systemd-networkd where that is not running. It counts calls and lets a test act like the real one.
type Fake struct {
	Version int
	Reloads int
	// OnReload gets the content of each of the agent's files by link.
	OnReload func(files map[string]string) error
}

// Use makes a kernel use the fake.
func (f *Fake) Use(t *testing.T, k *Kernel) *Kernel {
	t.Helper()
	k.daemon = fakeDaemon{f, k}
	return k
}

type fakeDaemon struct {
	*Fake
	k *Kernel
}

func (f fakeDaemon) Probe() networkd.Status {
	return networkd.Status{Available: true, Version: f.Version, ReloadPending: f.k.Networkd().Pending()}
}

func (f fakeDaemon) Reload(context.Context, map[int]networkd.AwaitedLink) error {
	f.Reloads++
	if f.OnReload == nil {
		return nil
	}
	files := map[string]string{}
	for _, dir := range []string{networkd.RunDir, networkd.EtcDir} {
		found, err := filepath.Glob(f.k.path(dir, "10_*.network"))
		if err != nil {
			return err
		}
		for _, path := range found {
			content, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			files[strings.TrimSuffix(strings.TrimPrefix(filepath.Base(path), "10_"), ".network")] = string(content)
		}
	}
	return f.OnReload(files)
}
