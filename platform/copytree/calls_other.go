//go:build !amd64

package copytree

import "golang.org/x/sys/unix"

const sysFstatat = unix.SYS_FSTATAT
