// Package disk implements `agent disk`, by which an operator decides about a disk.
package disk

import (
	"context"
	"fmt"
	"io"
	"slices"

	"cambium/cmd/agent/cli"
	"cambium/internal/vcap"
	"cambium/storage/record"
	"cambium/storage/recordfile"
)

// Shown describes a disk to an operator before a request is recorded.
type Shown struct {
	// Key is the key of the request. Text describes the content of the disk in one line.
	Key, Text string
	// Disk identifies the device, so that the request does not apply to another one. It is "" if the device has no
	// identifier.
	Disk string
}

// Describe examines a disk for a request.
type Describe func(ctx context.Context, dirs vcap.Dirs, disk string, a record.Action) (Shown, error)

// Command returns the command `agent disk`.
func Command(describe Describe) cli.RunFunc {
	return func(ctx context.Context, args []string, stdout, stderr io.Writer) int {
		return run(ctx, describe, args, stdout, stderr)
	}
}

func run(ctx context.Context, describe Describe, args []string, stdout, stderr io.Writer) int {
	flags := cli.NewFlags("disk", cli.Help{Arguments: "accept|release|format CID",
		Purpose: `Records a request about a disk. The agent acts upon it, and logs that, when it next decides about that
disk (mount_disk, or the next attempt of the boot). CID is that of a persistent disk; to format, it may also be the word
ephemeral, or the path of an ephemeral or raw disk. Exit codes: 0 recorded, 1 not recorded or
nothing done, 2 usage.`,
		Terms: []cli.Term{
			{
				Word: "accept",
				Text: "The disk that is attached under this CID is the right one, whatever the record says: mount it and " +
					"record its identifiers. It is not formatted unless it is blank. Without --yes, only shows the disk.",
			},
			{
				Word: "release",
				Text: "Forget what is on record about this CID: the disk is gone, or may hold another store.",
			},
			{
				Word: "format",
				Text: "Reformat the disk, once. ALL DATA ON IT IS LOST. Without --yes, only shows what would be " +
					"lost.",
			},
		},
		Examples: []string{"agent disk accept vol-0a1b2c3d --yes", "agent disk release vol-0a1b2c3d",
			"agent disk format vol-0a1b2c3d --yes", "agent disk format ephemeral"}}, stdout, stderr)
	base := flags.String("b", vcap.DefaultBase, "`BASE` directory")
	yes := flags.Bool("yes", false,
		"accept, format: confirm that this disk is meant; to format, that all data on it is lost")
	if code, ok := flags.Parse(args, 2, 2); !ok {
		return code
	}
	action, cid, dirs := record.Action(flags.Arg(0)), flags.Arg(1), vcap.New(*base)
	if !slices.Contains(record.Actions, action) {
		return flags.UsageError("%q is not one of accept, release and format", action)
	}
	shown := Shown{Key: cid}
	if action != record.Release {
		var err error
		if shown, err = describe(ctx, dirs, cid, action); err != nil {
			fmt.Fprintf(stderr, "agent disk: %v\n", err)
			return cli.ExitFailed
		}
		fmt.Fprintln(stdout, shown.Text)
		if !*yes {
			what := map[record.Action]string{record.Accept: "accept", record.Format: "erase"}[action]
			fmt.Fprintf(stderr, "agent disk: nothing was done; to %s this disk, run 'agent disk %s %s --yes'\n",
				what, action, cid)
			return cli.ExitFailed
		}
	}
	if err := recordfile.In(dirs).Ask(action, shown.Key, shown.Disk); err != nil {
		fmt.Fprintf(stderr, "agent disk: %v\n", err)
		return cli.ExitFailed
	}
	fmt.Fprintf(stdout, "the agent will %s %s when it next decides about that disk\n", action, cid)
	return cli.ExitOK
}
