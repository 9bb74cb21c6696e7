//go:build bench && machine

package machine

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"cambium/integration/lab"
	"cambium/integration/lab/iaas"
)

// medianOf measures several runs.
func medianOf(runs int, f func()) time.Duration {
	var all []time.Duration
	for range runs {
		begin := time.Now()
		f()
		all = append(all, time.Since(begin))
	}
	slices.Sort(all)
	return all[len(all)/2]
}

// BenchmarkCPI compares, in one run: a call with the start of any program, a container of the CPI with one of `lab up`,
// many at once with one, and tells what each costs.
func BenchmarkCPI(b *testing.B) {
	c := newCloud(b, fmt.Sprintf("b%d", os.Getpid()))
	sc := c.cid("create_stemcell", stemcellImage(b), map[string]any{})
	bare := medianOf(21, func() { _ = exec.Command("/bin/true").Run() })
	info := medianOf(21, func() { c.must("info") })
	has := medianOf(21, func() { c.must("has_vm", "vm-nothing") })
	b.ReportMetric(info.Seconds()/bare.Seconds(), "info/exec")
	b.ReportMetric(has.Seconds()/bare.Seconds(), "has_vm/exec")

	l := newLab(b)
	up := medianOf(3, func() {
		i, err := l.Create(b.Context(), lab.VM{Ephemeral: lab.GiB, HTTPS: true})
		if err == nil {
			err = i.Start(b.Context())
		}
		if err == nil {
			err = i.Ready(b.Context())
		}
		if err == nil {
			err = i.Delete(b.Context())
		}
		if err != nil {
			b.Fatal(err)
		}
	})
	one := medianOf(3, func() {
		vm := c.cid("create_vm", order(sc, "10.245.0.6")...)
		c.pong("10.245.0.6", time.Minute)
		c.must("delete_vm", vm)
	})
	b.ReportMetric(one.Seconds()/up.Seconds(), "create_vm/lab-up")
	b.ReportMetric(c.atOnce(sc, iaas.Container, 20).Seconds()/one.Seconds(), "20-containers/1")
	c.must("delete_stemcell", sc)
	c.gone()
}

// BenchmarkCPIVirtualMachines measures three virtual machines at once against one.
func BenchmarkCPIVirtualMachines(b *testing.B) {
	c := newCloud(b, fmt.Sprintf("v%d", os.Getpid()))
	sc := c.cid("create_stemcell", stemcellImage(b), map[string]any{})
	one := c.atOnce(sc, iaas.QEMU, 1)
	b.ReportMetric(c.atOnce(sc, iaas.QEMU, 3).Seconds()/one.Seconds(), "3-vms/1")
	c.must("delete_stemcell", sc)
	c.gone()
}

// atOnce makes VMs in parallel, tells what they cost when all agents answer, and deletes them.
func (c *cloud) atOnce(stemcell, engine string, n int) time.Duration {
	c.t.Helper()
	free, begin := available(c.t), time.Now()
	cids := make([]string, n)
	var all sync.WaitGroup
	for k := range n {
		all.Go(func() {
			o := order(stemcell, fmt.Sprintf("10.245.0.%d", 10+k))
			o[2].(map[string]any)["engine"] = engine
			cids[k] = c.cid("create_vm", o...)
		})
	}
	all.Wait()
	for k := range n {
		c.pong(fmt.Sprintf("10.245.0.%d", 10+k), 10*time.Minute)
	}
	took := time.Since(begin)
	c.t.Logf("%d of engine %s: %.1f s to the last pong, each %d MB of memory and %d MB of disk", n, engine, took.Seconds(),
		(free-available(c.t))/int64(n)>>20, occupied(c.t, filepath.Join(iaas.Directory(c.dir, c.name), "vms"))/int64(n)>>20)
	for _, cid := range cids {
		c.must("delete_vm", cid)
	}
	return took
}

// available is the memory that the host could give to programs.
func available(t testing.TB) int64 {
	t.Helper()
	data, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(data) {
		if text, ok := strings.CutPrefix(string(line), "MemAvailable:"); ok {
			kib, err := strconv.ParseInt(strings.Fields(text)[0], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return kib << 10
		}
	}
	t.Fatal("/proc/meminfo does not tell")
	return 0
}

// occupied is what the files below a directory occupy.
func occupied(t testing.TB, dir string) (total int64) {
	t.Helper()
	err := filepath.WalkDir(dir, func(_ string, e os.DirEntry, err error) error {
		if err != nil {
			return nil // just gone
		}
		if info, err := e.Info(); err == nil {
			total += info.Sys().(*syscall.Stat_t).Blocks * 512
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return total
}
