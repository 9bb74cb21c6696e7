// Package disk is `agent disk`: what an operator decides about the identity of a persistent disk.
package disk

import (
	"context"
	"fmt"
	"io"

	"cambium/cmd/agent/cli"
	"cambium/internal/vcap"
	"cambium/storage/identity"
)

// Run is `agent disk`.
func Run(_ context.Context, args []string, stdout, stderr io.Writer) int {
	flags := cli.NewFlags("disk", cli.Help{Arguments: "accept|release CID",
		Purpose: `Leaves a request about a persistent disk, which the agent acts upon and logs when it next decides
about that disk (mount_disk, or the next attempt to mount the store).
  accept   the disk that is attached under this CID is the right one, whatever the record says:
           mount it and record its identifiers. It is not formatted.
  release  remove the record of this CID: a blank disk under this CID is formatted again.`,
		Examples: []string{"agent disk accept vol-0a1b2c3d", "agent disk release vol-0a1b2c3d"}}, stdout, stderr)
	base := flags.String("b", vcap.DefaultBase, "`BASE` directory")
	if code, ok := flags.Parse(args, 2, 2); !ok {
		return code
	}
	action := identity.Action(flags.Arg(0))
	if action != identity.Accept && action != identity.Release {
		return flags.Misused("%q is neither accept nor release", action)
	}
	if err := identity.In(vcap.New(*base)).Request(action, flags.Arg(1)); err != nil {
		fmt.Fprintf(stderr, "agent disk: %v\n", err)
		return cli.ExitFailed
	}
	fmt.Fprintf(stdout, "the agent will %s %s when it next decides about that disk\n", action, flags.Arg(1))
	return cli.ExitOK
}
