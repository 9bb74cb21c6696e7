package testdoc

import (
	"fmt"
	"html"
	"strings"
)

// Box is a box of a picture. Lines lead to boxes further right.
type Box struct {
	Text string
	To   []*Box

	left, right, middle int
	color               string
}

// Sizes in pixels. A letter is as wide as the widest of the common monospace fonts, rounded up.
const (
	letter, row, padding = 8, 16, 8
	between              = 64 // columns
	maxLetters           = 40 // in a line of a box
)

// colors has the color of each column's boxes and of the lines that leave them, since lines may pass below other boxes.
// They are attributes, because not every viewer supports style sheets.
var colors = []string{"#0969da", "#8250df", "#2da44e", "#bf8700", "#cf222e", "#57606a"}

// Picture draws columns of boxes from left to right as SVG. All boxes of a column are as high as the one with the most
// text.
func Picture(title string, columns ...[]*Box) string {
	heights, height := make([]int, len(columns)), 0 // of the boxes of a column
	for i, column := range columns {
		for _, b := range column {
			heights[i] += b.height() + padding
		}
		height = max(height, heights[i]+padding)
	}
	var boxes, lines strings.Builder
	width := padding
	for i, column := range columns {
		space := (height - padding - heights[i]) / (len(column) + 1)
		right, top := width, padding+space
		for n, b := range column {
			b.left, b.middle, b.color = width, top+b.height()/2, colors[(3*i+n)%len(colors)]
			right = max(right, b.left+b.width())
			top += b.height() + padding + space
		}
		for _, b := range column {
			b.right = right
			b.draw(&boxes)
		}
		width = right + between
	}
	width += padding - between
	for _, column := range columns {
		for _, b := range column {
			for _, to := range b.To {
				fmt.Fprintf(&lines, `<path d="M%d %d C%d %d %d %d %d %d" stroke="%s"/>`+"\n", b.right, b.middle,
					b.right+between/2, b.middle, to.left-between/2, to.middle, to.left, to.middle, b.color)
			}
		}
	}
	return fmt.Sprintf(
		`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %[1]d %[2]d" width="%[1]d" height="%[2]d" role="img" `+
			`font-family="DejaVu Sans Mono, Menlo, Consolas, monospace" font-size="12">`+"\n<title>%[3]s</title>\n"+
			`<rect width="%[1]d" height="%[2]d" fill="#ffffff"/>`+"\n"+`<g fill="none">`+"\n%[4]s</g>\n%[5]s</svg>\n",
		width,
		height,
		html.EscapeString(title),
		lines.String(),
		boxes.String(),
	)
}

func (b *Box) draw(to *strings.Builder) {
	top := b.middle - b.height()/2
	fmt.Fprintf(to, `<rect x="%d" y="%d" width="%d" height="%d" rx="4" fill="#f6f8fa" stroke="%s"/>`+"\n",
		b.left, top, b.right-b.left, b.height(), b.color)
	for i, line := range b.lines() {
		fmt.Fprintf(to, `<text x="%d" y="%d" fill="#1b1f24">%s</text>`+"\n", b.left+padding, top+padding+row*i+12,
			html.EscapeString(line))
	}
}

func (b *Box) height() int { return row*len(b.lines()) + 2*padding }

func (b *Box) width() (width int) {
	for _, line := range b.lines() {
		width = max(width, letter*len([]rune(line))+2*padding)
	}
	return width
}

// lines breaks the text of a box into lines.
func (b *Box) lines() (lines []string) {
	for word := range strings.FieldsSeq(b.Text) {
		last := len(lines) - 1
		if last >= 0 && len([]rune(lines[last]+" "+word)) <= maxLetters {
			lines[last] += " " + word
		} else {
			lines = append(lines, word)
		}
	}
	return lines
}
