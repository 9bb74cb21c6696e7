package supervisor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/smtp"
	"net/textproto"
	"strings"
	"sync"
	"time"

	"cambium/supervisor/monitfile"

	"github.com/sirupsen/logrus"
)

// maxMails bounds the alerts that wait for the agent; the oldest are dropped first.
const maxMails = 5000

// permanentFailure is the lowest code of SMTP that tells not to send the same again.
const permanentFailure = 500

// mailTimeout bounds the delivery of one alert.
const mailTimeout = 15 * time.Second

// maxText is the length of a text that jobs have a part in, such as an answer or a path: it becomes part of alerts,
// log, status and state.
const maxText = 500

// cut bounds a text where it enters.
func cut(text string) string {
	if len(text) <= maxText {
		return text
	}
	return strings.ToValidUTF8(text[:maxText], "") + "…"
}

// mail is an alert on its way to the agent.
type mail struct {
	ID          string    `json:"id"`
	Service     string    `json:"service"`
	Event       string    `json:"event"`
	Action      string    `json:"action"`
	Description string    `json:"description"`
	Date        time.Time `json:"date"`
}

// alertQueue holds the alerts that have not been delivered.
type alertQueue struct {
	address string
	log     *logrus.Entry
	more    chan struct{}
	// delivered is called after alerts were delivered, so that a restart does not send them again.
	delivered func()

	mu    sync.Mutex
	queue []mail
}

// alert sends an alert, at most one for each event of a service in a cycle, unless it was over in between: a process
// that ends in the cycle of its start is news.
func (c *chain) alert(s *service, e event, found outcome, action monitfile.Verb, text string) {
	entry := c.log(s).WithField("event", eventNames[e][index(found)]).WithField("action", action)
	if found == passed {
		delete(s.alerted, e)
		entry.Info(text)
	} else {
		entry.Warn(text)
	}
	if found != passed {
		if last, sent := s.alerted[e]; sent && last == c.cycle {
			return
		}
		s.alerted[e] = c.cycle
	}
	c.alerts.add(mail{Service: s.Name, Event: eventNames[e][index(found)], Action: action.String(), Description: text,
		Date: time.Now()}, c.host)
}

// index is the place of an outcome in eventNames.
func index(found outcome) int { return [...]int{passed: 1, failed: 0, changed: 2}[found] }

func (m *alertQueue) add(one mail, host string) {
	one.ID = fmt.Sprintf("%d.%09d@%s", one.Date.Unix(), one.Date.Nanosecond(), host)
	m.enqueue(one)
}

// enqueue appends an alert that has its ID.
func (m *alertQueue) enqueue(one mail) {
	for _, text := range []*string{&one.ID, &one.Service, &one.Event, &one.Action, &one.Description} {
		*text = cut(*text)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.queue = append(m.queue[max(0, len(m.queue)-maxMails+1):], one)
	token(m.more)
}

// pending returns what has not been delivered.
func (m *alertQueue) pending() []mail {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]mail(nil), m.queue...)
}

// send delivers alerts until ctx ends, in their order. While the agent does not take them, delivery is retried at each
// interval.
func (m *alertQueue) send(ctx context.Context, interval time.Duration) {
	for {
		before := m.pending()
		for _, one := range before {
			err := m.deliver(ctx, one)
			var answer *textproto.Error
			if errors.As(err, &answer) && answer.Code >= permanentFailure {
				m.log.WithError(err).WithField("service", one.Service).Error("the agent refuses an alert; it is dropped")
			} else if err != nil {
				m.log.WithError(err).Debug("cannot deliver an alert yet")
				break
			}
			m.mu.Lock()
			if len(m.queue) > 0 && m.queue[0].ID == one.ID {
				m.queue = m.queue[1:]
			}
			m.mu.Unlock()
		}
		now := m.pending()
		if len(before) > 0 && (len(now) == 0 || now[0].ID != before[0].ID) {
			m.delivered()
		}
		retry := time.NewTimer(interval)
		if len(now) == 0 {
			retry.Stop()
		}
		select {
		case <-ctx.Done():
			retry.Stop()
			return
		case <-m.more:
		case <-retry.C:
		}
		retry.Stop()
	}
}

// deliver sends one alert, in the form that a stemcell's monit is told to use.
func (m *alertQueue) deliver(ctx context.Context, one mail) error {
	ctx, cancel := context.WithTimeout(ctx, mailTimeout)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", m.address)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // after Quit it is closed already
	if err := conn.SetDeadline(time.Now().Add(mailTimeout)); err != nil {
		return err
	}
	client, err := smtp.NewClient(conn, "localhost")
	if err != nil {
		return err
	}
	if err := client.Mail("monit@localhost"); err != nil {
		return err
	}
	if err := client.Rcpt("agent@local"); err != nil {
		return err
	}
	body, err := client.Data()
	if err != nil {
		return err
	}
	line := strings.NewReplacer("\r", " ", "\n", " ")
	if _, err := fmt.Fprintf(body,
		"From: monit@localhost\r\nTo: agent@local\r\nSubject: Monit Alert\r\nMessage-id: <%s>\r\n\r\n"+
			"Service: %s\r\nEvent: %s\r\nAction: %s\r\nDate: %s\r\nDescription: %s\r\n", one.ID, one.Service, one.Event,
		one.Action,
		one.Date.Format(time.RFC1123Z), line.Replace(one.Description)); err != nil {
		return err
	}
	if err := body.Close(); err != nil {
		return err
	}
	return client.Quit()
}
