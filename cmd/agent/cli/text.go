package cli

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// defaultWidth is used if the width of the terminal is unknown.
const defaultWidth = 80

// Width returns the number of columns for text written to w. It is the width of the terminal. If w is not a terminal,
// it is the value of COLUMNS, or a default.
func Width(w io.Writer) int {
	if f, ok := w.(*os.File); ok {
		if size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ); err == nil && size.Col > 0 {
			return int(size.Col)
		}
	}
	if n, err := strconv.Atoi(os.Getenv("COLUMNS")); err == nil && n > 0 {
		return n
	}
	return defaultWidth
}

// PrintFolded prints a text in lines of at most width columns, indented to the column indent. lead is printed at the
// start of the first line.
func PrintFolded(w io.Writer, width int, lead string, indent int, text string) {
	for _, line := range fold(text, max(width-indent, 20)) {
		fmt.Fprintln(w, strings.TrimRight(lead+line, " "))
		lead = strings.Repeat(" ", indent)
	}
}

// fold breaks a text between words, so that no line has more than width columns. A text in single quotes is a command
// to copy and is kept on one line if possible. A word that is too long is cut.
func fold(text string, width int) []string {
	var lines []string
	line := ""
	for _, word := range words(text) {
		if line != "" && columns(line)+1+columns(word) > width {
			lines, line = append(lines, line), ""
		}
		for columns(word) > width {
			head, tail := splitAt(word, width)
			if space := strings.LastIndex(head, " "); space > 0 { // a long command
				head, tail = word[:space], word[space+1:]
			}
			lines, word = append(lines, head), tail
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	if line != "" || len(lines) == 0 {
		lines = append(lines, line)
	}
	return lines
}

// words splits a text at spaces outside single quotes.
func words(text string) []string {
	var all []string
	for _, field := range strings.Fields(text) {
		if n := len(all); n > 0 && openQuote(all[n-1]) {
			all[n-1] += " " + field
			continue
		}
		all = append(all, field)
	}
	return all
}

// openQuote reports whether a word begins with a quote that does not end in it. An apostrophe does not count.
func openQuote(word string) bool {
	quoted, found := strings.CutPrefix(strings.TrimLeft(word, "("), "'")
	return found && !strings.Contains(quoted, "'")
}

func columns(text string) int { return utf8.RuneCountInString(text) }

func splitAt(word string, width int) (head, tail string) {
	runes := []rune(word)
	return string(runes[:width]), string(runes[width:])
}

// Rounded keeps about three digits.
func Rounded(d time.Duration) string {
	switch {
	case d >= 100*time.Second:
		return d.Round(time.Second).String()
	case d >= 10*time.Second:
		return d.Round(100 * time.Millisecond).String()
	case d >= 10*time.Millisecond:
		return d.Round(time.Millisecond).String()
	}
	return d.Round(10 * time.Microsecond).String()
}
