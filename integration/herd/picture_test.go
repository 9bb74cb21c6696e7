//go:build soak

package herd

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// Sizes of the picture in pixels.
const (
	panelWidth, panelHeight = 400, 260
	left, top, gap          = 60, 40, 150
	rowHeight               = panelHeight + top + 70
)

// line is one figure by the number of agents.
type line struct {
	label, color string
	dashed       bool
	value        func(figures) float64
}

// picture has two panels for each way of naming users; all axes are logarithmic.
func (r results) picture() string {
	var b strings.Builder
	width, height := 2*panelWidth+2*left+gap+60, 2*rowHeight
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" `+
		`font-family="sans-serif" font-size="12">`+"\n"+`<rect width="%d" height="%d" fill="#ffffff"/>`+"\n",
		width, height, width, height, width, height)
	for i, by := range []naming{bySubject, bySAN} {
		y0 := float64(top + i*rowHeight)
		r.of(by).panel(&b, left, y0, "seconds; users by "+string(by), []line{
			{"cold start", "#0969da", false, func(f figures) float64 { return f.ColdStart }},
			{"server dies", "#cf222e", false, func(f figures) float64 { return f.Death }},
			{"new agent, longest", "#8250df", false, func(f figures) float64 { return f.JoinLongest }},
			{"reload of users", "#bf8700", false, func(f figures) float64 { return f.ReloadTime }},
		})
		title := "connects within a second, at most; users by " + string(by)
		r.of(by).panel(&b, left+panelWidth+gap+30, y0, title, []line{
			{"cold start", "#0969da", false, func(f figures) float64 { return f.ColdPeak }},
			{"allowed", "#0969da", true, func(f figures) float64 { return f.ColdAllowed }},
			{"server dies", "#cf222e", false, func(f figures) float64 { return f.DeathPeak }},
			{"allowed", "#cf222e", true, func(f figures) float64 { return f.DeathAllowed }},
		})
	}
	b.WriteString("</svg>\n")
	return b.String()
}

func (r results) panel(b *strings.Builder, x0, y0 float64, title string, lines []line) {
	if len(r.Herds) == 0 {
		return
	}
	low, high := math.Inf(1), math.Inf(-1)
	for _, f := range r.Herds {
		for _, l := range lines {
			low, high = min(low, l.value(f)), max(high, l.value(f))
		}
	}
	low, high = math.Floor(math.Log10(max(low, 0.01))), math.Ceil(math.Log10(max(high, 0.1)))
	x := func(agents float64) float64 { return x0 + (math.Log10(agents)-2)/2*panelWidth }
	y := func(v float64) float64 { return y0 + panelHeight*(1-(math.Log10(max(v, 0.01))-low)/(high-low)) }
	text := func(px, py float64, anchor, color, s string) {
		fmt.Fprintf(b, `<text x="%.1f" y="%.1f" text-anchor="%s" fill="%s">%s</text>`+"\n", px, py, anchor, color, s)
	}
	text(x0, y0-16, "start", "#1b1f24", title)
	for e := low; e <= high; e++ {
		v := math.Pow(10, e)
		fmt.Fprintf(b, `<line x1="%.1f" x2="%.1f" y1="%.1f" y2="%.1f" stroke="#d0d7de"/>`+"\n", x0, x0+panelWidth, y(v), y(v))
		text(x0-8, y(v)+4, "end", "#57606a", fmt.Sprintf("%g", v))
	}
	for _, agents := range sizes {
		fmt.Fprintf(b, `<line x1="%.1f" x2="%.1f" y1="%.1f" y2="%.1f" stroke="#d0d7de"/>`+"\n", x(float64(agents)),
			x(float64(agents)), y0, y0+panelHeight)
		text(x(float64(agents)), y0+panelHeight+18, "middle", "#57606a", fmt.Sprint(agents))
	}
	text(x0+panelWidth/2, y0+panelHeight+40, "middle", "#57606a", "agents")
	r.draw(b, lines, x, y, text)
}

func (r results) draw(b *strings.Builder, lines []line, x, y func(float64) float64,
	text func(px, py float64, anchor, color, s string)) {
	last := r.Herds[len(r.Herds)-1]
	slices.SortFunc(lines, func(a, b line) int { return int(math.Copysign(1, y(a.value(last))-y(b.value(last)))) })
	below := 0.0
	for _, l := range lines {
		var points []string
		for _, f := range r.Herds {
			points = append(points, fmt.Sprintf("%.1f,%.1f", x(float64(f.Agents)), y(l.value(f))))
		}
		dash := ""
		if l.dashed {
			dash = ` stroke-dasharray="5 4"`
		}
		fmt.Fprintf(b, `<polyline points="%s" fill="none" stroke="%s" stroke-width="2"%s/>`+"\n", strings.Join(points, " "),
			l.color, dash)
		// Labels are at the ends of their lines, and never on each other.
		at := max(y(l.value(last))+4, below+15)
		below = at
		text(x(float64(last.Agents))+8, at, "start", l.color, l.label)
	}
}
