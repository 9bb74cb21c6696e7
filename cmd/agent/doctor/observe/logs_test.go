package observe

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"cambium/internal/vcap"
)

// TestLogsOfTheJobThatOwnsAService: a service is rarely called as its job is, and a job has a monit file for each
// label.
func TestLogsOfTheJobThatOwnsAService(t *testing.T) {
	dirs := vcap.New(t.TempDir())
	put := func(path, text string, age time.Duration) string {
		t.Helper()
		at := time.Now().Add(-age)
		for _, err := range []error{os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600),
			os.Chtimes(path, at, at)} {
			if err != nil {
				t.Fatal(err)
			}
		}
		return path
	}
	put(filepath.Join(dirs.MonitJobs(), "0001_cloud_controller_worker.monitrc"),
		"check process worker_1\n  with pidfile x\n\ncheck process \"worker_2\" with pidfile y\n", 0)
	put(filepath.Join(dirs.MonitJobs(), "0000_other.monitrc"), "check process worker_11 with pidfile z", 0)
	old := put(filepath.Join(dirs.JobLogs(), "cloud_controller", "worker.stdout.log"), "", time.Hour)
	young := put(filepath.Join(dirs.JobLogs(), "cloud_controller", "worker.stderr.log"), "", 0)
	put(filepath.Join(dirs.JobLogs(), "other", "other.log"), "", 0)
	for _, service := range []string{"worker_1", "worker_2"} {
		if got := JobLogs(dirs, service); !slices.Equal(got, []string{young, old}) {
			t.Errorf("%s: %q", service, got)
		}
	}
	if got := JobLogs(dirs, "worker"); got != nil {
		t.Errorf("a service that no job has: %q", got)
	}
}
