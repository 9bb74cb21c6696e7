package jobs

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/sirupsen/logrus"

	"cambium/internal/vcap"
)

// The supervisor answers some time after a boot. A Director that stops the instance before that must not find the jobs
// started again after its stop.
func TestACommandSupersedesAPendingStart(t *testing.T) {
	for name, command := range map[string]func(*Instance) error{
		"stop":      func(i *Instance) error { return i.Stop(t.Context(), true) },
		"start":     func(i *Instance) error { return i.Start(t.Context()) },
		"unmonitor": func(i *Instance) error { return i.Unmonitor(t.Context()) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var pending PendingStart
				ended := false
				go pending.Run(t.Context(), func(ctx context.Context) {
					<-ctx.Done()
					ended = true
				})
				synctest.Wait()
				i := &Instance{Dirs: vcap.New(t.TempDir()), Supervisor: &fakeSupervisor{}, Pending: &pending,
					Log: logrus.NewEntry(logrus.New())}
				if err := command(i); err != nil {
					t.Fatal(err)
				}
				if !ended {
					t.Error("the pending start goes on")
				}
				pending.Run(t.Context(), func(context.Context) { t.Error("a start that was superseded is made") })
			})
		})
	}
}
