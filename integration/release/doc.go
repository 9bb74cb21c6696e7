// Package release tests the files that `make release` builds, as people who download them use them.
package release
