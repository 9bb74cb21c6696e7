package disk

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"cambium/internal/vcap"
	"cambium/storage/identity"
)

func TestRequests(t *testing.T) {
	dirs := vcap.New(t.TempDir())
	if err := os.Mkdir(dirs.Bosh(), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := identity.In(dirs).Put("vol-2", identity.Disk{FileSystem: "22222222"}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"accept", "vol-1", "-b", dirs.Base()}, 0, "will accept vol-1"},
		{[]string{"release", "vol-2", "-b", dirs.Base()}, 0, "will release vol-2"},
		{[]string{"release", "vol-3", "-b", dirs.Base()}, 1, `vol-3 is not on record; these are: ["vol-1"]`},
		{[]string{"accept", "vol-1", "-b", t.TempDir() + "/none"}, 1, "no such file"},
		{[]string{"format", "vol-1"}, 2, "neither accept nor release"},
		{[]string{"accept"}, 2, "missing"},
		{[]string{"accept", ""}, 1, "CID is empty"},
	} {
		var out bytes.Buffer
		if code := Run(t.Context(), c.args, &out, &out); code != c.code || !strings.Contains(out.String(), c.says) {
			t.Errorf("%q: exit code %d, %q; want %d, %q", c.args, code, out.String(), c.code, c.says)
		}
	}
	records, err := identity.In(dirs).All()
	if err != nil || !records["vol-1"].Accepted || len(records) != 1 {
		t.Errorf("the agent reads %v, %v", records, err)
	}
}
