package machine

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// Common is embedded by the machines of all engines. Boot is the engine's type for the state of a boot.
type Common[Boot any] struct {
	Spec Spec
	Mu   sync.Mutex // guards the fields below, and those that the engine names
	// Current is nil while the machine is off.
	Current *Boot

	boots int
	since time.Time
	done  chan struct{}
	over  bool // done is closed
	clean bool // the machine has powered itself off
}

// Begin initializes a machine that is off.
func (c *Common[Boot]) Begin(s Spec) { c.Spec, c.done = s, make(chan struct{}) }

// Booted records a start. The caller holds Mu.
func (c *Common[Boot]) Booted(b *Boot) {
	c.Current, c.since = b, time.Now()
	c.boots++
	if c.over {
		c.done, c.over = make(chan struct{}), false
	}
}

// Over records that the machine is off until it is started again. poweredOff means that the machine has powered itself
// off. The caller holds Mu.
func (c *Common[Boot]) Over(poweredOff bool) {
	c.clean = poweredOff
	if !c.over {
		c.over = true
		close(c.done)
	}
}

// PoweredOff reports whether the machine has powered itself off, and has not crashed.
func (c *Common[Boot]) PoweredOff() bool {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	return c.clean
}

// Name returns the name in the specification.
func (c *Common[Boot]) Name() string { return c.Spec.Name }

// Console returns the path of the file with the console's output.
func (c *Common[Boot]) Console() string { return filepath.Join(c.Spec.Dir, "console.log") }

// Done returns a channel that is closed when the machine is off until it is started again.
func (c *Common[Boot]) Done() <-chan struct{} {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	return c.done
}

// Boots returns the number of starts and the time of the last one.
func (c *Common[Boot]) Boots() (int, time.Time) {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	return c.boots, c.since
}

// Running reports whether the machine is on.
func (c *Common[Boot]) Running() bool {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	return c.Current != nil
}

// Fresh returns a function that removes the machine's directory after a failure. The function does nothing if the
// directory exists before.
func Fresh(dir string) (undo func() error) {
	if _, err := os.Lstat(dir); err == nil {
		return func() error { return nil }
	}
	return func() error { return os.RemoveAll(dir) }
}

// Failed returns the error of a program that ran in a machine, with its output.
func Failed(c Command, name string, err error, said string) error {
	if said = strings.TrimSpace(said); said != "" {
		return fmt.Errorf("%s in %s: %w: %s", c.Args[0], name, err, said)
	}
	return fmt.Errorf("%s in %s: %w", c.Args[0], name, err)
}
