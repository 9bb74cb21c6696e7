package main

import (
	"context"
	"errors"
	"io"

	"cambium/cmd/agent/cli"
	"cambium/cmd/agent/logging"
	"cambium/platform/firewall"
	"cambium/platform/user"
)

// allowMonit implements the program bosh-enable-monit-access, which on a machine is a link to the agent. It lets the
// calling job reach monit. Without it, the firewall lets only the agent reach monit.
func allowMonit(ctx context.Context, _ []string, _, stderr io.Writer) int {
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
