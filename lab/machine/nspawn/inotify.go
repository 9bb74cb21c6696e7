package nspawn

import (
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// inotifyInstances is the number of inotify instances that a booting container needs: those of systemd, of other
// daemons and of the agent.
const inotifyInstances = 13

// inotifyLimit is the host's sysctl for the number of inotify instances of a user. All containers share root's limit,
// since instances in a user namespace also count for the user who created it.
const inotifyLimit = "fs.inotify.max_user_instances"

// checkInotify opens as many instances as a container needs, and closes them. Without enough of them, systemd ends with
// "Too many open files" and other daemons miss events, but none of them mentions the limit.
func checkInotify() error {
	var closing sync.WaitGroup
	defer closing.Wait()
	for range inotifyInstances {
		fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
		if errors.Is(err, unix.EMFILE) {
			return fmt.Errorf("a container needs %d inotify instances, but the host has fewer left: run 'sysctl %s=1024', or stop other containers", inotifyInstances, inotifyLimit)
		}
		if err != nil {
			return fmt.Errorf("inotify: %w", err)
		}
		// At the same time: each one waits for an SRCU grace period.
		defer closing.Go(func() { _ = unix.Close(fd) })
	}
	return nil
}
