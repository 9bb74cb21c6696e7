package guest

import (
	"os/exec"
	"sync"
	"testing"
)

// TestKilledBeforeItsStart: the host may give up on a program before the guest has started it.
func TestKilledBeforeItsStart(t *testing.T) {
	p := &process{}
	p.ready = sync.NewCond(&p.mu)
	p.kill()
	cmd := exec.Command("true")
	if err := p.start(cmd, nil); err == nil || cmd.Process != nil {
		t.Errorf("error %v, process %v; want an error and no process", err, cmd.Process)
	}
}
