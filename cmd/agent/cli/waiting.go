package cli

import (
	"fmt"
	"io"
	"sync"
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
