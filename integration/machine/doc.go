// Package machine tests the real binary under a real systemd, in machines of the lab. Each test creates a lab, and
// removes it even if the test fails.
//
// Some things come after the first pong. Wait for
//   - an active unit, systemd's status text and /var/vcap/instance/agent_version with systemctl is-active;
//   - health.json and job states other than unknown, which need an answer of monit, with settledState or get_state;
//   - content in lsblk and /dev/disk/by-*, which udev reads, with udevadm wait, or check with blkid -p;
//   - lines in the journal with journalctl --sync.
//
// A verdict ends when the boot is retried, 12 s later at the earliest: check it at once, or wait for the next one.
package machine
