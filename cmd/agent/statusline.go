package main

import (
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
)

// readable is how long something goes on before it is worth a line. Each wakes the service manager, which at boot has more
// to do than anybody else, and none of the steps of a normal boot lasts until somebody could read it.
const readable = 500 * time.Millisecond

// A statusLine is what the service manager shows of the agent.
type statusLine struct {
	tell func(text string) error
	log  *logrus.Entry

	mu   sync.Mutex
	next *time.Timer // what is told soon
}

// soon shows the text if it is still true after a while.
func (s *statusLine) soon(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forget()
	var timer *time.Timer
	timer = time.AfterFunc(readable, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.next == timer {
			s.show(text)
		}
	})
	s.next = timer
}

// now shows the text, whatever was to be told before.
func (s *statusLine) now(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forget()
	s.show(text)
}

func (s *statusLine) forget() {
	if s.next != nil {
		s.next.Stop()
		s.next = nil
	}
}

func (s *statusLine) show(text string) {
	if err := s.tell(strings.TrimPrefix(text, "STATUS=")); err != nil {
		s.log.WithError(err).Debug("service manager not told")
	}
}
