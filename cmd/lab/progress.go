package main

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// progress shows a changing line on a terminal, and nothing elsewhere.
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

// say shows a text, unless less than a second has passed since the start.
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

// busy shows a text if the work takes longer than a second. Call end when the work is done.
func (c *call) busy(format string, args ...any) (end func()) {
	p := newProgress(c)
	timer := time.AfterFunc(time.Second, func() { p.say(fmt.Sprintf(format, args...)) })
	return func() {
		timer.Stop()
		p.end()
	}
}
