// Package completion generates completion scripts for shells from the table of commands. The scripts are static:
// completing runs no program.
package completion

import (
	"fmt"
	"strings"

	"cambium/cmd/agent/cli"
)

// Shells lists the supported shells.
var Shells = []string{"bash", "zsh", "fish"}

var scripts = map[string]func(program string, all []cli.Description) string{"bash": bash, "zsh": zsh, "fish": fish}

// Script returns the completion script for a shell. known is false if the shell is not supported.
func Script(shell, program string, all []cli.Description) (script string, known bool) {
	make, known := scripts[shell]
	if !known {
		return "", false
	}
	return make(program, all), true
}

func commandNames(all []cli.Description) string {
	names := []string{"help"}
	for _, d := range all {
		names = append(names, d.Name)
	}
	return strings.Join(names, " ")
}

func flagNames(d cli.Description) string {
	var names []string
	for _, f := range d.Flags {
		names = append(names, f.Name)
	}
	return strings.Join(append(names, "--help"), " ")
}

func bash(program string, all []cli.Description) string {
	function := "_" + strings.ReplaceAll(program, "-", "_")
	var b strings.Builder
	fmt.Fprintf(&b, `# Completion of %[1]s for bash.
%[2]s() {
	local word=${COMP_WORDS[COMP_CWORD]} flags= words=
	COMPREPLY=()
	if ((COMP_CWORD == 1)); then
		words="%[3]s --help --version"
	else
		case ${COMP_WORDS[1]} in
		help) words="%[3]s" ;;
`, program, function, commandNames(all))
	for _, d := range all {
		fmt.Fprintf(&b, "\t\t%s) flags=%q words=%q ;;\n", d.Name, flagNames(d), strings.Join(d.Words, " "))
	}
	fmt.Fprintf(&b, `		esac
	fi
	[[ $word != -* ]] || words="$words $flags"
	mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
}
complete -o default -F %s %s
`, function, program)
	return b.String()
}

func zsh(program string, all []cli.Description) string {
	var b strings.Builder
	fmt.Fprintf(
		&b,
		"#compdef %s\n# Completion of %[1]s for zsh.\nlocal -a commands\ncommands=(\n\t'help:list the commands, or show the help of one'\n",
		program,
	)
	for _, d := range all {
		fmt.Fprintf(&b, "\t%s\n", single(d.Name+":"+d.Summary))
	}
	b.WriteString(")\nif ((CURRENT == 2)); then\n\t_describe command commands\n\treturn\nfi\n")
	b.WriteString("shift words\n((CURRENT--))\ncase $words[1] in\nhelp) _describe command commands ;;\n")
	for _, d := range all {
		fmt.Fprintf(&b, "%s)\n\t_arguments", d.Name)
		for _, f := range d.Flags {
			text := single(f.Name + "[" + bracketless(f.Usage) + "]")
			if f.Argument != "" {
				text = single(f.Name + "[" + bracketless(f.Usage) + "]:" + bracketless(f.Argument) + ":_default")
			}
			fmt.Fprintf(&b, " \\\n\t\t%s", text)
		}
		if len(d.Words) > 0 {
			fmt.Fprintf(&b, " \\\n\t\t%s", single("1:argument:("+strings.Join(d.Words, " ")+")"))
		}
		b.WriteString(" \\\n\t\t'--help[show the help of the command]' '*:file:_files'\n\t;;\n")
	}
	b.WriteString("esac\n")
	return b.String()
}

// bracketless replaces the characters that are special to _arguments.
func bracketless(text string) string {
	return strings.NewReplacer("[", "(", "]", ")", ":", ";").Replace(text)
}

func fish(program string, all []cli.Description) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# Completion of %s for fish.\n", program)
	fmt.Fprintf(&b,
		"complete -c %s -f -n __fish_use_subcommand -a help -d 'list the commands, or show the help of one'\n",
		program)
	for _, d := range all {
		fmt.Fprintf(&b, "complete -c %s -f -n __fish_use_subcommand -a %s -d %s\n", program, d.Name, single(d.Summary))
	}
	fmt.Fprintf(&b, "complete -c %s -f -n '__fish_seen_subcommand_from help' -a %s\n", program,
		single(commandNames(all)))
	for _, d := range all {
		within := "-n '__fish_seen_subcommand_from " + d.Name + "'"
		for _, f := range d.Flags {
			option := "-l " + strings.TrimPrefix(f.Name, "--")
			if !strings.HasPrefix(f.Name, "--") {
				option = "-s " + strings.TrimPrefix(f.Name, "-")
			}
			if f.Argument != "" {
				option += " -r"
			}
			fmt.Fprintf(&b, "complete -c %s %s %s -d %s\n", program, within, option, single(f.Usage))
		}
		if len(d.Words) > 0 {
			fmt.Fprintf(&b, "complete -c %s %s -a %s\n", program, within, single(strings.Join(d.Words, " ")))
		}
	}
	return b.String()
}

// single puts a text in single quotes for a shell.
func single(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }
