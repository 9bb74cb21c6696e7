package main

import (
	"cambium/platform/floor"
)

// checkPlatform tells which features of kernel and container engine are missing. None of them is a reason not to start:
// what each costs is in the message, and the boot step that cannot do without one says so itself.
func (a *app) checkPlatform() {
	if a.o.platform == "dummy" {
		return
	}
	if a.missing = floor.Describe(floor.Missing("/")); a.missing != "" {
		a.log.WithField("missing", a.missing).Warn("kernel or container engine lacks features")
	}
}

// warnOfPlatform repeats that in the status, whose warnings begin anew with each attempt to boot.
func (a *app) warnOfPlatform() {
	if _, err := a.rec.SetWarning("platform", a.missing); err != nil {
		a.log.WithError(err).Debug("status not written")
	}
}
