//go:build machine

package machine

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"cambium/internal/eventually"
	"cambium/lab/cpi"
	"cambium/lab/iaas"
	"cambium/lab/labtest"
	"cambium/lab/netns"
	"cambium/lab/release"
	"cambium/lab/sweep"
)

// programs are the lab and the CPI, built once.
var programs = sync.OnceValues(func() (p struct{ lab, cpi string }, err error) {
	if p.lab, err = labtest.Program("lab", "cambium/cmd/lab"); err == nil {
		p.cpi, err = labtest.Program("cpi", "cambium/cmd/cpi")
	}
	return p, err
})

// cloud is an IaaS behind the CPI's program.
type cloud struct {
	t                   testing.TB
	dir, name, lab, cpi string
	config              string
	host                string // file of the network namespace that is the host's; this process's if empty
}

func newCloud(t testing.TB, name string) *cloud {
	t.Helper()
	containers.Need(t)
	p, err := programs()
	if err != nil {
		t.Fatal(err)
	}
	c := &cloud{t: t, dir: t.TempDir(), name: name, lab: p.lab, cpi: p.cpi}
	c.config = filepath.Join(c.dir, "cpi.json")
	config, err := json.Marshal(map[string]any{"dir": c.dir, "name": name,
		"agent": map[string]any{"mbus": "https://mbus:secret@0.0.0.0:6868"}})
	if err == nil {
		err = os.WriteFile(c.config, config, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			log, _ := os.ReadFile(filepath.Join(iaas.Directory(c.dir, name), "log"))
			t.Logf("log of the holder:\n%s", labtest.Tail(string(log), 8<<10))
		}
		c.end()
	})
	return c
}

// runtime begins the names of what the IaaS makes outside of its directory.
func (c *cloud) runtime() string { return iaas.RuntimeName(c.dir, c.name) }

// client asks the holder without starting one.
func (c *cloud) client() cpi.Client { return cpi.Client{Dir: c.dir, Name: c.name} }

// end has the holder end, whatever is left in its IaaS, and removes that.
func (c *cloud) end() {
	if pid := c.holder(); pid != 0 {
		if p, err := os.FindProcess(pid); err == nil {
			_ = p.Signal(os.Interrupt)
		}
		eventually.True(c.t, "the holder ends", func() bool { return c.holder() == 0 })
	}
	// Also what a holder that did not start has left alone.
	if err := (sweep.Remains{Name: c.runtime(), Dir: c.dir}).Remove(); err != nil {
		c.t.Error(err)
	}
}

// holder is the process that has the IaaS, 0 if there is none.
func (c *cloud) holder() int {
	found, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range found {
		data, _ := os.ReadFile(path)
		if bytes.HasSuffix(data, []byte("\x00hold\x00"+c.dir+"\x00"+c.name+"\x00")) {
			pid := 0
			_, _ = fmt.Sscanf(path, "/proc/%d/", &pid)
			return pid
		}
	}
	return 0
}

// mounts are the mount points of this host.
func mounts(t testing.TB) (points []string) {
	t.Helper()
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		points = append(points, strings.Fields(line)[4])
	}
	return points
}

// gone checks that nothing is left of the IaaS.
func (c *cloud) gone() {
	c.t.Helper()
	own := iaas.Directory(c.dir, c.name)
	eventually.True(c.t, "the holder has ended and removed its directory", func() bool {
		_, err := os.Stat(own)
		return c.holder() == 0 && os.IsNotExist(err)
	})
	spaces, err := netns.List(c.runtime())
	if err != nil || len(spaces) > 0 {
		c.t.Errorf("network namespaces are left: %v %v", spaces, err)
	}
	for _, pattern := range []string{"/sys/block/loop*/loop/backing_file", "/proc/[0-9]*/cmdline"} {
		files, _ := filepath.Glob(pattern)
		for _, file := range files {
			data, _ := os.ReadFile(file)
			if bytes.Contains(data, []byte(own+"/")) || bytes.Contains(data, []byte(c.runtime()+".")) {
				c.t.Errorf("%s says %q", file, data)
			}
		}
	}
	for _, point := range mounts(c.t) {
		if strings.Contains(point, own+"/") || strings.Contains(point, c.runtime()) {
			c.t.Errorf("mount %s is left", point)
		}
	}
}

// call asks the CPI's program as a Director does: with a cleared environment.
func (c *cloud) call(method string, arguments ...any) cpi.Reply {
	c.t.Helper()
	return c.request(c.t.Context(), 2, method, arguments...)
}

