package image

import (
	_ "embed" // for the template
	"strings"
)

//go:embed runtime-config.yml
var runtimeConfig string

// RuntimeConfig returns a Director's runtime config with the releases that run on every VM of these stemcells. Versions
// and the log server are variables.
func RuntimeConfig() string { return strings.ReplaceAll(runtimeConfig, "OS", operatingSystem) }
