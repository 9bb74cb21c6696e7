package lab

import (
	"testing"

	"cambium/internal/status"
)

func TestVerdictOfAFailedBoot(t *testing.T) {
	failed := []status.Run{{State: status.Failed, Verdict: "old"}}
	for _, c := range []struct {
		d    status.Document
		want string
	}{
		{status.Document{State: status.Failed, Verdict: "new", Earlier: failed}, "new"},
		{status.Document{State: status.Starting, Earlier: failed}, "old"},
		{status.Document{State: status.Starting}, ""},
		{status.Document{State: status.Starting, Earlier: []status.Run{{State: status.Ready}}}, ""},
		{status.Document{}, ""},
	} {
		if got := failure(c.d); got != c.want {
			t.Errorf("%+v: got %q, want %q", c.d, got, c.want)
		}
	}
}