func (c *cloud) request(ctx context.Context, version int, method string, arguments ...any) cpi.Reply {
	c.t.Helper()
	input, err := json.Marshal(map[string]any{"method": method, "arguments": append([]any{}, arguments...),
		"api_version": version,
		"context": map[string]any{"director_uuid": "director-1", "request_id": "cpi-1",
			"vm": map[string]any{"stemcell": map[string]any{"api_version": 3}}}})
	if err != nil {
		c.t.Fatal(err)
	}
	return c.raw(ctx, input)
}

func (c *cloud) raw(ctx context.Context, input []byte) (reply cpi.Reply) {
	c.t.Helper()
	argv := []string{c.cpi, "--config", c.config}
	if c.host != "" {
		argv = append([]string{"nsenter", "--net=" + c.host}, argv...)
	}
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	cmd.Stdin = bytes.NewReader(input)
	out, err := cmd.Output()
	if err != nil && ctx.Err() != nil {
		return reply // killed
	}
	var keys map[string]json.RawMessage
	if err == nil {
		err = errors.Join(json.Unmarshal(out, &keys), json.Unmarshal(out, &reply))
	}
	if err != nil || keys["result"] == nil || keys["error"] == nil || !bytes.HasPrefix(keys["log"], []byte(`"`)) {
		c.t.Errorf("%s: got %q (%v), want one document with result, error and log", input, out, err)
		return cpi.Reply{Error: &cpi.Error{Type: "none", Message: "no reply"}}
	}
	return reply
}

// must is a call that succeeds.
func (c *cloud) must(method string, arguments ...any) any {
	c.t.Helper()
	r := c.call(method, arguments...)
	if r.Error != nil {
		c.t.Fatalf("%s: %s: %s", method, r.Error.Type, r.Error.Message)
	}
	if method != "info" && !strings.HasPrefix(r.Log, method) { // the CPI itself answers info
		c.t.Errorf("%s: the log of the reply is %q", method, r.Log)
	}
	return r.Result
}

// cid is a call that makes something.
func (c *cloud) cid(method string, arguments ...any) string {
	c.t.Helper()
	result := c.must(method, arguments...)
	if list, ok := result.([]any); ok && len(list) == 2 {
		result = list[0]
	}
	cid, ok := result.(string)
	if !ok || cid == "" {
		c.t.Fatalf("%s: got %v, want a CID", method, result)
	}
	return cid
}

// stemcellFile is the tarball of our stemcell. The lab's program makes it: packing takes minutes under the race
// detector.
var stemcellFile = sync.OnceValues(func() (string, error) {
	p, err := programs()
	if err != nil {
		return "", err
	}
	path := filepath.Join(filepath.Dir(p.lab), "stemcell.tgz")
	agent, err := labtest.AgentPath()
	if err != nil {
		return "", err
	}
	if out, err := exec.Command(p.lab, "stemcell", "--agent", agent, "--version", "1.0.0", "--output",
		path).CombinedOutput(); err != nil {
		return "", fmt.Errorf("stemcell: %w: %s", err, out)
	}
	return path, nil
})

