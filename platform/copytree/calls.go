package copytree

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// Copying a small file is a dozen system calls, and Go's scheduler takes part in each: it notes the time, and
// passes the processor on when one lasts. In an emulated machine, or where the time is not to be had without a
// system call of its own, that costs as much as the copying. A process that does nothing else can do without.

// alone is whether the calls below go past the scheduler.
var alone bool

// Alone is called first by a process that does nothing but copy. While one of its workers waits for a disk,
// memory may not be tidied up, and nobody else there gets to work: that must not be the agent.
func Alone() {
	alone = true
	unix.Umask(0)
}

// call takes pointers as numbers, as the kernel does; the directive keeps what they point to.
//
//go:uintptrescapes
func call(number, a, b, c, d uintptr) (uintptr, error) { return call5(number, a, b, c, d, 0) }

//go:uintptrescapes
func call5(number, a, b, c, d, e uintptr) (uintptr, error) {
	var result uintptr
	var errno unix.Errno
	if alone {
		result, _, errno = unix.RawSyscall6(number, a, b, c, d, e, 0)
	} else {
		result, _, errno = unix.Syscall6(number, a, b, c, d, e, 0)
	}
	if errno != 0 {
		return 0, errno
	}
	return result, nil
}

//go:uintptrescapes
func named(number uintptr, dir int, name string, c, d uintptr) (int, error) {
	path, err := unix.BytePtrFromString(name)
	if err != nil {
		return 0, err
	}
	result, err := call(number, uintptr(dir), uintptr(unsafe.Pointer(path)), c, d)
	return int(result), err
}

func openat(dir int, name string, flags int, mode uint32) (int, error) {
	// What the library adds for 32 bits is nothing on 64.
	return named(unix.SYS_OPENAT, dir, name, uintptr(flags), uintptr(mode))
}

func lstatat(dir int, name string, st *unix.Stat_t) error {
	_, err := named(sysFstatat, dir, name, uintptr(unsafe.Pointer(st)), unix.AT_SYMLINK_NOFOLLOW)
	return err
}

func fstat(fd int, st *unix.Stat_t) error {
	_, err := call(unix.SYS_FSTAT, uintptr(fd), uintptr(unsafe.Pointer(st)), 0, 0)
	return err
}

func pread(fd int, b []byte, offset int64) (int, error) {
	n, err := call(unix.SYS_PREAD64, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)), uintptr(offset))
	return int(n), err
}

func pwrite(fd int, b []byte, offset int64) (int, error) {
	n, err := call(unix.SYS_PWRITE64, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)), uintptr(offset))
	return int(n), err
}

func fchmod(fd int, mode uint32) error {
	_, err := call(unix.SYS_FCHMOD, uintptr(fd), uintptr(mode), 0, 0)
	return err
}

func fchown(fd int, uid, gid uint32) error {
	_, err := call(unix.SYS_FCHOWN, uintptr(fd), uintptr(uid), uintptr(gid), 0)
	return err
}

// setTimes sets the times of an open file.
func setTimes(fd int, st *unix.Stat_t) error {
	times := [2]unix.Timespec{st.Atim, st.Mtim}
	_, err := call(unix.SYS_UTIMENSAT, uintptr(fd), 0, uintptr(unsafe.Pointer(&times)), 0)
	return err
}

func flistxattr(fd int, b []byte) (int, error) {
	n, err := call(unix.SYS_FLISTXATTR, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)), 0)
	return int(n), err
}

func closeFile(fd int) error {
	_, err := call(unix.SYS_CLOSE, uintptr(fd), 0, 0, 0)
	return err
}
