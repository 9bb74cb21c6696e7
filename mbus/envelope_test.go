package mbus

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestDecodeRequest(t *testing.T) {
	for _, c := range []struct {
		name string
		in   string
		want Request
		err  string
	}{
		{"a Director's", `{"protocol":3,"method":"list_disk","arguments":[],"reply_to":"director.7.a.b"}`,
			Request{Method: "list_disk", Arguments: []json.RawMessage{}, ReplyTo: "director.7.a.b", Protocol: 3}, ""},
		{"create-env's, without protocol", `{"method":"ping","arguments":[],"reply_to":"x"}`,
			Request{Method: "ping", Arguments: []json.RawMessage{}, ReplyTo: "x"}, ""},
		{"keys in any case", `{"METHOD":"ping","Reply_To":"x"}`, Request{Method: "ping", ReplyTo: "x"}, ""},
		{"text arguments and white space", ` { "method" : "get_state" , "arguments" : [ "full" ] } ` + "\n",
			Request{Method: "get_state", Arguments: []json.RawMessage{json.RawMessage(`"full"`)}}, ""},
		{"no arguments", `{"method":"ping"}`, Request{Method: "ping"}, ""},
		{"null arguments", `{"method":"ping","arguments":null}`, Request{Method: "ping"}, ""},
		{"exact numbers", `{"method":"sync_dns","arguments":[18446744073709551615]}`,
			Request{Method: "sync_dns", Arguments: []json.RawMessage{json.RawMessage("18446744073709551615")}}, ""},
		{"unknown keys, also payload", `{"method":"ping","payload":"not base64!","more":{}}`, Request{Method: "ping"}, ""},
		{"nothing", ``, Request{}, "malformed JSON"},
		{"null", ` null `, Request{}, ""},
		{"array", `[]`, Request{}, "not an object"},
		{"two", `{} {}`, Request{}, "malformed JSON"},
		{"cut off", `{"method":"pi`, Request{}, "malformed JSON"},
		{"malformed", `{"method":pi}`, Request{}, "malformed JSON at byte"},
		{"wrong type", `{"method":["secret"]}`, Request{}, "method has the wrong type"},
		{"arguments no array", `{"method":"ping","arguments":{"a":"secret"}}`, Request{Method: "ping", BadArguments: true}, ""},
		{"protocol no integer", `{"protocol":3.5}`, Request{}, "protocol has the wrong type"},
		{"too deep", strings.Repeat("[", 1<<20), Request{}, "malformed JSON at byte 10001"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := DecodeRequest([]byte(c.in))
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) || strings.Contains(err.Error(), "secret") {
					t.Fatalf("got %v, want %q", err, c.err)
				}
				return
			}
			if err != nil || !reflect.DeepEqual(got, c.want) {
				t.Errorf("got %+v, %v; want %+v", got, err, c.want)
			}
		})
	}
}

type unencodable struct{}

func (unencodable) MarshalJSON() ([]byte, error) { return nil, errors.New("broken") }

