// Package picture draws the waterfall of `agent timeline --json` as an SVG that needs nothing else.
package picture

import (
	"fmt"
	"html"
	"io"
	"math"
	"strings"
	"time"

	"cambium/cmd/agent/cli"
	"cambium/cmd/agent/timeline"
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
	lengthColumn = 136 // "canceled 1m40.1s"
	maxLabel     = 36  // characters
	tickWidth    = 76  // pixels for a label of the axis
	square       = rowHeight - 8
)

// The colors are literal: not every viewer knows style sheets.
const (
	ink   = "#1b1f24"
	dim   = "#57606a"
	paper = "#ffffff"
	grid  = "#d0d7de"
	mark  = "#8250df"

	machineColor = "#8c959f"
	doneColor    = "#2da44e"
	waitColor    = "#9be0ae"
	warnedColor  = "#bf8700"
	failedColor  = "#cf222e"
	runningColor = "#0969da"
	skippedColor = "#afb8c1"
)

// picture accumulates the SVG elements drawn so far.
type picture struct{ strings.Builder }

func (p *picture) text(x, y float64, color, attributes, content string) {
	fmt.Fprintf(p, `<text x="%.1f" y="%.1f" fill="%s"%s>%s</text>`+"\n",
		x, y, color, attributes, html.EscapeString(content))
}

func (p *picture) line(x, top, bottom float64, color, attributes string) {
	fmt.Fprintf(p, `<line x1="%.1f" x2="%.1f" y1="%.1f" y2="%.1f" stroke="%s"%s/>`+"\n",
		x, x, top, bottom, color, attributes)
}

// rect draws a bar in the row at y; title is for a pointer that rests on it.
func (p *picture) rect(x, y, width float64, color, title string) {
	fmt.Fprintf(p, `<rect x="%.1f" y="%.1f" width="%.1f" height="%d" rx="2" fill="%s"><title>%s</title></rect>`+"\n",
		x, y+4, width, square, color, html.EscapeString(title))
}

const (
	bold  = ` font-weight="bold"`
	atEnd = ` text-anchor="end"`
)

// Draw writes the chart as SVG.
func Draw(w io.Writer, c timeline.Chart) error {
	labels := min(c.LongestLabel(), maxLabel)
	left := margin + float64(labels)*glyph + 8
	right := float64(pictureWidth - margin - lengthColumn)
	x := func(t int64) float64 { return left + c.Fraction(t)*(right-left) }
	top := float64(margin + 3*rowHeight)
	bottom := top + float64(len(c.Rows)*rowHeight)
	height := bottom + 2*rowHeight + margin
	ended := c.Title + ": " + string(c.State)
	p := &picture{}
	fmt.Fprintf(p, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %.0f" width="%d" height="%.0f" role="img"`,
		pictureWidth, height, pictureWidth, height)
	fmt.Fprintf(p, ` font-family="DejaVu Sans Mono, Menlo, Consolas, monospace" font-size="%d">`+"\n", fontSize)
	fmt.Fprintf(p, "<title>%s</title>\n", html.EscapeString(strings.TrimSuffix("timeline of "+ended+", "+c.Text, ", ")))
	fmt.Fprintf(p, `<rect width="%d" height="%.0f" fill="%s"/>`+"\n", pictureWidth, height, paper)
	wide := int(math.Floor((pictureWidth - 2*margin) / glyph))
	p.text(margin, margin+fontSize, ink, bold, timeline.Clip(ended, wide))
	p.text(margin, margin+fontSize+rowHeight, dim, "", timeline.Clip(c.Text, wide))
	for _, t := range c.Ticks(int((right-left)/tickWidth), tickWidth/(right-left)) {
		p.line(x(t.At), top-4, bottom, grid, "")
		p.text(x(t.At), top-8, dim, "", t.Label)
	}
	if c.Ready > 0 {
		p.line(x(c.Ready), top-4, bottom, mark, ` stroke-dasharray="4 3"`)
	}
	for i, r := range c.Rows {
		y := top + float64(i*rowHeight)
		if r.Kind == timeline.KindTry {
			p.text(margin, y+14, ink, bold, timeline.Clip(headline(r), wide))
			continue
		}
		p.row(r, x, y, labels)
	}
	p.legend(bottom + rowHeight)
	p.WriteString("</svg>\n")
	_, err := io.WriteString(w, p.String())
	return err
}

// row draws label, bar and length of a row, and its waits over the bar.
func (p *picture) row(r timeline.Row, x func(int64) float64, y float64, labels int) {
	indent := 0
	if r.Kind == timeline.KindSource {
		indent = 2
	}
	p.text(margin+float64(indent)*glyph, y+14, ink, "", timeline.Clip(r.Label, labels-indent))
	bar := func(from, to int64, color, title string) { p.rect(x(from), y, max(x(to)-x(from), 2), color, title) }
	bar(r.Start, r.End, colorOf(r), title(r))
	for _, wait := range r.Waits {
		bar(wait.Start, wait.End, waitColor, "waited "+cli.Rounded(time.Duration(wait.End-wait.Start))+" for "+wait.For)
	}
	switch r.Outcome {
	case status.Done:
		p.text(pictureWidth-margin, y+14, dim, atEnd, lengthOf(r))
	case status.Broken:
		p.text(pictureWidth-margin, y+14, failedColor, atEnd+bold, string(r.Outcome)+" "+lengthOf(r))
	default:
		p.text(pictureWidth-margin, y+14, dim, atEnd, string(r.Outcome)+" "+lengthOf(r))
	}
}

func (p *picture) legend(y float64) {
	x := float64(margin)
	for _, entry := range [][2]string{{machineColor, "before the agent, not to scale"}, {doneColor, "done"},
		{waitColor, "waiting"}, {warnedColor, "warned"}, {failedColor, "failed"}, {runningColor, "running"},
		{skippedColor, "unused"},
		{mark, "moment, line: ready"}} {
		p.rect(x, y, square, entry[0], entry[1])
		p.text(x+square+4, y+14, dim, "", entry[1])
		x += square + 4 + float64(len(entry[1]))*glyph + margin
	}
}

// headline returns the text of a try.
func headline(r timeline.Row) string {
	return strings.TrimSuffix(fmt.Sprintf("%s after %s: %s", r.Label, cli.Rounded(time.Duration(r.Start)), r.Note),
		": ")
}

// lengthOf returns the length of a row or, for a moment, its time.
func lengthOf(r timeline.Row) string {
	if r.Kind == timeline.KindMark {
		return cli.Rounded(time.Duration(r.Start))
	}
	return cli.Rounded(r.Took())
}

func colorOf(r timeline.Row) string {
	switch {
	case r.Kind == timeline.KindMachine:
		return machineColor
	case r.Kind == timeline.KindMark:
		return mark
	}
	switch r.Outcome {
	case status.Warned:
		return warnedColor
	case status.Broken:
		return failedColor
	case status.Running:
		return runningColor
	case status.Skipped, status.Canceled:
		return skippedColor
	}
	return doneColor
}

func title(r timeline.Row) string {
	text := r.Label + ": " + lengthOf(r)
	if r.Outcome != "" {
		text += ", " + string(r.Outcome)
	}
	if r.Note != "" {
		text += ": " + r.Note
	}
	return text
}
