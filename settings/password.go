package settings

import (
	"regexp"
	"strings"

	"cambium/internal/secret"
)

// crypted matches hashes of crypt(3): "$METHOD$…", DES with its 13 characters, and extended DES.
var crypted = regexp.MustCompile(`^(\$[0-9A-Za-z]+\$[!-~]+|[./0-9A-Za-z]{13}|_[./0-9A-Za-z]{19})$`)

// IsPlaintextPassword reports whether a password hash looks like a password in clear, with which nobody can log in. Locked
// ("*", "!…") and empty hashes are valid.
func IsPlaintextPassword(hash secret.String) bool {
	text := hash.Reveal()
	return text != "" && text != "*" && !strings.HasPrefix(text, "!") && !crypted.MatchString(text)
}
