package infrastructure

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"cambium/infrastructure/internal/fetch"
	"cambium/infrastructure/internal/source"
	"cambium/settings/agentjson"
)

func TestDocumentationNamesEverySourceAndLimit(t *testing.T) {
	page, err := os.ReadFile("../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		fmt.Sprintf("file on a medium | %d KiB |", source.MaxDocument>>10),
		fmt.Sprintf("instance id, token | %d KiB |", source.MaxShort>>10),
		fmt.Sprintf("whole request | %d s, %d s, %d s, %d s |", int(fetch.DefaultTimeouts.Dial.Seconds()),
			int(fetch.DefaultTimeouts.TLS.Seconds()),
			int(fetch.DefaultTimeouts.Header.Seconds()), int(fetch.DefaultTimeouts.Request.Seconds())),
		fmt.Sprintf("for %d s at most", int(holdFor.Seconds())),
		fmt.Sprintf("all sources together have %d s", int(DefaultCacheBudget.Seconds())),
		fmt.Sprintf("After %d s without an", int(keyBudget.Seconds())),
	}
	for _, kind := range agentjson.Types() {
		want = append(want, "\n### "+kind+"\n", `{"Type": "`+kind+`"`)
	}
	for _, outcome := range []string{Used, NotNeeded, Failed, NoAnswer, NeedsNetwork} {
		want = append(want, "| `"+outcome+"` |")
	}
	for _, text := range want {
		if !strings.Contains(string(page), text) {
			t.Errorf("docs/configuration.md does not say %q", text)
		}
	}
}
