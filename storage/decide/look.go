package decide

import (
	"fmt"
	"strings"

	"cambium/internal/managedfs"
	"cambium/platform/filesystem/probe"
)

// describe formats a superblock and its offset on the disk. from is the byte at which the survey began.
func describe(s probe.Superblock, from int64) string {
	switch {
	case s.Kind == probe.Unknown:
		return fmt.Sprintf("a damaged ext4 or xfs begins at byte %d", from+s.Start)
	case s.Backup > 0:
		return fmt.Sprintf("there is a backup superblock of %s at byte %d", s.Kind, from+max(s.Start, 0)+s.Backup)
	}
	return fmt.Sprintf("%s begins at byte %d", s.Kind, from+s.Start)
}

// lookAt returns a sentence with a command that shows a file system without writing to it, or "". If the first
// superblock is lost, the command checks the file system with its backup.
func lookAt(disk string, s probe.Superblock, from int64) string {
	f, managed := managedfs.Find(string(s.Kind))
	at := from + s.Start
	command := ""
	switch check := s.RepairCommand("$d", true); {
	case s.Start < 0:
	case s.Backup > 0 && check != "":
		command = fmt.Sprintf("d=$(losetup --read-only --find --show --offset %d %s); %s; losetup --detach $d", at,
			disk, check)
	case s.Backup == 0 && managed:
		command = fmt.Sprintf("mount -t %s -o ro,%s,loop,offset=%d %s /mnt", f.Name, strings.Join(f.Look, ","), at,
			disk)
	}
	if command == "" {
		return ""
	}
	return fmt.Sprintf("To look at it without writing, run '%s'. ", command)
}

// repair returns commands to inspect and repair a file system that begins at the start of its partition.
func repair(part string, s probe.Superblock) string {
	return managedfs.RepairAdvice(s.RepairCommand(part, true), s.RepairCommand(part, false)) + ". "
}
