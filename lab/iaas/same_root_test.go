//go:build root

package iaas

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/sirupsen/logrus"

	"cambium/internal/skiptest"
	"cambium/lab/netns"
)

// TestRootSameNameInAnotherDirectory: an IaaS is known by its directory. One of the same name in another directory
// neither ends the machines of the first nor takes its network.
func TestRootSameNameInAnotherDirectory(t *testing.T) {
	skiptest.WithoutRoot(t, "for network namespaces")
	log := logrus.New()
	log.SetOutput(io.Discard)
	name := fmt.Sprintf("n%d", os.Getpid())
	open := func(dir string) *IaaS {
		t.Helper()
		i, err := Open(dir, name, logrus.NewEntry(log))
		if err != nil {
			t.Fatal(err)
		}
		return i
	}
	closed := func(i *IaaS) {
		t.Helper()
		if err := i.Close(); err != nil {
			t.Error(err)
		}
	}
	dir := t.TempDir()
	first := open(dir)
	t.Cleanup(func() { closed(first) })
	vm, err := netns.Create(first.machineName(newCID(VMs))) // as that of a container
	if err != nil {
		t.Fatal(err)
	}
	process := exec.Command("nsenter", "--net="+vm.Path(), "sh", "-c", "echo inside; exec sleep 600")
	output, err := process.StdoutPipe()
	if err == nil {
		err = process.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(output).ReadString('\n'); err != nil {
		t.Fatalf("%q, %v", line, err)
	}
	ended := make(chan error, 1)
	go func() { ended <- process.Wait() }()
	t.Cleanup(func() { _ = process.Process.Kill() })
	closed(open(t.TempDir()))
	select {
	case err := <-ended:
		t.Errorf("a machine of the first ended: %v", err)
	default:
	}
	if _, err := first.Net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Errorf("the network of the first: %v", err)
	}

	// The same directory by another path is the same IaaS.
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	if RuntimeName(link, name) != RuntimeName(dir, name) {
		t.Errorf("%s and %s are two", link, dir)
	}
}
