// Package monitaccess is the program bosh-enable-monit-access, for jobs that talk to monit themselves:
// without it, the firewall lets only the agent reach monit. On a machine it is a link to the agent.
package monitaccess

import (
	"context"
	"errors"
	"io"

	"cambium/cmd/agent/cli"
	"cambium/cmd/agent/logging"
	"cambium/platform/firewall"
	"cambium/platform/user"
)

// Name is the name that the agent's binary is called by.
const Name = "bosh-enable-monit-access"

// Run lets the job that called it reach monit.
func Run(ctx context.Context, _ []string, _, stderr io.Writer) int {
	log := logging.SetUp(stderr).WithField("component", "monit-access")
	account, err := (&user.Accounts{Root: "/", Log: log}).Lookup("vcap")
	if err == nil {
		err = (&firewall.Firewall{Log: log}).Allow(ctx, firewall.Job{Root: "/", UID: uint32(account.UID)})
	}
	if errors.Is(err, firewall.ErrNotSetUp) {
		return cli.ExitOK // every process can reach monit
	}
	if err != nil {
		log.WithError(err).Error("cannot enable access to monit")
		return cli.ExitFailed
	}
	return cli.ExitOK
}
