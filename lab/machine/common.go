package machine

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// Common is the part that the machines of all engines share; each embeds it with its own type for the state of a
// boot.
type Common[Boot any] struct {
	Spec Spec
	Mu   sync.Mutex // guards what follows, and what the engine says
	// Current is nil when the machine is switched off.
	Current *Boot

	boots int
	since time.Time
	done  chan struct{}
	over  bool // done is closed
	clean bool // the last end was a power-off from inside
}

// Begin prepares a machine that is off.
func (c *Common[Boot]) Begin(s Spec) { c.Spec, c.done = s, make(chan struct{}) }

// Booted notes a start; the caller holds Mu.
func (c *Common[Boot]) Booted(b *Boot) {
	c.Current, c.since = b, time.Now()
	c.boots++
	if c.over {
		c.done, c.over = make(chan struct{}), false
	}
}

// Over notes that the machine is off until it is started again; the caller holds Mu. poweredOff
// reports that the system in it wanted that.
func (c *Common[Boot]) Over(poweredOff bool) {
	c.clean = poweredOff
	if !c.over {
		c.over = true
		close(c.done)
	}
}

// PoweredOff reports whether the last end was a power-off from inside, not a crash.
func (c *Common[Boot]) PoweredOff() bool {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	return c.clean
}

// Name is the name in the specification.
func (c *Common[Boot]) Name() string { return c.Spec.Name }

// Console is the file with all output of the console.
func (c *Common[Boot]) Console() string { return filepath.Join(c.Spec.Dir, "console.log") }

// Done is closed when the machine is off until it is started again.
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

// Running reports whether it is switched on.
func (c *Common[Boot]) Running() bool {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	return c.Current != nil
}

// Fresh returns a function that undoes the creation of a machine's directory. It does nothing if
// the directory exists already.
func Fresh(dir string) (undo func() error) {
	if _, err := os.Lstat(dir); err == nil {
		return func() error { return nil }
	}
	return func() error { return os.RemoveAll(dir) }
}

// Failed is the error of a program that ran in a machine, with its output, if there is any.
func Failed(c Command, name string, err error, said string) error {
	if said = strings.TrimSpace(said); said != "" {
		return fmt.Errorf("%s in %s: %w: %s", c.Args[0], name, err, said)
	}
	return fmt.Errorf("%s in %s: %w", c.Args[0], name, err)
}
