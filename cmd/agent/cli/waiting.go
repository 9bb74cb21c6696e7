package cli

import (
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"
)

// silence is how long a command may say nothing to a person.
const silence = 2 * time.Second

// SayWaiting prints to a terminal what a command waits for if that takes more than two seconds, and again when it is
// something else. The function that it returns ends that.
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

// Waiting is what a command waits for; it may change.
type Waiting struct{ text atomic.Value }

// Set changes it.
func (w *Waiting) Set(text string) { w.text.Store(text) }

// Say is SayWaiting.
func (w *Waiting) Say(to io.Writer) (end func()) {
	return SayWaiting(to, func() string {
		text, _ := w.text.Load().(string)
		return text
	})
}
