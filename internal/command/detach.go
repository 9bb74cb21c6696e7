package command

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// detachWord is the first argument of the intermediate process.
const detachWord = "detach-program"

// Detached describes a program that outlives this process.
type Detached struct {
	Args []string // the first is the path of the program; PATH is not searched
	Env  []string
	// UID and GID are the ids under which it runs. The supplementary groups stay those of this process.
	UID, GID int
}

// openFiles is the limit of open files that the runtime has set for this process.
var openFiles = currentOpenFiles()

func currentOpenFiles() (limit syscall.Rlimit) {
	_ = syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit) // fails for an unknown resource alone
	return limit
}

// Detach starts a program like a daemon: in a session that it does not lead, as a child of init, with /dev/null as
// input and output. It returns the program's pid. An intermediate process leads the session, starts the program and
// exits. It runs this binary, because a Go process cannot fork without exec.
func Detach(d Detached) (pid int, err error) {
	name := d.Args[0]
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s: %w", name, err)
		}
	}()
	if limit := currentOpenFiles(); limit != openFiles {
		// Another process has set it, by prlimit. The runtime gives programs the limit that this process was started
		// with, until the process itself sets one.
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
			return 0, fmt.Errorf("keep the limit of open files: %w", err)
		}
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return 0, err
	}
	defer null.Close()
	answer, answerEnd, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	defer answer.Close()
	args := append([]string{"agent", detachWord, strconv.Itoa(d.UID), strconv.Itoa(d.GID)}, d.Args...)
	between, err := os.StartProcess("/proc/self/exe", args, &os.ProcAttr{Env: d.Env,
		Files: []*os.File{null, null, null, answerEnd}, Sys: &syscall.SysProcAttr{Setsid: true}})
	if closeErr := answerEnd.Close(); err != nil || closeErr != nil {
		return 0, errors.Join(err, closeErr)
	}
	text, readErr := io.ReadAll(answer)
	if _, err := between.Wait(); err != nil || readErr != nil {
		return 0, errors.Join(err, readErr)
	}
	if pid, err = strconv.Atoi(string(text)); err != nil {
		return 0, fmt.Errorf("not started: %s", strings.TrimSpace(string(text)))
	}
	return pid, nil
}

// DetachIfCalled runs the intermediate process: it starts the program, answers with its pid or an error, and exits. In
// any other process it returns at once. The main function of every program that uses Detach must call it.
func DetachIfCalled() {
	if len(os.Args) < 5 || os.Args[1] != detachWord {
		return
	}
	// A signal that is ignored stays so over exec, one that is handled gets its default back.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGINT, syscall.SIGHUP, syscall.SIGTERM, syscall.SIGUSR1,
		syscall.SIGPIPE)
	// The program inherits neither the pipe nor what this process may have inherited itself: Go marks only
	// what it opens itself.
	answer := os.NewFile(3, "answer")
	if err := unix.CloseRange(3, math.MaxInt32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		syscall.CloseOnExec(3) // a kernel before 5.11
	}
	pid, err := startDetached(os.Args[2], os.Args[3], os.Args[4:])
	if err != nil {
		fmt.Fprint(answer, err)
		os.Exit(1)
	}
	fmt.Fprint(answer, pid)
	os.Exit(0)
}

func startDetached(uid, gid string, args []string) (int, error) {
	user, err := strconv.ParseUint(uid, 10, 32)
	if err != nil {
		return 0, err
	}
	group, err := strconv.ParseUint(gid, 10, 32)
	if err != nil {
		return 0, err
	}
	attr := &os.ProcAttr{Env: os.Environ(), Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}}
	if user != 0 || group != 0 {
		credential := &syscall.Credential{Uid: uint32(user), Gid: uint32(group), NoSetGroups: true}
		attr.Sys = &syscall.SysProcAttr{Credential: credential}
	}
	program, err := os.StartProcess(args[0], args, attr)
	if err != nil {
		return 0, err
	}
	return program.Pid, nil
}
