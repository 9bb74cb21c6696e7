package status

import (
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
)

// sendDelay is the time for which a text must stay current before it is sent to the service manager. Each message wakes
// systemd, which is busy during a boot, and most steps of a normal boot are shorter than it takes to read their name.
const sendDelay = 500 * time.Millisecond

// ServiceLine is the one line that the service manager shows of the agent: STATUS= in systemd.
type ServiceLine struct {
	// Send passes the text on to the service manager.
	Send func(text string) error
	Log  *logrus.Entry

	mu      sync.Mutex // guards what follows
	texts   int        // how many there have been; the last one counts
	pending *time.Timer
}

// ShowDelayed sends the text if no other replaces it within sendDelay.
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

// replace makes sure that an earlier text is not sent any more.
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
