package settings

import (
	"regexp"
	"strings"

	"cambium/internal/secret"
)

// crypted are the forms of crypt(3): a method between dollar signs, and DES, which has thirteen characters.
var crypted = regexp.MustCompile(`^(\$[0-9A-Za-z]+\$[!-~]+|[./0-9A-Za-z]{13}|_[./0-9A-Za-z]{19})$`)

// PlainPassword reports a password that is not a crypt(3) hash: nobody can log in with it. Locked ones ("*", "!…") and
// none at all are no mistake.
func PlainPassword(hash secret.String) bool {
	text := hash.Reveal()
	return text != "" && text != "*" && !strings.HasPrefix(text, "!") && !crypted.MatchString(text)
}
