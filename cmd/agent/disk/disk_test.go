package disk

import (
	"bytes"
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"cambium/internal/vcap"
	"cambium/storage/record"
	"cambium/storage/recordfile"
)

func TestRequests(t *testing.T) {
	dirs := vcap.New(t.TempDir())
	if err := os.Mkdir(dirs.Bosh(), 0o755); err != nil {
		t.Fatal(err)
	}
	file := recordfile.In(dirs)
	if err := file.Update(func(r *record.Record) { r.Put("vol-2", record.Disk{FileSystem: "22222222"}) }); err != nil {
		t.Fatal(err)
	}
	describe := func(_ context.Context, _ vcap.Dirs, disk string, a record.Action) (Shown, error) {
		switch {
		case disk == "vol-4" || disk == "vol-1" && a == record.Accept:
			return Shown{disk, "/dev/vdc: holds precious things", "file system 4"}, nil
		case disk == "ephemeral":
			return Shown{record.Ephemeral, "/dev/vdb: ext4 begins at byte 1048576", ""}, nil
		}
		return Shown{}, errors.New("persistent disk is not known")
	}
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"accept", "vol-1", "-b", dirs.Base()}, 1, "/dev/vdc: holds precious things\nagent disk: nothing was done; to accept this disk, run 'agent disk accept vol-1 --yes'"},
		{[]string{"accept", "vol-1", "--yes", "-b", dirs.Base()}, 0, "will accept vol-1"},
		{[]string{"release", "vol-2", "-b", dirs.Base()}, 0, "will release vol-2"},
		{[]string{"release", "vol-3", "-b", dirs.Base()}, 1, `vol-3 is not on record; recorded disks: ["vol-2"]`},
		{[]string{"accept", "vol-1", "--yes", "-b", t.TempDir() + "/none"}, 1, "no such file"},
		{[]string{"format", "vol-3", "--yes", "-b", dirs.Base()}, 1, "is not known"},
		{[]string{"format", "vol-4", "-b", dirs.Base()}, 1, "/dev/vdc: holds precious things\nagent disk: nothing was done; to erase this disk, run 'agent disk format vol-4 --yes'"},
		{[]string{"destroy", "vol-1"}, 2, "not one of accept, release and format"},
		{[]string{"accept"}, 2, "missing"},
		{[]string{"release", ""}, 1, "CID is empty"},
	} {
		var out bytes.Buffer
		if code := run(t.Context(), describe, c.args, &out, &out); code != c.code || !strings.Contains(out.String(), c.says) {
			t.Errorf("%q: exit code %d, %q; want %d, %q", c.args, code, out.String(), c.code, c.says)
		}
	}
	asked := func() map[string]record.Action {
		r, err := file.Read()
		if err != nil {
			t.Fatal(err)
		}
		return r.Asked
	}
	if got := asked(); len(got) != 2 || got["vol-1"] != record.Accept || got["vol-2"] != record.Release {
		t.Errorf("the agent reads %v", got)
	}
	var out bytes.Buffer
	if code := run(t.Context(), describe, []string{"format", "--yes", "vol-4", "-b", dirs.Base()}, &out,
		&out); code != 0 || asked()["vol-4"] != record.Format {
		t.Errorf("exit code %d, %q, asked %v", code, out.String(), asked())
	}
	if r, err := file.Read(); err != nil || !r.Lapsed("vol-4", "file system 5") || r.Lapsed("vol-4", "file system 4") {
		t.Errorf("the request is not for the disk that was shown: %+v, %v", r, err)
	}
	out.Reset()
	code := run(t.Context(), describe, []string{"format", "ephemeral", "--yes", "-b", dirs.Base()}, &out, &out)
	if code != 0 || asked()[record.Ephemeral] != record.Format ||
		!strings.Contains(out.String(), "begins at byte 1048576\nthe agent will format ephemeral") {
		t.Errorf("exit code %d, %q, asked %v", code, out.String(), asked())
	}
}
