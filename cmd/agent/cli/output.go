package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// WriteJSON prints v as indented JSON.
func WriteJSON(w io.Writer, v any) error {
	out := json.NewEncoder(w)
	out.SetEscapeHTML(false)
	out.SetIndent("", "  ")
	return out.Encode(v)
}

// NotChecked is printed in place of what only root can check.
const NotChecked = "not checked (run as root)"

// Advise adds advice to an error caused by missing privileges.
func Advise(err error) error {
	if errors.Is(err, fs.ErrPermission) && os.Geteuid() != 0 {
		return fmt.Errorf("%w: run it as root", err)
	}
	return err
}

// Color is a color or weight of text on a terminal.
type Color string

// The colors that commands use.
const (
	Red    Color = "31"
	Green  Color = "32"
	Yellow Color = "33"
	Grey   Color = "90"
	Bold   Color = "1"
)

// Palette colors text if Enabled.
type Palette struct{ Enabled bool }

// PaletteFor returns a palette that is enabled if w is a terminal, unless NO_COLOR or TERM=dumb is set.
func PaletteFor(w io.Writer) Palette {
	return Palette{Enabled: os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" && isTerminal(w)}
}

// Paint returns the text in a color.
func (p Palette) Paint(c Color, text string) string {
	if !p.Enabled || c == "" {
		return text
	}
	return "\x1b[" + string(c) + "m" + text + "\x1b[0m"
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	return err == nil
}
