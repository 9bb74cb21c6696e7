//go:build !(root || vm || bench || soak || nightly)

package machine

// crashPoints is empty in a shipped agent; see crashpoint_tests.go.
type crashPoints struct{}

// CrashPoint does nothing.
func (crashPoints) CrashPoint(string) {}

func newCrashPoints() crashPoints { return crashPoints{} }
