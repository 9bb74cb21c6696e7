package director

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
)

// Bus is a Director on the message bus. It has one inbox for the replies of all agents.
type Bus struct {
	conn    *nats.Conn
	id      string
	sub     *nats.Subscription
	mu      sync.Mutex
	pending map[string]chan []byte // by request id, which is the last token of the reply subject
}

// NewBus subscribes to the inbox. The connection must have the Director's certificate.
func NewBus(conn *nats.Conn) (*Bus, error) {
	b := &Bus{conn: conn, id: uuid.NewString(), pending: map[string]chan []byte{}}
	sub, err := conn.Subscribe("director."+b.id+".>", b.deliver)
	if err != nil {
		return nil, fmt.Errorf("director's inbox: %w", err)
	}
	b.sub = sub
	// Until the server has seen the subscription, an answer may come too early.
	return b, conn.Flush()
}

func (b *Bus) deliver(m *nats.Msg) {
	id := m.Subject[strings.LastIndexByte(m.Subject, '.')+1:]
	b.mu.Lock()
	waiting := b.pending[id]
	delete(b.pending, id)
	b.mu.Unlock()
	if waiting != nil {
		waiting <- m.Data
	}
}

// Close ends the connection.
func (b *Bus) Close() { b.conn.Close() }

// Agent returns the agent with an id.
func (b *Bus) Agent(id string) *Agent {
	return &Agent{Transport: subject{b, id}, Protocol: protocol}
}

type subject struct {
	bus   *Bus
	agent string
}

func (s subject) Close() {}

// RoundTrip publishes a request and waits for its reply.
func (s subject) RoundTrip(ctx context.Context, r Request) ([]byte, error) {
	id := uuid.NewString()
	r.ReplyTo = "director." + s.bus.id + "." + s.agent + "." + id
	data, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	answer := make(chan []byte, 1)
	s.bus.mu.Lock()
	s.bus.pending[id] = answer
	s.bus.mu.Unlock()
	defer func() {
		s.bus.mu.Lock()
		delete(s.bus.pending, id)
		s.bus.mu.Unlock()
	}()
	if err := s.bus.conn.Publish("agent."+s.agent, data); err != nil {
		return nil, err
	}
	select {
	case reply := <-answer:
		return reply, nil
	case <-ctx.Done():
		return nil, ErrTimeout
	}
}
