// Package release tests what `make release` builds, as those who download it use it.
package release
