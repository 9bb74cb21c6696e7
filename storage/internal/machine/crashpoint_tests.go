//go:build root || vm || bench || soak || nightly

package machine

// crashPoints lets tests end the agent before a change. Only test builds contain it.
type crashPoints struct {
	CrashPoint func(step string)
}

func newCrashPoints() crashPoints { return crashPoints{CrashPoint: func(string) {}} }
