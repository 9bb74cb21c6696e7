package secret

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/sirupsen/logrus"
)

const canary = "canary-7f3a"

type holder struct {
	Exported   String
	unexported String
	url        URL
	doc        JSON
}

func TestNothingPrintsTheValue(t *testing.T) {
	h := holder{Exported: New(canary), unexported: New(canary), url: NewURL("nats://u:" + canary + "@10.0.0.6:4222"),
		doc: NewJSON([]byte(`{"password":"` + canary + `"}`))}
	var out strings.Builder
	verbs := []string{"%v", "%+v", "%#v", "%s", "%q", "%#q", "%x", "%X", "%d", "%c", "%U", "%o", "%b", "%e", "%t", "%p"}
	values := []any{h, &h, h.Exported, &h.Exported, h.url, &h.url, h.doc, []String{h.Exported}, map[string]URL{"k": h.url}}
	for _, verb := range verbs {
		for _, v := range values {
			fmt.Fprintf(&out, verb+"\n", v)
		}
	}
	fmt.Fprintln(&out, errors.Join(fmt.Errorf("connect %s: %w", h.url, errors.New("refused"))))
	encoded, err := json.Marshal(map[string]any{"s": h.Exported, "u": h.url, "d": h.doc, "h": h})
	if err != nil {
		t.Fatal(err)
	}
	out.Write(encoded)
	logger := logrus.New()
	logger.SetOutput(&out)
	for _, f := range []logrus.Formatter{&logrus.JSONFormatter{}, &logrus.TextFormatter{}} {
		logger.SetFormatter(f)
		logger.WithFields(logrus.Fields{"s": h.Exported, "u": h.url, "d": h.doc, "h": h}).Info("x")
	}
	decimal := strings.Trim(fmt.Sprint([]byte(canary)), "[]")
	for _, form := range []string{canary, fmt.Sprintf("%x", canary), fmt.Sprintf("%X", canary), decimal} {
		if strings.Contains(out.String(), form) {
			t.Errorf("output contains the secret as %q:\n%s", form, out.String())
		}
	}
}

func TestRoundTrip(t *testing.T) {
	var v struct {
		S String
		U URL
		J JSON
	}
	if err := json.Unmarshal([]byte(`{"S":"a","U":"https://x:y@h/p","J":{"k":[1]}}`), &v); err != nil {
		t.Fatal(err)
	}
	if v.S.Reveal() != "a" || v.U.Reveal() != "https://x:y@h/p" || string(v.J.Reveal()) != `{"k":[1]}` {
		t.Errorf("got %q %q %q", v.S.Reveal(), v.U.Reveal(), v.J.Reveal())
	}
	if err := json.Unmarshal([]byte(`{"S":{"p":"`+canary+`"}}`), &v); err == nil || strings.Contains(err.Error(), canary) {
		t.Errorf("want an error without the value, got %v", err)
	}
}

func TestRedactURL(t *testing.T) {
	for in, want := range map[string]string{
		"":                                 "",
		"nats://10.0.0.6:4222":             "nats://10.0.0.6:4222",
		"nats://nats:pw@10.0.0.6:4222":     "nats://***@10.0.0.6:4222",
		"https://mbus:p@0.0.0.0:6868":      "https://***@0.0.0.0:6868",
		"https://h/signed/a?st=hmac&ts=1":  "https://h/signed/a?***",
		"https://h/a#frag":                 "https://h/a#***",
		"http://u:p%zz@h/":                 "http://***",
		"not a url %zz":                    "***",
		"/var/vcap/bosh/settings.json":     "/var/vcap/bosh/settings.json",
		"http://reg:pw@[fd00::6]:25777/x/": "http://***@[fd00::6]:25777/x/",
	} {
		if got := RedactURL(in); got != want {
			t.Errorf("RedactURL(%q) = %q, want %q", in, got, want)
		}
	}
}
