// Package manpage generates manual pages from the table of commands: one for the program and one for each command.
package manpage

import (
	"fmt"
	"strings"

	"cambium/cmd/agent/cli"
	"cambium/internal/vcap"
)

// Pages returns the manual pages by file name.
func Pages(program, version string, all []cli.Description) map[string]string {
	pages := map[string]string{program + ".8": overview(program, version, all)}
	for _, d := range all {
		pages[program+"-"+d.Name+".8"] = page(program, version, d)
	}
	return pages
}

func overview(program, version string, all []cli.Description) string {
	var p roff
	p.title(program, version)
	p.section("NAME")
	p.text(program + ` \- agent for BOSH virtual machines`)
	p.section("SYNOPSIS")
	p.bold(program, " ", "COMMAND", " [flags] [arguments]")
	p.line(".br")
	p.bold(program, ` \-P PLATFORM \-C AGENT_JSON [flags]`)
	p.section("DESCRIPTION")
	p.text(
		"The agent configures network, disks and accounts of a virtual machine, and runs the jobs that a BOSH Director deploys to it.",
	)
	p.section("COMMANDS")
	for _, d := range all {
		p.item(program+" "+d.Name, escape(d.Summary)+"; see "+escape(program+"-"+d.Name)+"(8)")
	}
	p.section("EXIT STATUS")
	p.text("0 success, 1 bad input or failure, 2 usage error. Commands with further exit codes list them.")
	p.section("ENVIRONMENT")
	p.item("NO_COLOR", "if not empty, disables colors, as TERM=dumb does")
	p.item("COLUMNS", "the width of output to files and pipes, 80 if not set")
	p.section("FILES")
	dirs := vcap.New("")
	p.item(dirs.AgentJSON(), "the stemcell's configuration of the agent")
	p.item(dirs.Log(), "the log")
	p.item(vcap.RunDir.Status(), "the status")
	return p.String()
}

func page(program, version string, d cli.Description) string {
	var p roff
	name := program + "-" + d.Name
	p.title(name, version)
	p.section("NAME")
	p.text(escape(name) + ` \- ` + escape(d.Summary))
	p.section("SYNOPSIS")
	p.bold(program, " ", strings.TrimPrefix(d.Usage, "agent "))
	p.section("DESCRIPTION")
	p.text(escape(strings.ReplaceAll(d.Purpose, "\n", " ")))
	for _, t := range d.Terms {
		p.item(t.Word, escape(t.Text))
	}
	if len(d.Flags) > 0 {
		p.section("OPTIONS")
	}
	for _, f := range d.Flags {
		text := f.Usage
		if f.Default != "" {
			text += " (default " + f.Default + ")"
		}
		p.item(strings.TrimSpace(f.Name+" "+f.Argument), escape(text))
	}
	if len(d.Examples) > 0 {
		p.section("EXAMPLES")
		p.line(".nf")
		for _, e := range d.Examples {
			if rest, found := strings.CutPrefix(e, "agent "); found {
				e = program + " " + rest
			}
			p.text(escape(e))
		}
		p.line(".fi")
	}
	p.section("SEE ALSO")
	p.text(escape(program) + "(8)")
	return p.String()
}

// roff builds a page.
type roff struct{ strings.Builder }

func (r *roff) line(text string) { r.WriteString(text + "\n") }

func (r *roff) title(name, version string) {
	r.line(
		fmt.Sprintf(`.TH "%s" 8 "" "%s" "System administration"`, strings.ToUpper(escape(name)),
			escape(strings.TrimSpace("Cambium "+version))),
	)
}

func (r *roff) section(name string) { r.line(".SH " + name) }

// text writes escaped text. A dot at the start of a line is escaped, too, since roff would read a request.
func (r *roff) text(text string) {
	if strings.HasPrefix(text, ".") || strings.HasPrefix(text, "'") {
		text = `\&` + text
	}
	r.line(text)
}

// bold writes the program's name in bold, and rest as it is.
func (r *roff) bold(program string, rest ...string) {
	r.line(
		`\fB` + escape(
			program,
		) + `\fR` + strings.ReplaceAll(
			strings.ReplaceAll(strings.Join(rest, ""), `\-`, "-"),
			"-",
			`\-`,
		),
	)
}

func (r *roff) item(name, text string) {
	r.line(".TP")
	r.line(`\fB` + escape(name) + `\fR`)
	r.text(text)
}

// escape keeps dashes and backslashes as they are, so that commands can be copied.
func escape(text string) string { return strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(text) }
