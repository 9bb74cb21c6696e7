package cpi

import (
	"fmt"
	"os"

	"cambium/lab/release"
)

// releaseName is the name of the CPI's release, and jobName that of its job.
const (
	releaseName = "cambium-cpi"
	jobName     = "lab_cpi"
)

// start is a script that finds the program and its configuration. create-env sets the directories, a Director does not.
const start = `#!/bin/sh
exec "${BOSH_PACKAGES_DIR:-/var/vcap/packages}/lab_cpi/bin/cpi" --config "${BOSH_JOBS_DIR:-/var/vcap/jobs}/lab_cpi/config/cpi.json"
`

const configTemplate = `<%=
JSON.dump(
  "dir" => p("lab.dir"),
  "name" => p("lab.name"),
  "host" => p("lab.host"),
  "tls" => p("lab.tls"),
  "agent" => { "mbus" => p("agent.mbus"), "ntp" => p("agent.ntp"), "blobstore" => p("agent.blobstore") })
%>
`

const packaging = `set -eu
mkdir -p "$BOSH_INSTALL_TARGET/bin"
cp cpi "$BOSH_INSTALL_TARGET/bin/cpi"
chmod 755 "$BOSH_INSTALL_TARGET/bin/cpi"
`

// WriteRelease writes a release with the CPI's program.
func WriteRelease(path, program, version string) error {
	binary, err := os.ReadFile(program)
	if err != nil {
		return fmt.Errorf("the CPI's program: %w; build it with 'make build'", err)
	}
	job := release.SourceJob{Packages: []string{jobName}, Properties: map[string]release.Property{
		"lab.dir":  {Description: "where the lab keeps its state", Default: "/var/lib/cambium-lab"},
		"lab.name": {Description: "name of the IaaS; a machine can have several", Default: "default"},
		"lab.host": {Description: "where the holder of the IaaS is, such as tls://10.245.0.1:25778, for a CPI inside a VM; the local socket if empty", Default: ""},
		"lab.tls": {Description: "ca, certificate and private_key for lab.host, as lab cpi-tls prints them",
			Default: map[string]any{}},
		"agent.mbus":      {Description: "URL of the message bus for agents", Default: ""},
		"agent.ntp":       {Description: "time servers for agents", Default: []string{}},
		"agent.blobstore": {Description: "blobstore for agents, with provider and options", Default: map[string]any{}},
	}}
	job.Name, job.Files = jobName, release.Files{"monit": "", "bin/cpi": start, "config/cpi.json": configTemplate}
	s := release.Source{Name: releaseName, Version: version, Jobs: []release.SourceJob{job},
		Packages: []release.Package{{Name: jobName, Files: release.Files{"packaging": packaging, "cpi": string(binary)}}}}
	return s.Write(path)
}
