package mbus

import (
	"encoding/json"
	"reflect"
	"testing"
)

func TestPlainEnvelopesTakeTheShortWay(t *testing.T) {
	for _, in := range []string{
		`{"protocol":3,"method":"ping","arguments":[],"reply_to":"director.7.a.b"}`,
		`{"arguments":[],"method":"ping","protocol":3,"reply_to":"director.7.a.b"}`,
		`{"protocol":3,"method":"get_task","arguments":["0b52-1", "x"],"reply_to":"director.7.a.b"}` + "\n",
		` { "method" : "get_state" , "arguments" : [ "full" ] } `,
	} {
		got, ok := decodePlain([]byte(in))
		want, err := decodeAny([]byte(in))
		if !ok || err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %+v, %v; want %+v, %v", in, got, ok, want, err)
		}
	}
	data := []byte(`{"protocol":3,"method":"ping","arguments":[],"reply_to":"director.7.a.b"}`)
	if n := testing.AllocsPerRun(100, func() { _, _ = DecodeRequest(data) }); n > 2 {
		t.Errorf("%v allocations for a ping, want those of its two texts", n)
	}
	if n := testing.AllocsPerRun(100, func() { Value("pong").Encode(1 << 20) }); n > 2 {
		t.Errorf("%v allocations for a pong, want its value's and its bytes'", n)
	}
}

// The short way may refuse, but where it answers it says what the general decoder says.
func FuzzDecodePlain(f *testing.F) {
	for _, seed := range []string{
		`{"protocol":3,"method":"ping","arguments":[],"reply_to":"r"}`, `{"method":"a","method":"b"}`, `{"protocol":03}`,
		`{"arguments":["a" , "b"]}`, `{"arguments":["a",]}`, `{"method":"\u0041"}`, `{}`, `{"method":"é"}`, `{"method":"a"}x`, "{\"method\":\"a\x7f\"}",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		got, ok := decodePlain(data)
		if !ok {
			return
		}
		want, err := decodeAny(data)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q: got %+v, want %+v, %v", data, got, want, err)
		}
	})
}

func FuzzEncodeText(f *testing.F) {
	for _, seed := range []string{"pong", "", "<&>", "é", "\x7f", "\"\\", "\u2028"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		want, err := marshal(map[string]string{"value": text})
		if err != nil {
			t.Fatal(err)
		}
		if got := Value(text).Encode(0); string(got) != string(want) || !json.Valid(got) {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}
