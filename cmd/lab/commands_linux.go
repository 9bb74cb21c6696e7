package main

import "cambium/lab"

// commands returns the table of commands, in the order of the help.
func commands() []command {
	return []command{
		{"up", "[flags]", "start a lab with one machine",
			[]string{"lab up", "lab up --engine qemu", "lab up --lab two --source configdrive --disk 10G",
				"lab up --agent-json agent.json --settings settings.json --source cdrom"}, up, false},
		{"ls", "[flags]", "list labs and their machines", []string{"lab ls", "lab ls --json", "lab ls --deleted"}, list, false},
		{"shell", "[flags] [MACHINE] [-- COMMAND…]",
			"open a root shell in a machine, or run a command there; MACHINE may be the CID of a CPI's VM",
			[]string{"lab shell", "lab shell vm1", "lab shell -- systemctl status agent"}, shell, false},
		{"ssh", "[flags] [MACHINE] [-- COMMAND…]", "the same as shell", nil, shell, false},
		{"logs", "[flags] [MACHINE]", "show the agent's log, or the console; MACHINE may be the CID of a CPI's VM",
			[]string{"lab logs", "lab logs --follow", "lab logs --console"}, logs, false},
		{"machine", "start|stop|reboot|kill|delete [MACHINE]", "switch a machine on or off, or cut its power",
			[]string{"lab machine reboot", "lab machine kill vm1"}, machineCommand, false},
		{"power", "on|off|cut|cycle [MACHINE]", "the machine's power switch: cut loses what is not on its disks, cycle is cut and on",
			[]string{"lab power cut", "lab power cycle vm1"}, power, false},
		{"disk", "attach|detach|resize|delete ID", "attach, detach or grow a disk, or delete the disk of a deleted machine; attach prints the hint that a CPI would return",
			[]string{"lab disk attach disk-1 --size 10G", "lab disk resize disk-1 --size 20G", "lab disk detach disk-1",
				"lab disk delete disk-1"}, diskCommand, false},
		callCommand(),
		{"deploy", "[flags] MANIFEST", "bring the lab into the state of a manifest, as a Director does", []string{"lab deploy manifest.yml"}, deploy, false},
		watchCommand(),
		{"down", "[flags] [LAB]", "end a lab and remove all of it", []string{"lab down", "lab down two"}, down, false},
		{"clean", "[flags] [LAB…]", "remove the remains of crashed labs", []string{"lab clean", "lab clean two", "lab clean --cache"}, clean, false},
		{"cache", "prune [--older DURATION] [--all] [--dry-run]", "remove Debian trees and disk images that were not used lately; those of labs that are up stay",
			[]string{"lab cache prune", "lab cache prune --older 1h --dry-run", "lab cache prune --all"}, cache, false},
		{"demo", "[flags]", "boot a machine and drive it as a Director does, step by step", []string{"lab demo", "lab demo --engine qemu", "KEEP=1 lab demo"}, demo, false},
		{"stemcell", "[flags]", "make a stemcell with the agent in it", []string{"lab stemcell --version 1.2.3 --output bin/"}, stemcell, false},
		{"runtime-config", "", "print a Director's runtime config that puts bosh-dns, bpm and syslog on VMs of the stemcell",
			[]string{"lab runtime-config >addons.yml"}, runtimeConfig, false},
		{"timeline", "[FILE]", "draw what agent timeline --json printed as an SVG picture",
			[]string{"lab timeline boot.json >boot.svg", "lab shell -- agent timeline --json | lab timeline >boot.svg"},
			drawTimeline, false},
		{"enter", "[flags] -- COMMAND…", "run a command in the network of the CPI's IaaS", []string{"lab enter -- bosh create-env manifest.yml", "lab enter -- curl 10.245.0.6:8080"}, enter, false},
		{"cpi-release", "[flags]", "make the release of the CPI, and one with a small web server", []string{"lab cpi-release --output bin"}, cpiRelease, false},
		{"agent-release", "[flags] DIR", "make the release of the agent from its directory", []string{"lab agent-release --output bin/cambium-agent.tgz bin/agent-release"}, agentRelease, false},
		{"host-route", "on [--outside]|off", "let the host reach the CPI's VMs directly, by a link and routes that exist as long as their holder runs", []string{"lab host-route on", "lab host-route on --outside", "lab host-route off"}, hostRoute, false},
		{"cpi-tls", "[flags]", "print what a CPI inside a VM needs to reach the IaaS: lab.tls of its release", []string{"lab cpi-tls >tls.json"}, cpiTLS, false},
		{"cpi-clean", "[flags] [CID…]", "list what the CPI has created, or remove the named objects",
			[]string{"lab cpi-clean", "lab cpi-clean vm-0123", "lab cpi-clean --director 0f6c3f0e --disks"}, cpiClean, false},
		completionCommand(),
		versionCommand(),
		{"demo-keep", "[flags]", "run the demo and hold its lab; started by demo", nil, demoKeep, true},
		{"supervise", "", "hold a lab; started by up", nil, supervise, true},
		{"hold", "DIR NAME", "hold the CPI's IaaS; started by the CPI and by enter", nil, holdIaaS, true},
		{"attach", "SOCKET -- COMMAND…", "run a program in a virtual machine; used by shell", nil, attach, true},
	}
}

// stateDir returns the default directory for the state of labs.
func stateDir() string { return lab.DefaultDir() }
