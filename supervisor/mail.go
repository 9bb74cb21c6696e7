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

// maxMails bounds the undelivered alerts. The oldest are dropped first.
const maxMails = 5000

// permanentFailure is the lowest SMTP reply code after which the same mail must not be sent again.
const permanentFailure = 500

// mailTimeout bounds the delivery of an alert.
const mailTimeout = 15 * time.Second

// maxText bounds texts that jobs can influence, such as answers and paths. They are used in alerts, logs, status and
// state.
const maxText = 500

// cut shortens text to maxText.
func cut(text string) string {
	if len(text) <= maxText {
		return text
	}
	return strings.ToValidUTF8(text[:maxText], "") + "…"
}

// Mail is an alert, in the mail format for which a stemcell configures monit.
type Mail struct {
	ID          string    `json:"id"`
	Service     string    `json:"service"`
	Event       string    `json:"event"`
	Action      string    `json:"action"`
	Description string    `json:"description"`
	Date        time.Time `json:"date"`
}

// alertQueue holds the undelivered alerts.
type alertQueue struct {
	address string
	log     *logrus.Entry
	more    chan struct{}
	// delivered is called after alerts were delivered, so that they are not sent again after a restart.
	delivered func()

	mu    sync.Mutex
	queue []Mail
}

// alert sends an alert: in each cycle, at most one for each event of a service, unless the service has recovered in
// between. A process that ends in the cycle in which it was started is worth a new alert.
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
	c.alerts.add(Mail{Service: s.Name, Event: eventNames[e][index(found)], Action: action.String(), Description: text,
		Date: time.Now()}, c.host)
}

// index returns the position of an outcome in eventNames.
func index(found outcome) int { return [...]int{passed: 1, failed: 0, changed: 2}[found] }

func (m *alertQueue) add(one Mail, host string) {
	one.ID = fmt.Sprintf("%d.%09d@%s", one.Date.Unix(), one.Date.Nanosecond(), host)
	m.enqueue(one)
}

// enqueue adds an alert that has its id.
func (m *alertQueue) enqueue(one Mail) {
	for _, text := range []*string{&one.ID, &one.Service, &one.Event, &one.Action, &one.Description} {
		*text = cut(*text)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.queue = append(m.queue[max(0, len(m.queue)-maxMails+1):], one)
	token(m.more)
}

// pending returns a copy of the queue.
func (m *alertQueue) pending() []Mail {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]Mail(nil), m.queue...)
}

// send delivers the alerts in order until ctx ends. If the agent does not accept an alert, it retries at each interval.
func (m *alertQueue) send(ctx context.Context, interval time.Duration) {
	for {
		before := m.pending()
		for _, one := range before {
			err := SendMail(ctx, m.address, one)
			var answer *textproto.Error
			if errors.As(err, &answer) && answer.Code >= permanentFailure {
				m.log.WithError(err).
					WithField("service", one.Service).
					Error("the agent refuses an alert; it is dropped")
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

// SendMail sends an alert to the agent that listens on the address.
func SendMail(ctx context.Context, address string, m Mail) error {
	ctx, cancel := context.WithTimeout(ctx, mailTimeout)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
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
			"Service: %s\r\nEvent: %s\r\nAction: %s\r\nDate: %s\r\nDescription: %s\r\n", m.ID, m.Service, m.Event, m.Action,
		m.Date.Format(time.RFC1123Z), line.Replace(m.Description)); err != nil {
		return err
	}
	if err := body.Close(); err != nil {
		return err
	}
	_ = client.Quit() // the agent has the mail
	return nil
}
