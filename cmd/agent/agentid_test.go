package main

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"cambium/agent/task"
	"cambium/bootstrap"
	"cambium/internal/secret"
	"cambium/internal/status"
	"cambium/internal/vcap"
	"cambium/jobs"
	"cambium/jobs/bundle"
	"cambium/settings/store"
	diskrecord "cambium/storage/record"
	"cambium/storage/recordfile"
)

// TestAnotherAgentIDInheritsNothing leaves what an agent records, each by the code that does so, gives the machine
// another agent id, and asks the same code.
func TestAnotherAgentIDInheritsNothing(t *testing.T) {
	dirs := vcap.New(t.TempDir())
	logger := logrus.New()
	logger.SetOutput(io.Discard)
	log := logrus.NewEntry(logger)
	start := func(agentID string) *store.Current {
		t.Helper()
		current, err := store.Open(dirs, store.Options{Log: log, Fetch: func(context.Context) (store.Fetched, error) {
			document := `{"agent_id":"` + agentID + `","mbus":"nats://10.0.0.6:4222"}`
			return store.Fetched{Raw: secret.NewJSON([]byte(document)), From: "File x"}, nil
		}})
		if err != nil {
			t.Fatal(err)
		}
		if loaded, err := current.Load(t.Context()); err != nil || loaded.NotCached != nil {
			t.Fatal(err, loaded.NotCached)
		}
		return current
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	disks, marker, starts := recordfile.In(dirs), bootstrap.ReadyMarker{Dirs: dirs}, jobs.StartRequest{Dirs: dirs}

	place := start("a-1").Place()
	tasks, err := task.Open(t.Context(), task.Options{Path: place.TaskRecord(), Log: log})
	must(err)
	tasks.Begin("apply", false).Persist()
	must(disks.Update(func(r *diskrecord.Record) { r.Put("vol-1", diskrecord.Disk{FileSystem: "uuid", Bytes: 1}) }))
	must(disks.Ask(diskrecord.Accept, "vol-2", ""))
	must(marker.Set("a-1"))
	must(starts.Record(time.Now(), ""))
	must(status.AddBoot(dirs.Boots(), status.Document{BootID: "boot"}))
	must((&jobs.SpecFile{Dirs: dirs}).Write(jobs.Spec{Deployment: "a deployment"}, &bundle.Switch{}))
	must(os.MkdirAll(dirs.MonitJobs(), 0o700))
	must(os.WriteFile(filepath.Join(dirs.MonitJobs(), "0000_web.monitrc"), nil, 0o600))
	must(os.WriteFile(dirs.MonitStopped(), nil, 0o600))

	check := func(inherits bool) {
		t.Helper()
		counts, err := task.Count(place.TaskRecord())
		must(err)
		disk, err := disks.Read()
		must(err)
		boots, err := status.Boots(dirs.Boots())
		must(err)
		spec, err := (&jobs.SpecFile{Dirs: dirs}).Spec()
		must(err)
		stopped, err := jobs.HeldBack(dirs, false)
		must(err)
		for what, has := range map[string]bool{
			"task": counts.Running == 1, "disk record": disk.Disks["vol-1"].FileSystem == "uuid",
			"request":      disk.Accepted() == "vol-2",
			"ready marker": !marker.First("a-1"), "start": starts.Due(time.Time{}), "boot": len(boots) == 1,
			"spec": spec.Deployment != "", "monit file": len(stopped) == 1,
		} {
			if has != inherits {
				t.Errorf("%s: %v, want %v", what, has, inherits)
			}
		}
	}
	start("a-1")
	check(true)
	start("b-2")
	check(false)
}
