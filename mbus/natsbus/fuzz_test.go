package natsbus

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"cambium/mbus"
)

// FuzzReceive feeds the payload of a message of the agent's subject. A reply goes to one subject, and could not be taken
// for another command of the protocol.
func FuzzReceive(f *testing.F) {
	for _, seed := range []string{
		`{"protocol":3,"method":"ping","arguments":[],"reply_to":"director.7c1e.agent.1"}`,
		`{"method":"ping","reply_to":"a\r\nPUB x 0\r\n"}`, `{"method":"ping","reply_to":"director.*.>"}`,
		`{"method":"ping","reply_to":".a"}`,
		`{"METHOD":"ping","Reply_To":"a b"}`, `{"method":"ping","arguments":{},"reply_to":"\u0000"}`,
		`{"method":"ping","reply_to":"a\u00a0b"}`, `[]`, `{`, "",
		`{"method":"` + strings.Repeat("m", 2000) + `","reply_to":"` + strings.Repeat("r.", 600) + `r"}`,
	} {
		f.Add([]byte(seed), uint8(3))
	}
	f.Fuzz(func(t *testing.T, data []byte, limit uint8) {
		l := &link{}
		l.limit.Store(100 + int64(limit))
		b := &Bus{current: l, options: Options{AgentID: agentID, Log: quiet(),
			Handler: handler(func(_ context.Context, r mbus.Request, reply func(mbus.Reply)) {
				reply(mbus.Exception("unknown message " + r.Method))
			})}}
		b.receive(t.Context(), l, data)
		for _, m := range l.waiting {
			if strings.ContainsAny(m.subject, " \t\r\n\x00") || m.subject == "" || len(m.subject) > 1024 {
				t.Errorf("a reply to %q", m.subject)
			}
			for token := range strings.SplitSeq(m.subject, ".") {
				if token == "" || token == "*" || token == ">" {
					t.Errorf("a reply to %q", m.subject)
				}
			}
			if !json.Valid(m.data) || len(m.data) > 100+int(limit) {
				t.Errorf("%d bytes: %s", len(m.data), m.data)
			}
		}
		if len(l.waiting) > 1 {
			t.Errorf("%d replies", len(l.waiting))
		}
	})
}
