package natsbus

import (
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/sirupsen/logrus"
)

const (
	// outboxBytes bounds the unconfirmed messages that are kept.
	outboxBytes = 8 << 20
	// outboxAge is the age at which a message is dropped. Its caller has given up by then, and an old report would be
	// taken for a new one.
	outboxAge = time.Minute
	// confirmEvery is the pause between two flushes (PING and PONG) that confirm delivery to the server.
	confirmEvery = 20 * time.Millisecond
)

type message struct {
	subject string
	data    []byte
	at      time.Time
	reply   bool // the reply to a request
}

// outbox sends messages and keeps each until the server has confirmed it. After a lost connection it also keeps what it
// sends during callersReturn, and then sends the replies among it once more: a Director does not ask again for a lost
// reply, and ignores one that comes twice.
type outbox struct {
	callersReturn time.Duration
	log           *logrus.Entry
	delivered     func(subject string) // Options.OnDelivered; may be nil

	mu          sync.Mutex
	nc          *nats.Conn // nil while not connected
	waiting     []message  // not yet sent on the current connection
	unconfirmed []message  // sent on the current connection, not confirmed
	bytes       int        // size of both
	sent        uint64     // number of messages sent
	confirming  bool
	callersAway bool    // callers may not have reconnected yet; nothing is confirmed
	lost        bool    // there was a connection before
	next        *outbox // receives all messages after a rotation
}

// send publishes m, or keeps it until there is a connection.
func (o *outbox) send(m message) {
	if m.at.IsZero() {
		m.at = time.Now()
	}
	o.mu.Lock()
	if next := o.next; next != nil {
		o.mu.Unlock()
		next.send(m)
		return
	}
	defer o.mu.Unlock()
	o.bytes += len(m.data)
	if o.nc != nil && o.nc.Publish(m.subject, m.data) == nil {
		o.sent++
		o.unconfirmed = append(o.unconfirmed, m)
		o.confirmSoon()
	} else {
		o.waiting = append(o.waiting, m)
	}
	o.trim()
}

// confirmSoon schedules confirm. The caller holds mu.
func (o *outbox) confirmSoon() {
	if o.confirming || o.callersAway {
		return
	}
	o.confirming = true
	nc := o.nc
	time.AfterFunc(confirmEvery, func() { o.confirm(nc) })
}

// trim drops the oldest messages beyond outboxBytes. The caller holds mu.
func (o *outbox) trim() {
	for o.bytes > outboxBytes && len(o.unconfirmed)+len(o.waiting) > 1 {
		oldest, reason := &o.unconfirmed, "too much is not confirmed by the server yet"
		if len(*oldest) == 0 {
			oldest, reason = &o.waiting, "too much waits for a connection"
		}
		o.dropped((*oldest)[0], reason)
		o.bytes -= len((*oldest)[0].data)
		*oldest = (*oldest)[1:]
	}
}

// dropped logs that a message was given up. Nothing else would say why its caller gets no answer.
func (o *outbox) dropped(m message, reason string) {
	o.log.WithFields(logrus.Fields{"subject": m.subject, "bytes": len(m.data), "reason": reason}).
		Warn("message dropped")
}

// confirm flushes the messages sent so far (PING and PONG), and repeats that until all are confirmed.
func (o *outbox) confirm(nc *nats.Conn) {
	o.mu.Lock()
	last := o.sent
	o.mu.Unlock()
	err := nc.FlushTimeout(connectTime)
	var reports []string
	if o.delivered != nil {
		defer func() {
			for _, subject := range reports {
				o.delivered(subject)
			}
		}()
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.nc != nc {
		return // detach has taken over what was unconfirmed
	}
	if err == nil {
		done := max(0, len(o.unconfirmed)-int(o.sent-last))
		for _, m := range o.unconfirmed[:done] {
			o.bytes -= len(m.data)
			if !m.reply {
				reports = append(reports, m.subject)
			}
		}
		// Under load the slice's capacity is reused; after a burst it is released.
		o.unconfirmed = slices.Delete(o.unconfirmed, 0, done)
		if len(o.unconfirmed) == 0 {
			o.unconfirmed = nil
		}
	}
	if o.confirming = len(o.unconfirmed) > 0; o.confirming {
		time.AfterFunc(confirmEvery, func() { o.confirm(nc) })
	}
}

// attach sends the waiting messages over a new connection.
func (o *outbox) attach(nc *nats.Conn) {
	o.mu.Lock()
	waiting := o.waiting
	o.waiting, o.bytes, o.nc, o.confirming, o.callersAway = nil, 0, nc, false, o.lost
	if o.callersAway {
		time.AfterFunc(o.callersReturn, func() { o.resendReplies(nc) })
	}
	o.mu.Unlock()
	for _, m := range waiting {
		if time.Since(m.at) >= outboxAge {
			o.dropped(m, "it has waited longer than its caller")
			continue
		}
		o.send(m)
	}
}

// resendReplies sends a reply again if its caller may not have reconnected when it was first sent.
func (o *outbox) resendReplies(nc *nats.Conn) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.nc != nc {
		return // lost again, and detach has taken over what was sent
	}
	o.callersAway = false
	for _, m := range o.unconfirmed {
		if m.reply && nc.Publish(m.subject, m.data) != nil {
			break // the connection is lost, and detach takes them over
		}
	}
	if len(o.unconfirmed) > 0 {
		o.confirmSoon()
	}
}

// detach forgets the connection and keeps its unconfirmed messages for the next one.
func (o *outbox) detach() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.nc, o.confirming, o.callersAway, o.lost = nil, false, false, true
	o.waiting = append(o.unconfirmed, o.waiting...)
	o.unconfirmed = nil
}

// handOver passes unconfirmed messages, and all that are sent later, to another outbox.
func (o *outbox) handOver(to *outbox) {
	o.mu.Lock()
	left := append(o.unconfirmed, o.waiting...)
	o.waiting, o.unconfirmed, o.bytes, o.next = nil, nil, 0, to
	o.mu.Unlock()
	for _, m := range left {
		to.send(m)
	}
}
