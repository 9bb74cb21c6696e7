// Command pages writes the manual pages of the agent, and what shells need to complete its commands, in the places of a
// Debian package: `agent help --json | pages NAME VERSION /usr/share`.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"cambium/cmd/agent/cli"
	"cambium/cmd/agent/completion"
	"cambium/cmd/agent/manpage"
)

func main() {
	if err := run(os.Args[1:], os.Stdin); err != nil {
		fmt.Fprintln(os.Stderr, "pages:", err)
		os.Exit(1)
	}
}

func run(args []string, commands io.Reader) error {
	if len(args) != 3 {
		return errors.New("usage: agent help --json | pages NAME VERSION DIRECTORY")
	}
	name, version, dir := args[0], args[1], args[2]
	var all []cli.Description
	if err := json.NewDecoder(commands).Decode(&all); err != nil {
		return fmt.Errorf("read what agent help --json prints: %w", err)
	}
	files := map[string]string{}
	for shell, path := range map[string]string{"bash": "bash-completion/completions/" + name,
		"zsh": "zsh/vendor-completions/_" + name, "fish": "fish/vendor_completions.d/" + name + ".fish"} {
		files[path], _ = completion.Script(shell, name, all)
	}
	for page, text := range manpage.Pages(name, version, all) {
		files["man/man8/"+page] = text
	}
	for path, text := range files {
		path = filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}
