package vitals

import (
	"encoding/json"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestFileSystemThatHangs: a file system that does not respond is measured once, however often its vitals are
// requested. Its last values are returned with their age.
func TestFileSystemThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int32
		hang := make(chan struct{})
		g, _, _ := gauge(t, "jammy")
		g.calls.Patience = mountTimeout
		g.paths = map[string]string{"system": "/", "persistent": "/store"}
		g.measure = func(path string) (usage, error) {
			if path == "/" {
				return usage{Disk: Disk{Percent: "7"}, mounted: true}, nil
			}
			if asked.Add(1) == 2 {
				<-hang
			}
			return usage{Disk: Disk{Percent: "42", InodePercent: "3"}, mounted: true}, nil
		}
		measured := func(within time.Duration, want string) {
			t.Helper()
			begin := time.Now()
			v, err := g.Measure(t.Context())
			if got, _ := json.Marshal(v.Disk); err != nil || string(got) != want {
				t.Errorf("got %s, %v, want %s", got, err, want)
			}
			if took := time.Since(begin); took > within {
				t.Errorf("took %v, want %v", took, within)
			}
		}
		fresh := `{"persistent":{"inode_percent":"3","percent":"42"},"system":{"percent":"7"}}`
		old := `{"persistent":{"age_secs":AGE,"inode_percent":"3","percent":"42"},"system":{"percent":"7"}}`
		measured(0, fresh)
		time.Sleep(30 * time.Second)
		measured(mountTimeout, strings.Replace(old, "AGE", "32", 1))
		before := runtime.NumGoroutine()
		for range 70 {
			measured(0, strings.Replace(old, "AGE", "32", 1))
		}
		time.Sleep(time.Hour)
		measured(0, strings.Replace(old, "AGE", "3632", 1))
		if more := runtime.NumGoroutine() - before; more > 0 || asked.Load() != 2 {
			t.Errorf("%d goroutines more, asked %d times, want 0 and 2", more, asked.Load())
		}
		close(hang)
		synctest.Wait()
		measured(0, fresh)
	})
}

// TestFileSystemThatHangsFromTheBeginning: a file system that has never responded is left out.
func TestFileSystemThatHangsFromTheBeginning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		g, _, _ := gauge(t, "jammy")
		g.paths = map[string]string{"persistent": "/store"}
		g.measure = func(string) (usage, error) { <-hang; return usage{mounted: true}, nil }
		v, err := g.Measure(t.Context())
		if err != nil || len(v.Disk) != 0 || v.CPU.User == "" {
			t.Errorf("got %+v, %v, want all but the disk", v, err)
		}
		close(hang)
	})
}
