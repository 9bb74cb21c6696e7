package main

import (
	"cambium/platform/floor"
)

// checkPlatform logs which features of kernel and container engine are missing. The agent starts without them: the
// message says what does not work, and a boot step that needs one fails by itself.
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
