package main

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// progress shows one changing line on a terminal, and nothing elsewhere.
type progress struct {
	mu    sync.Mutex
	w     io.Writer
	shown bool
	tty   bool
	since time.Time
}

func newProgress(c *call) *progress {
	f, ok := c.stderr.(*os.File)
	return &progress{w: c.stderr, tty: ok && isTerminal(f), since: time.Now()}
}

func isTerminal(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// say shows text once it has taken longer than a second.
func (p *progress) say(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.tty || text == "" || time.Since(p.since) < time.Second {
		return
	}
	_, _ = fmt.Fprintf(p.w, "\r\x1b[K%s", text)
	p.shown = true
}

func (p *progress) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.shown {
		_, _ = fmt.Fprint(p.w, "\r\x1b[K")
		p.shown = false
	}
}

// busy shows text if what it stands for takes longer than a second, until the result is called.
func (c *call) busy(format string, args ...any) (end func()) {
	p := newProgress(c)
	timer := time.AfterFunc(time.Second, func() { p.say(fmt.Sprintf(format, args...)) })
	return func() {
		timer.Stop()
		p.end()
	}
}
