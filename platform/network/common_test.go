//go:build ns || machine

package network_test

import (
	"context"
	"errors"

	"github.com/sirupsen/logrus"

	"cambium/platform/network"
	"cambium/settings"
)

const (
	mac0 = "52:54:00:00:00:01"
	mac1 = "52:54:00:00:00:02"
)

type nets map[string]settings.Network

var errKilled = errors.New("killed")

// applySome applies changes like a process that is killed after that many of them.
func applySome(ctx context.Context, k *network.Kernel, changes []network.Change, stop int) error {
	ctx, kill := context.WithCancelCause(ctx)
	defer kill(nil)
	if stop == 0 {
		return nil
	}
	log := logrus.New()
	log.SetOutput(nowhere{})
	log.AddHook(&countdown{stop, func() { kill(errKilled) }})
	killed := *k
	killed.Log = logrus.NewEntry(log)
	if _, err := killed.Apply(ctx, changes); !errors.Is(err, errKilled) {
		return err
	}
	return nil
}

type nowhere struct{}

func (nowhere) Write(p []byte) (int, error) { return len(p), nil }

// countdown acts after a number of log entries; there is one for each change.
type countdown struct {
	left int
	act  func()
}

func (c *countdown) Levels() []logrus.Level { return []logrus.Level{logrus.InfoLevel} }

func (c *countdown) Fire(*logrus.Entry) error {
	if c.left--; c.left == 0 {
		c.act()
	}
	return nil
}
