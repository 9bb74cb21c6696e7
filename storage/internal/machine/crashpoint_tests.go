//go:build root || vm || bench || soak || nightly

package machine

// crashPoints lets tests end the agent before a step that changes something. Only builds of these tests contain it.
type crashPoints struct {
	CrashPoint func(step string)
}

func newCrashPoints() crashPoints { return crashPoints{CrashPoint: func(string) {}} }
