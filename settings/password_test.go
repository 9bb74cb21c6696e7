package settings

import (
	"testing"

	"cambium/internal/secret"
)

func TestIsPlaintextPassword(t *testing.T) {
	for text, want := range map[string]bool{
		"": false, "*": false, "!": false, "!locked": false, "$6$salt$hash": false, "$y$j9T$abc$def": false,
		"$2b$10$abc":    false,
		"abJnggxhB/yWI": false, "_J9..K0AyUubRxO5hYkw": false,
		"secret": true, "correct horse": true, "c1oudc0w": true, "$6$": true,
	} {
		if got := IsPlaintextPassword(secret.New(text)); got != want {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
}
