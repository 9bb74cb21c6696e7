package timeline

import (
	"fmt"
	"html"
	"io"
	"math"
	"strings"
	"time"

	"cambium/internal/status"
)

// Sizes of the picture in pixels. Labels have a column of their own, so that they cannot meet bars; glyph is
// the width of a character of any common monospace font at fontSize, rounded up.
const (
	pictureWidth = 960
	margin       = 16
	rowHeight    = 20
	fontSize     = 12
	glyph        = 7.6
	lengthColumn = 80
	maxLabel     = 36 // characters
	tickWidth    = 76 // pixels for a label of the axis
)

// style is shared by SVG and HTML: both follow the reader's preference for light or dark.
const style = `:root{--ink:#1b1f24;--paper:#ffffff;--dim:#57606a;--grid:#d0d7de;--machine:#8c959f;--done:#2da44e;--wait:#9be0ae;--warned:#bf8700;--failed:#cf222e;--running:#0969da;--skipped:#afb8c1;--mark:#8250df}
@media(prefers-color-scheme:dark){:root{--ink:#e6edf3;--paper:#0d1117;--dim:#9198a1;--grid:#30363d;--machine:#6e7681;--done:#3fb950;--wait:#1f5a30;--warned:#d29922;--failed:#f85149;--running:#58a6ff;--skipped:#484f58;--mark:#bc8cff}}
`

// svg draws the chart as a picture that needs nothing else.
func svg(w io.Writer, c Chart) error {
	labels := min(c.longestLabel(), maxLabel)
	left := margin + float64(labels)*glyph + 8
	right := float64(pictureWidth - margin - lengthColumn)
	x := func(t int64) float64 { return left + c.at(t)*(right-left) }
	top := float64(margin + 3*rowHeight)
	bottom := top + float64(len(c.Rows)*rowHeight)
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %.0f" width="%d" height="%.0f" role="img" aria-label="%s">`+"\n",
		pictureWidth, bottom+margin, pictureWidth, bottom+margin, html.EscapeString("timeline of "+c.Title))
	fmt.Fprintf(&b, "<style>%stext{font:%dpx ui-monospace,'DejaVu Sans Mono',Menlo,Consolas,monospace;fill:var(--ink)}.dim{fill:var(--dim)}.head{font-weight:bold}</style>\n", style, fontSize)
	fmt.Fprintf(&b, `<rect width="%d" height="%.0f" fill="var(--paper)"/>`+"\n", pictureWidth, bottom+margin)
	text := func(class string, at, y float64, anchor, content string) {
		fmt.Fprintf(&b, `<text class="%s" x="%.1f" y="%.1f" text-anchor="%s">%s</text>`+"\n", class, at, y, anchor, html.EscapeString(content))
	}
	wide := int(math.Floor((pictureWidth - 2*margin) / glyph))
	text("head", margin, margin+fontSize, "start", clip(c.Title+"  "+string(c.State), wide))
	text("dim", margin, margin+fontSize+rowHeight, "start", clip(c.Text, wide))
	for _, t := range c.ticks(int((right-left)/tickWidth), tickWidth/(right-left)) {
		fmt.Fprintf(&b, `<line x1="%.1f" x2="%.1f" y1="%.1f" y2="%.1f" stroke="var(--grid)"/>`+"\n", x(t.At), x(t.At), top-4, bottom)
		text("dim", x(t.At), top-8, "start", t.Label)
	}
	if c.Ready > 0 {
		fmt.Fprintf(&b, `<line x1="%.1f" x2="%.1f" y1="%.1f" y2="%.1f" stroke="var(--mark)" stroke-dasharray="4 3"><title>ready after %s</title></line>`+"\n",
			x(c.Ready), x(c.Ready), top-4, bottom, rounded(time.Duration(c.Ready)))
	}
	for i, r := range c.Rows {
		y := top + float64(i*rowHeight)
		svgRow(&b, r, x, y)
		if r.Kind == KindTry {
			text("head", margin, y+14, "start", clip(headline(r), wide))
			continue
		}
		indent := 0
		if r.Kind == KindSource {
			indent = 2
		}
		text("", margin+float64(indent)*glyph, y+14, "start", clip(r.Label, labels-indent))
		text("dim", pictureWidth-margin, y+14, "end", lengthOf(r))
	}
	b.WriteString("</svg>\n")
	_, err := io.WriteString(w, b.String())
	return err
}

// headline is the text of a try.
func headline(r Row) string {
	return strings.TrimSuffix(fmt.Sprintf("%s after %s: %s", r.Label, rounded(time.Duration(r.Start)), r.Note), ": ")
}

// lengthOf is what stands behind a bar.
func lengthOf(r Row) string {
	if r.Kind == KindMark {
		return rounded(time.Duration(r.Start))
	}
	return rounded(r.took())
}

// color is the name of a row's color in style.
func color(r Row) string {
	switch {
	case r.Kind == KindMachine:
		return "machine"
	case r.Kind == KindMark:
		return "mark"
	}
	switch r.Outcome {
	case status.Warned:
		return "warned"
	case status.Broken:
		return "failed"
	case status.Running:
		return "running"
	case status.Skipped, status.Canceled:
		return "skipped"
	}
	return "done"
}

// svgRow draws the bar of a row, its waits over it, and what it says to a pointer that rests on it.
func svgRow(b *strings.Builder, r Row, x func(int64) float64, y float64) {
	if r.Kind == KindTry {
		return
	}
	rect := func(from, to int64, color, title string) {
		fmt.Fprintf(b, `<rect x="%.1f" y="%.1f" width="%.1f" height="%d" rx="2" fill="var(--%s)"><title>%s</title></rect>`+"\n",
			x(from), y+4, max(x(to)-x(from), 2), rowHeight-8, color, html.EscapeString(title))
	}
	rect(r.Start, r.End, color(r), title(r))
	for _, wait := range r.Waits {
		rect(wait.Start, wait.End, "wait", "waited "+rounded(time.Duration(wait.End-wait.Start))+" for "+wait.For)
	}
}

func title(r Row) string {
	text := r.Label + ": " + lengthOf(r)
	if r.Outcome != "" {
		text += ", " + string(r.Outcome)
	}
	if r.Note != "" {
		text += ": " + r.Note
	}
	return text
}
