package status

import (
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
)

// sendDelay is the time for which a text must be current before it is sent to the service manager. Each message wakes
// systemd, which is busy during a boot, and most steps of a normal boot are too short to be read.
const sendDelay = 500 * time.Millisecond

// ServiceLine is the status line that the service manager shows for the agent: STATUS= in systemd.
type ServiceLine struct {
	// Send sends a text to the service manager.
	Send func(text string) error
	Log  *logrus.Entry

	mu      sync.Mutex // guards the fields below
	texts   int        // number of texts so far; only the last one is sent
	pending *time.Timer
}

// ShowDelayed sends the text, unless another replaces it within sendDelay.
func (s *ServiceLine) ShowDelayed(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.replace()
	current := s.texts
	s.pending = time.AfterFunc(sendDelay, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.texts == current { // it may have been replaced while it waited for mu
			s.send(text)
		}
	})
}

// Show sends the text at once.
func (s *ServiceLine) Show(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.replace()
	s.send(text)
}

// replace cancels earlier texts that were not sent.
func (s *ServiceLine) replace() {
	s.texts++
	if s.pending != nil {
		s.pending.Stop()
	}
}

func (s *ServiceLine) send(text string) {
	if err := s.Send(strings.TrimPrefix(text, "STATUS=")); err != nil {
		s.Log.WithError(err).Debug("cannot notify the service manager")
	}
}
