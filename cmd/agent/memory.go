package main

import (
	"bufio"
	"context"
	"io"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// gcPercent lets the heap grow by less than Go's default before it is collected: the agent shares
// a machine with jobs, and has time.
const gcPercent = 50

// bootPercent is for the boot, which has not. More would save a collection, and leave what lives on
// scattered over all that was allocated.
const bootPercent = 100

// collect sets how eagerly the heap is collected, unless the environment does.
func collect(percent int) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(percent)
	}
}

// afterBoot is how long background steps get before memory is given back. On a slow machine they
// need longer, hence it is done again after twice that time, and so on.
const afterBoot = time.Second

// again is the longest pause: often enough that what one task needed is not held for long, seldom
// enough to cost nothing.
const again = 5 * time.Minute

// giveBack returns what the agent does not need any more to the system, once the boot is over and
// then from time to time.
func giveBack(ctx context.Context) {
	collect(gcPercent)
	for pause := afterBoot; ; pause = min(2*pause, again) {
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		debug.FreeOSMemory()
		advise()
	}
}

// advise tells the kernel how little the agent needs. What of the program's own file was touched is
// unmapped, and mapped again page by page as it is needed: most of it was needed only once. And the
// heap is to stay as it is: where transparent huge pages are always used, the kernel would soon
// fill the gaps in it, and two megabytes would be held for the sake of one page.
func advise() {
	smaps, err := os.Open("/proc/self/smaps")
	if err != nil {
		return
	}
	defer func() { _ = smaps.Close() }()
	program, heap := parts(smaps)
	for advice, ranges := range map[uintptr][][2]uintptr{unix.MADV_DONTNEED: program, unix.MADV_NOHUGEPAGE: heap} {
		for _, r := range ranges {
			// Advice only: that it is not followed costs memory and nothing else.
			_, _, _ = unix.Syscall(unix.SYS_MADVISE, r[0], r[1]-r[0], advice)
		}
	}
}

// parts lists the address ranges of smaps that are read-only, backed by the program's file, and hold
// nothing of their own; and those that can be written to and are backed by nothing.
func parts(smaps io.Reader) (readOnly, anonymous [][2]uintptr) {
	var current [2]uintptr
	program := ""
	for lines := bufio.NewScanner(smaps); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		switch {
		case len(fields) == 3 && fields[0] == "Anonymous:":
			if current[0] != 0 && fields[1] == "0" {
				readOnly = append(readOnly, current)
			}
		case len(fields) >= 5 && strings.Contains(fields[0], "-"):
			// start-end rwxp offset device inode path
			current = [2]uintptr{}
			first, last, _ := strings.Cut(fields[0], "-")
			start, err1 := strconv.ParseUint(first, 16, 64)
			end, err2 := strconv.ParseUint(last, 16, 64)
			if err1 != nil || err2 != nil || end <= start {
				continue
			}
			if len(fields) == 5 && fields[1] == "rw-p" {
				anonymous = append(anonymous, [2]uintptr{uintptr(start), uintptr(end)})
			}
			if len(fields) < 6 || !strings.HasPrefix(fields[5], "/") {
				continue
			}
			if program == "" {
				program = fields[5] // the first mapping is the program's
			}
			if fields[5] == program && fields[1][1] != 'w' {
				current = [2]uintptr{uintptr(start), uintptr(end)}
			}
		}
	}
	return readOnly, anonymous
}
