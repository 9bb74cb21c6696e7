package main

import (
	"bufio"
	"context"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// gcPercent lets the heap grow by less than Go's default before it is collected: the agent
	// shares a machine with jobs, and has time.
	gcPercent = 50
	// bootPercent is for the boot, which has not: it is over before anything is collected.
	bootPercent = 400
	// loadPercent is for loads under which it has not either. The smallest heap that is collected
	// is then smallHeap.
	loadPercent = 200
	smallHeap   = loadPercent / 100 * 4 << 20
)

// collect sets how eagerly the heap is collected, unless the environment does.
func collect(percent int) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(percent)
	}
}

const (
	// afterBoot is how long background steps get before memory is given back. On a slow machine
	// they need longer, hence it is done again after twice that time, and so on.
	afterBoot = time.Second
	// again is the longest pause: often enough that what one task needed is not held for long,
	// seldom enough to cost nothing.
	again = 5 * time.Minute
	// often is a pause between two collections, and many are the requests in it, at which the
	// collections show in the answers' times: each holds up the requests of a millisecond or two.
	often = 50 * time.Millisecond
	many  = 1000
	// afterLoad is how long there is no collection when a load is over.
	afterLoad = time.Second
)

// giveBack returns what the agent does not need any more to the system, once the boot is over, then
// from time to time, and after each load. Under a load of requests, which served counts, it lets a
// small heap grow.
func giveBack(ctx context.Context, served func() uint64) {
	percent := bootPercent // the first answers come first
	collected := collections()
	var last time.Time
	var before uint64
	pause := afterBoot
	timer := time.NewTimer(pause)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-collected:
			n := served()
			if percent == loadPercent || now.Sub(last) < often && n-before >= many {
				var m runtime.MemStats
				runtime.ReadMemStats(&m)
				if want := pace(percent, m.NextGC); want != percent {
					percent = want
					collect(percent)
				}
				pause = afterLoad
				timer.Reset(pause)
			}
			last, before = now, n
		case <-timer.C:
			attentive(lateAsEver)
			percent = gcPercent
			collect(percent)
			debug.FreeOSMemory()
			advise()
			pause = min(2*pause, again)
			timer.Reset(pause)
		}
	}
}

// pace is how far the heap may grow under load, if it is now collected at next bytes: to smallHeap,
// and where more than that is in use not further than otherwise.
func pace(percent int, next uint64) int {
	if used := next / uint64(100+percent) * 100; used*(100+loadPercent)/100 <= smallHeap {
		return loadPercent
	}
	return gcPercent
}

// collections tells of each collection of the heap. It rests on a finalizer that is set again each
// time it has run, so that an agent with nothing to do is not woken to look.
func collections() <-chan time.Time {
	collected := make(chan time.Time, 1)
	var rearm func(*[16]byte)
	rearm = func(sentinel *[16]byte) {
		select {
		case collected <- time.Now():
		default:
		}
		runtime.SetFinalizer(sentinel, rearm)
	}
	runtime.SetFinalizer(new([16]byte), rearm)
	return collected
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
