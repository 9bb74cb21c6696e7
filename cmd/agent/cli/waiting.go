package cli

import (
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"
)

// silence is the delay after which a waiting command shows a person what it is waiting for.
const silence = 2 * time.Second

// SayWaiting shows on a terminal what a command is waiting for once the wait exceeds two seconds, and again each time
// that changes. The function that it returns stops this.
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

// Waiting describes what a command is waiting for. The description may change at any time.
type Waiting struct{ text atomic.Value }

// Set changes the description.
func (w *Waiting) Set(text string) { w.text.Store(text) }

// Say is SayWaiting.
func (w *Waiting) Say(to io.Writer) (end func()) {
	return SayWaiting(to, func() string {
		text, _ := w.text.Load().(string)
		return text
	})
}
