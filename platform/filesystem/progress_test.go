package filesystem

import (
	"slices"
	"testing"

	"cambium/internal/looptest"
	"cambium/platform/filesystem/probe"
)

// TestCheckTellsItsProgress: the progress of a real e2fsck rises to 100 percent.
func TestCheckTellsItsProgress(t *testing.T) {
	looptest.Needs(t, "e2fsck")
	path := looptest.Image(t, 300<<20)
	run(t, "mkfs.ext4", "-qF", path)
	var percents []int
	if err := Check(t.Context(), path, probe.Ext4, false, func(percent int) {
		percents = append(percents,
			percent)
	}); err != nil {
		t.Fatal(err)
	}
	if len(percents) < 5 || !slices.IsSorted(percents) || percents[0] < 1 || percents[len(percents)-1] != 100 {
		t.Errorf("reported %v, want a progress that rises to 100", percents)
	}
}

func TestPercentOfACheck(t *testing.T) {
	for _, c := range []struct {
		line string
		want int
		ok   bool
	}{
		{"1 0 16 /dev/vdb1", 0, true}, {"1 8 16 /dev/vdb1", 35, true}, {"2 1 2 /dev/vdb1", 80, true}, {"5 16 16 /dev/vdb1", 100, true},
		{"/dev/vdb1: 11/16384 files (0.0% non-contiguous), 7477/65536 blocks", 0, false}, {"", 0, false}, {"6 1 1 /dev/vdb1", 0, false},
		{"1 1 0 /dev/vdb1", 0, false}, {"1 17 16 /dev/vdb1", 0, false}, {"0 1 1 /dev/vdb1", 0, false}, {"1 -1 16 /dev/vdb1", 0, false},
	} {
		if got, ok := percentOf(c.line); got != c.want || ok != c.ok {
			t.Errorf("percentOf(%q) = %d, %v, want %d, %v", c.line, got, ok, c.want, c.ok)
		}
	}
	var percents []int
	p := passes{percent: func(n int) { percents = append(percents, n) }}
	for _, part := range []string{"1 8 1", "6 /dev/vdb1\n1 8 16 /dev/vdb1\n2 0", " 1 /dev/vdb1\n"} {
		if _, err := p.Write([]byte(part)); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Equal(percents, []int{35, 70}) {
		t.Errorf("reported %v, want 35 and 70 once each", percents)
	}
}
