package cli

import (
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"
)

// silence is the delay before a waiting command shows what it is waiting for.
const silence = 2 * time.Second

// SayWaiting shows on a terminal what a command is waiting for, once it has waited for two seconds, and whenever that
// changes. Call end to stop.
func SayWaiting(w io.Writer, what func() string) (end func()) {
	if !isTerminal(w) {
		return func() {}
	}
	return sayWaiting(w, what, silence)
}

func sayWaiting(w io.Writer, what func() string, every time.Duration) (end func()) {
	over := make(chan struct{})
	var saying sync.WaitGroup
	saying.Go(func() {
		ticks := time.NewTicker(every)
		defer ticks.Stop()
		for said := ""; ; {
			select {
			case <-over:
				return
			case <-ticks.C:
			}
			if text := what(); text != said && text != "" {
				said = text
				fmt.Fprintf(w, "waiting for %s\n", text)
			}
		}
	})
	return sync.OnceFunc(func() { close(over); saying.Wait() })
}

// Waiting holds what a command is waiting for, which may change at any time.
type Waiting struct{ text atomic.Value }

// Set changes the text.
func (w *Waiting) Set(text string) { w.text.Store(text) }

// Say calls SayWaiting with the text.
func (w *Waiting) Say(to io.Writer) (end func()) {
	return SayWaiting(to, func() string {
		text, _ := w.text.Load().(string)
		return text
	})
}