func stemcell(t testing.TB) string {
	t.Helper()
	path, err := stemcellFile()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// vm returns the holder's record of a VM, or of the only VM if cid is empty.
func (c *cloud) vm(cid string) iaas.VMListing {
	c.t.Helper()
	l, held, err := c.client().List(c.t.Context())
	if err != nil || !held {
		c.t.Fatalf("listing: held %v, %v", held, err)
	}
	for _, vm := range l.VMs {
		if vm.CID == cid || cid == "" && len(l.VMs) == 1 {
			return vm
		}
	}
	c.t.Fatalf("there is no VM %q among %d", cid, len(l.VMs))
	panic("unreachable")
}

// run runs a program in a container.
func (c *cloud) run(cid string, args ...string) string {
	c.t.Helper()
	shell := c.vm(cid).Shell
	argv := append(append([]string(nil), shell[:len(shell)-2]...), args...)
	out, err := exec.CommandContext(c.t.Context(), argv[0], argv[1:]...).CombinedOutput()
	if err != nil {
		c.t.Fatalf("%v: %v: %s", args, err, out)
	}
	return string(out)
}

// qemuArguments are those that a virtual machine of the IaaS was started with.
func (c *cloud) qemuArguments() []string {
	c.t.Helper()
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range files {
		data, _ := os.ReadFile(file)
		if bytes.HasPrefix(data, []byte("qemu-system-x86_64\x00-name\x00"+c.runtime()+".")) {
			return strings.Split(string(data), "\x00")
		}
	}
	c.t.Fatal("no QEMU runs for the IaaS")
	return nil
}

// shares checks that the VMs of one image share it: their own files, after the boot, are a small part of it.
func (c *cloud) shares(vms ...string) {
	c.t.Helper()
	dir := iaas.Directory(c.dir, c.name)
	images, err := os.ReadDir(filepath.Join(dir, "images"))
	if err != nil || len(images) != 1 {
		c.t.Errorf("images of two stemcells with the same bytes: %v, %v, want one", images, err)
	}
	image := occupied(c.t, filepath.Join(dir, "images"))
	for _, vm := range vms {
		if own := occupied(c.t, filepath.Join(dir, "vms", vm)); own == 0 || own > image/5 {
			c.t.Errorf("the files of %s occupy %d MB, those of the image %d MB; want a fifth at most", vm, own>>20, image>>20)
		}
	}
}

// occupied returns the bytes that the files below a directory occupy on the disk.
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

// env is an environment that the bosh CLI makes.
type env struct {
	*cloud
	bosh, work string
	variables  map[string]string
}

// run runs the CLI as its user does, inside the network.
func (e *env) run(command string, flags ...string) string {
	e.t.Helper()
	argv := []string{"enter", "--dir", e.dir, "--iaas", e.name, "--", e.bosh, "--tty", "--non-interactive", command,
		filepath.Join(e.work, "create-env.yml"),
		"--state", filepath.Join(e.work, "state.json"), "--vars-store", filepath.Join(e.work, "vars.yml")}
	for name, value := range e.variables {
		argv = append(argv, "--var", name+"="+value)
	}
	cmd := exec.CommandContext(e.t.Context(), e.lab, append(argv, flags...)...)
	cmd.Env = append(os.Environ(), "HOME="+e.work)
	begin := time.Now()
	out, err := cmd.CombinedOutput()
	if err != nil {
		e.t.Fatalf("bosh %s: %v\n%s", command, err, labtest.Tail(string(out), 8<<10))
	}
	e.t.Logf("bosh %s %s: %.1f s", command, strings.Join(flags, " "), time.Since(begin).Seconds())
	return string(out)
}

// answers checks that the job does: monit calls it running once its process is there, which on a busy host is before it listens.
func (e *env) answers() {
	e.t.Helper()
	transport := &http.Transport{DialContext: netns.Open(e.runtime()).DialContext, DisableKeepAlives: true}
	client := &http.Client{Transport: transport, Timeout: 10 * time.Second}
	eventually.True(e.t, "the job answers", func() bool {
		response, err := client.Get("http://" + e.variables["ip"] + ":8080/")
		if err != nil {
			return false
		}
		defer func() { _ = response.Body.Close() }()
		body, _ := io.ReadAll(response.Body)
		return strings.Contains(string(body), "hello")
	})
}

// starts counts the lines that the job's pre-start has left on the persistent disk.
func (e *env) starts() int {
	e.t.Helper()
	return strings.Count(e.cloud.run("", "cat", "/var/vcap/store/web/started"), "\n")
}

// boshCLI returns the path of the released bosh CLI.
func boshCLI(t *testing.T) string {
	t.Helper()
	var messages bytes.Buffer
	build := exec.CommandContext(t.Context(), "../../scripts/bosh-cli")
	build.Stderr = &messages
	out, err := build.Output()
	if err != nil {
		t.Fatalf("build of the bosh CLI: %v\n%s", err, &messages)
	}
	return strings.TrimSpace(string(out))
}

// newEnv prepares what create-env needs: the released CLI, the CPI's release, our stemcell, and a release that compiles on
// the VM.
func newEnv(t *testing.T, name, engine string) *env {
	t.Helper()
	e := &env{cloud: newCloud(t, fmt.Sprintf("%s%d", name, os.Getpid())), work: t.TempDir()}
	e.bosh = boshCLI(t)
	e.variables = map[string]string{"ip": "10.245.0.6", "engine": engine, "lab_dir": e.dir, "lab_name": e.name,
		"disk_size": "1024",
		"stemcell":  "file://" + stemcell(t), "cpi_release": "file://" + filepath.Join(e.work, "cpi.tgz"),
		"web_release": "file://" + filepath.Join(e.work, "web.tgz")}
	if err := cpi.WriteRelease(filepath.Join(e.work, "cpi.tgz"), e.cpi, "1"); err != nil {
		t.Fatal(err)
	}
	if err := release.WebSource("1").Write(filepath.Join(e.work, "web.tgz")); err != nil {
		t.Fatal(err)
	}
	manifest, err := os.ReadFile("../../docs/create-env.yml")
	if err == nil {
		err = os.WriteFile(filepath.Join(e.work, "create-env.yml"), manifest, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	return e
}
