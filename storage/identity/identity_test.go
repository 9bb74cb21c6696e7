package identity

import (
	"testing"
)

// FuzzDecode: an attribute is accepted completely or not at all, and encoding a decoded one preserves it.
func FuzzDecode(f *testing.F) {
	for _, seed := range []string{`{"version":1,"cid":"vol-1","generation":1}`,
		`{"version":1,"cid":"vol-2","file_system":"U","generation":0,"origin":{"cid":"vol-1","file_system":"V","generation":7},` +
			`"incomplete":true,"empty":true}`, `{"version":2,"cid":"vol-1"}`, `{"version":1}`,
		`{"version":1,"cid":"a","more":1}`,
		`{"version":1,"cid":"a"}{}`, `{"version":1,"cid":"a","generation":-1}`, `null`, ``, "\x00"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := Decode(data)
		if err != nil {
			return
		}
		again, err := s.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if second, err := Decode(again); err != nil || second != s {
			t.Fatalf("%+v became %+v, %v", s, second, err)
		}
		if s.CID == "" || s.Incomplete && s.Used() {
			t.Fatalf("%q was read as %+v", data, s)
		}
	})
}

func TestDecodeRefuses(t *testing.T) {
	for _, text := range []string{"", "null", "{}", `{"version":1}`, `{"version":2,"cid":"a","generation":1}`,
		`{"version":1,"cid":"a","generation":1,"later":true}`, `{"version":1,"cid":"a","generation":1} x`} {
		if s, err := Decode([]byte(text)); err == nil {
			t.Errorf("%q was read as %+v", text, s)
		}
	}
}