func TestEncode(t *testing.T) {
	for _, c := range []struct {
		name  string
		reply Reply
		limit int
		want  string
	}{
		{"value", Value("pong"), 0, `{"value":"pong"}`},
		{"null", Value(nil), 0, `{"value":null}`},
		{"text that needs escapes", Value("a\"\\\x01é\u2028"), 0, `{"value":"a\"\\\u0001é\u2028"}`},
		{"html is not escaped", Value("<&>"), 0, `{"value":"<&>"}`},
		{"exception", Exception("boom"), 0, `{"exception":{"message":"boom"}}`},
		{"empty exception", Exception(""), 0, `{"exception":{}}`},
		{"fits exactly", Value("12345"), 17, `{"value":"12345"}`},
		{"one byte too long", Value("123456"), 17, `{"exception":{"message":"Response exceeded maximum allowed length"}}`},
		{"not encodable", Value(unencodable{}), 0, `{"exception":{"message":"cannot encode the result: json: error calling MarshalJSON for type mbus.unencodable: broken"}}`},
		{"no room at all", Exception(strings.Repeat("x", 100)), 10, `{"exception":{"message":"Response exceeded maximum allowed length"}}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := string(c.reply.Encode(c.limit)); got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
}

// message decodes an exception.
func message(t testing.TB, data []byte) string {
	t.Helper()
	var e exceptionEnvelope
	if err := json.Unmarshal(data, &e); err != nil {
		t.Fatalf("%v in %q", err, data)
	}
	return e.Exception.Message
}

// What a job calls a file reaches the terminals of operators through the Director.
func TestExceptionsHaveNoEscapeSequences(t *testing.T) {
	got := message(t, Exception("a\x1b]0;owned\ab\r\u202ec\n\td\xffé").Encode(0))
	if want := "a ]0;owned b  c\n\td\ufffdé"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestLongExceptionsLoseTheirMiddle(t *testing.T) {
	for _, unit := range []string{"x", "é", "世", "😀", "\n", `"`, "\x01", "\u2028", "\xff", "a😀\"\\\t\x00é"} {
		text := "HEAD" + strings.Repeat(unit, 3000) + "TAIL"
		for _, limit := range []int{100, 101, 102, 103, 999, 1000, 2047} {
			got := Exception(text).Encode(limit)
			if len(got) > limit {
				t.Fatalf("%q limit %d: got %d bytes", unit, limit, len(got))
			}
			// Nothing is given away: one more rune on each side would not fit.
			if len(got) < limit-13 {
				t.Errorf("%q limit %d: only %d bytes used", unit, limit, len(got))
			}
			m := message(t, got)
			head, tail, found := strings.Cut(m, "\n...[truncated]...\n")
			if !found || !strings.HasPrefix(head, "HEAD") || !strings.HasSuffix(tail, "TAIL") || !utf8.ValidString(m) {
				t.Errorf("%q limit %d: got %q", unit, limit, m)
			}
		}
	}
	// The end gets the odd byte.
	room := 7
	if got := shorten("aaaaaaaaaabbbbbbbbbb", room); got != "aaa"+truncated+"bbbb" {
		t.Errorf("got %q", got)
	}
}

// TestSurplusArgumentsCostNothing: a message of 1 MiB with half a million arguments.
func TestSurplusArgumentsCostNothing(t *testing.T) {
	message := []byte(`{"method":"ping","arguments":[` + strings.Repeat("0,", 1<<19) + `0]}`)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	r, err := DecodeRequest(message)
	runtime.ReadMemStats(&after)
	if err != nil || r.BadArguments || r.Method != "ping" || len(r.Arguments) != maxArguments {
		t.Fatalf("got %d arguments, %v; want %d", len(r.Arguments), err, maxArguments)
	}
	if used := after.TotalAlloc - before.TotalAlloc; used > uint64(4*len(message)) {
		t.Errorf("%d KiB allocated for a message of %d KiB", used>>10, len(message)>>10)
	}
}

func FuzzDecodeRequest(f *testing.F) {
	for _, seed := range []string{
		`{"protocol":3,"method":"list_disk","arguments":[],"reply_to":"director.7.a.b"}`,
		`{"method":"apply","arguments":[{"job":null}]}`, `{"METHOD":1}`, `null`, `[[[[`, "\xff", `{"arguments":{}}`,
		`{"arguments":[null,[],{"a":[0]},"\ud800"],"reply_to":null}`,
	} {
		f.Add([]byte(seed))
	}
	f.Add([]byte(`{"arguments":[` + strings.Repeat("[],", maxArguments) + `{}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := DecodeRequest(data)
		if err != nil {
			return
		}
		if len(r.Arguments) > maxArguments || r.BadArguments && r.Arguments != nil {
			t.Errorf("%d arguments, bad %v", len(r.Arguments), r.BadArguments)
		}
		for _, a := range r.Arguments {
			if !json.Valid(a) {
				t.Errorf("argument %q is not JSON", a)
			}
		}
	})
}

func FuzzEncodeException(f *testing.F) {
	f.Add("Action Failed apply: boom", 60)
	f.Add(strings.Repeat("\xff\u2028\"", 100), 333)
	f.Fuzz(func(t *testing.T, text string, limit int) {
		limit = 80 + max(0, limit)%4096
		got := Exception(text).Encode(limit)
		if len(got) > limit {
			t.Errorf("got %d bytes, want at most %d", len(got), limit)
		}
		message(t, got)
	})
}

func TestHTTPSEvent(t *testing.T) {
	e := HTTPSEvent(HTTPRequest{Path: "/agent", User: "mbus", Method: "POST", Source: "10.0.0.9", Port: "4242",
		Hostname: "vm-1",
		Headers:  "HOST=10.0.0.5:6868&USER_AGENT=a=b\nc", Status: 401, Reason: "wrong user or password"})
	want := `CEF:0|CloudFoundry|BOSH|1|agent_api|/agent|7|duser=mbus requestMethod=POST src=10.0.0.9 spt=4242 shost=vm-1 ` +
		`cs1=HOST\=10.0.0.5:6868&USER_AGENT\=a\=b\nc cs1Label=httpHeaders cs2=basic cs2Label=authType cs3=401 cs3Label=responseStatus ` +
		`cs4=wrong user or password cs4Label=statusReason`
	if got := e.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if e := HTTPSEvent(HTTPRequest{Status: 200}); e.Failed || !strings.Contains(e.String(), "|1|") {
		t.Errorf("a success is graded as failure: %s", e)
	}
	if got := len(HTTPSEvent(HTTPRequest{Path: strings.Repeat("p", 1<<20), User: strings.Repeat("u", 1<<20),
		Headers: strings.Repeat("h", 1<<20)}).String()); got > 4000 {
		t.Errorf("line of %d bytes", got)
	}
	if got := len(NATSEvent(strings.Repeat("m", 1<<20), "", Exception(strings.Repeat("x", 1<<20)), "[fd00::1]:4222",
		"h").String()); got > 3000 {
		t.Errorf("line of %d bytes", got)
	}
	if got := NATSEvent("ping", "", Value(1), "[fd00::1]:4222", "h").String(); !strings.Contains(got,
		"src=fd00::1 spt=4222") {
		t.Errorf("IPv6: %s", got)
	}
}

func BenchmarkDecodeRequest(b *testing.B) {
	ping := []byte(`{"protocol":3,"method":"ping","arguments":[],"reply_to":"director.7.a.b"}`)
	for b.Loop() {
		if _, err := DecodeRequest(ping); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkEncode(b *testing.B) {
	r := Value(map[string]string{"a": fmt.Sprint(1)})
	for b.Loop() {
		r.Encode(1 << 20)
	}
}
