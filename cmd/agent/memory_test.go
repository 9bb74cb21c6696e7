package main

import (
	"reflect"
	"strings"
	"testing"
)

func TestOnlyUntouchedPartsOfTheProgramAreDropped(t *testing.T) {
	smaps := `00400000-00a00000 r-xp 00000000 fe:00 123 /var/vcap/bosh/bin/bosh-agent
Size:               6144 kB
Anonymous:             0 kB
00a00000-01000000 r--p 00600000 fe:00 123 /var/vcap/bosh/bin/bosh-agent (deleted)
Anonymous:             4 kB
01000000-01100000 r--p 00c00000 fe:00 123 /var/vcap/bosh/bin/bosh-agent
Anonymous:             0 kB
01100000-01200000 rw-p 00d00000 fe:00 123 /var/vcap/bosh/bin/bosh-agent
Anonymous:             0 kB
c000000000-c000400000 rw-p 00000000 00:00 0
Anonymous:             0 kB
c000400000-c004000000 ---p 00000000 00:00 0
Anonymous:             0 kB
7ff000000000-7ff000010000 rw-p 00000000 00:00 0 [stack]
Anonymous:             0 kB
7f0000000000-7f0000010000 r-xp 00000000 fe:00 9 /usr/lib/libc.so.6
Anonymous:             0 kB
`
	wantProgram, wantHeap := [][2]uintptr{{0x400000, 0xa00000}, {0x1000000, 0x1100000}}, [][2]uintptr{{0xc000000000, 0xc000400000}}
	if program, heap := parts(strings.NewReader(smaps)); !reflect.DeepEqual(program, wantProgram) || !reflect.DeepEqual(heap, wantHeap) {
		t.Errorf("got %x and %x, want %x and %x", program, heap, wantProgram, wantHeap)
	}
	if program, heap := parts(strings.NewReader("nonsense\n-\nAnonymous: 0 kB\n")); program != nil || heap != nil {
		t.Errorf("nonsense: got %x and %x", program, heap)
	}
	advise() // and the program goes on
}
