//go:build root

package cpi

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"cambium/internal/skiptest"
	"cambium/lab/iaas"
)

// hostileCalls is the number of calls to the CPI's program; hostileTimeout bounds each of them.
const (
	hostileCalls   = 300
	hostileTimeout = 2 * time.Minute
)

// TestRootHostileCallsOfTheProgram runs the CPI's program, and the holder that it starts, with hostile values at random
// places of requests of every method. Both are in namespaces of their own, in which directories that a path could lead
// to hold a sentinel each. Every call is answered, and no sentinel changes. The seed is logged;
// CAMBIUM_HOSTILE_SEED repeats a run.
func TestRootHostileCallsOfTheProgram(t *testing.T) {
	skiptest.WithoutRoot(t, "for namespaces")
	const inside = "CAMBIUM_TEST_HOSTILE"
	if program := os.Getenv(inside); program != "" {
		hostileRun(t, program)
		return
	}
	program := filepath.Join(t.TempDir(), "cpi")
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-buildvcs=false", "-tags", "nethttpomithttp2",
		"-o", program, "cambium/cmd/cpi")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v: %s", err, out)
	}
	child := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
	child.Env = append(os.Environ(), inside+"="+program)
	// The holder ends with the child, which is the first process of its namespace.
	const namespaces = syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWNET
	child.SysProcAttr = &syscall.SysProcAttr{Cloneflags: namespaces}
	out, err := child.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Error(err)
	}
}

// guarded are directories that get a file system with a sentinel in it.
var guarded = []string{"/root", "/home", "/srv", "/opt", "/mnt", "/media"}

func hostileRun(t *testing.T, program string) {
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		t.Fatal(err)
	}
	for _, dir := range append([]string{"/run"}, guarded...) {
		if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, ""); err != nil {
			t.Fatalf("%s: %v", dir, err)
		}
	}
	for _, dir := range guarded {
		sentinels(t, dir, dir)
	}
	base := t.TempDir()
	dir := filepath.Join(base, "a", "b", "c")
	sentinels(t, base, dir)
	config := filepath.Join(base, "cpi.json")
	if err := os.WriteFile(config, []byte(`{"dir":"`+dir+`"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	image := filepath.Join(base, "image")
	if err := os.WriteFile(image, rootTarball(t), 0o600); err != nil {
		t.Fatal(err)
	}
	call := func(request []byte) (r Reply) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), program, "--config", config)
		cmd.Stdin = bytes.NewReader(request)
		timer := time.AfterFunc(hostileTimeout, func() { _ = cmd.Process.Kill() })
		out, err := cmd.Output()
		timer.Stop()
		if err := errors.Join(err, json.Unmarshal(out, &r)); err != nil {
			t.Fatalf("%s: %v: %q", request, err, out)
		}
		return r
	}
	made := func(request string) string {
		t.Helper()
		r := call([]byte(request))
		data, err := json.Marshal(r.Result)
		if err != nil || r.Error != nil {
			t.Fatalf("%s: %+v, %v", request, r.Error, err)
		}
		return string(data)
	}
	stemcell := made(`{"method":"create_stemcell","arguments":["` + image + `",{}]}`)
	disk := made(`{"method":"create_disk","arguments":[16,{},null]}`)
	state := func() map[string]string {
		all := snapshot(t, base, iaas.Directory(dir, iaas.DefaultName))
		for _, dir := range guarded {
			maps.Copy(all, snapshot(t, dir, ""))
		}
		return all
	}
	before := state()
	for _, request := range hostileChoice(t, base, stemcell, disk) {
		call(request)
		if after := state(); !maps.Equal(before, after) {
			t.Fatalf("%s changes files outside of the IaaS:\n%s", request, difference(before, after))
		}
	}
}

// hostileChoice are requests at random among all that have one hostile value.
func hostileChoice(t *testing.T, base, stemcell, disk string) (chosen [][]byte) {
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("CAMBIUM_HOSTILE_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("CAMBIUM_HOSTILE_SEED=%d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	values := hostileValues(base)
	for _, dir := range guarded {
		values = append(values, dir+"/sentinel", strings.Repeat("../", 9)+dir[1:]+"/sentinel")
	}
	// The properties of a cpi-config are read by the program alone.
	const properties = `"context":{"lab":{"name":"default"},` +
		`"agent":{"mbus":"nats://x","ntp":["x"],"blobstore":{"provider":"x"}},`
	var all [][]byte
	for _, request := range validRequests(stemcell, disk) {
		for _, text := range []string{request, strings.Replace(request, `"context":{`, properties, 1)} {
			mutations(t, text, values[random.IntN(len(values))], func(_ string, hostile []byte) {
				all = append(all, bytes.Clone(hostile))
			})
		}
	}
	for range hostileCalls {
		chosen = append(chosen, all[random.IntN(len(all))])
	}
	return chosen
}
