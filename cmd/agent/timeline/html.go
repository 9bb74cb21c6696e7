package timeline

import (
	"fmt"
	"html"
	"io"
	"strings"
	"time"
)

// page is the style of the HTML form: a column for labels, one for bars and one for lengths; on a phone the
// label stands above its bar.
const page = `body{margin:0;padding:1rem;background:var(--paper);color:var(--ink);font:14px/1.4 system-ui,sans-serif}
h1{font-size:1.2rem;margin:0}p{margin:.2rem 0 1rem;color:var(--dim);overflow-wrap:anywhere}
.row{display:grid;grid-template-columns:minmax(0,16rem) minmax(0,1fr) 5rem;gap:.6rem;align-items:center;min-height:1.5rem}
.label{overflow:hidden;text-overflow:ellipsis;white-space:nowrap}.source .label{padding-left:1rem;color:var(--dim)}
.axis{position:relative;height:.8rem;border-left:1px solid var(--grid)}.ticks{height:1.2rem;color:var(--dim);font-size:12px}
.axis i{position:absolute;top:0;bottom:0;min-width:2px;border-radius:2px}.axis b{position:absolute;top:-.4rem;bottom:-.4rem;border-left:1px dashed var(--mark)}
.axis span{position:absolute;white-space:nowrap}.took{text-align:right;color:var(--dim);white-space:nowrap;font-variant-numeric:tabular-nums}
.try{font-weight:bold;margin-top:.6rem;overflow-wrap:anywhere}.note{color:var(--dim);font-size:12px;overflow-wrap:anywhere;margin:0 0 .2rem}
.failed .note{color:var(--failed)}ul{padding:0;color:var(--dim);list-style:none;font-size:12px}li{display:inline-block;margin-right:1rem}li i{display:inline-block;width:.8rem;height:.8rem;border-radius:2px;vertical-align:-.1rem;margin-right:.3rem}
@media(max-width:40rem){.row{grid-template-columns:minmax(0,1fr) 5rem;row-gap:0;margin-bottom:.4rem}.axis{grid-column:1/3;grid-row:2}.took{grid-row:1;grid-column:2}.ticks{grid-row:1;grid-column:1/3}}
`

// HTML writes the chart as a page that needs nothing else, for screens of every width.
func HTML(w io.Writer, c Chart) error {
	var b strings.Builder
	fmt.Fprintf(&b, "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">"+
		"<meta name=\"color-scheme\" content=\"light dark\"><title>%s</title><style>%s%s</style></head><body>\n", html.EscapeString(c.Title), style, page)
	fmt.Fprintf(&b, "<h1>%s <span style=\"color:var(--dim)\">%s</span></h1><p>%s</p>\n", html.EscapeString(c.Title), html.EscapeString(string(c.State)), html.EscapeString(c.Text))
	b.WriteString(`<div class="row"><div></div><div class="axis ticks">`)
	for _, t := range c.ticks(4, 0.2) {
		fmt.Fprintf(&b, `<span style="left:%.2f%%">%s</span>`, 100*c.at(t.At), t.Label)
	}
	b.WriteString("</div><div></div></div>\n")
	for _, r := range c.Rows {
		htmlRow(&b, c, r)
	}
	b.WriteString("<ul>")
	for _, entry := range [][2]string{{"machine", "before the agent, not to scale"}, {"done", "done"}, {"wait", "waiting"}, {"warned", "warned"}, {"failed", "failed"}, {"running", "running"},
		{"skipped", "not used or canceled"}, {"mark", "a moment; the line is ready"}} {
		fmt.Fprintf(&b, `<li><i style="background:var(--%s)"></i>%s</li>`, entry[0], entry[1])
	}
	b.WriteString("</ul>\n</body></html>\n")
	_, err := io.WriteString(w, b.String())
	return err
}

func htmlRow(b *strings.Builder, c Chart, r Row) {
	if r.Kind == KindTry {
		fmt.Fprintf(b, "<div class=\"try\">%s</div>\n", html.EscapeString(headline(r)))
		return
	}
	fmt.Fprintf(b, `<div class="%s %s"><div class="row" title="%s"><div class="label">%s</div><div class="axis">`, r.Kind, color(r), html.EscapeString(title(r)), html.EscapeString(r.Label))
	bar := func(from, to int64, color, title string) {
		// A bar at the end of the axis still has its least width inside of it.
		fmt.Fprintf(b, `<i style="left:min(%.2f%%,calc(100%% - 2px));width:%.2f%%;background:var(--%s)" title="%s"></i>`,
			100*c.at(from), 100*(c.at(to)-c.at(from)), color, html.EscapeString(title))
	}
	bar(r.Start, r.End, color(r), title(r))
	for _, wait := range r.Waits {
		bar(wait.Start, wait.End, "wait", "waited "+rounded(time.Duration(wait.End-wait.Start))+" for "+wait.For)
	}
	if c.Ready > 0 {
		fmt.Fprintf(b, `<b style="left:%.2f%%"></b>`, 100*c.at(c.Ready))
	}
	fmt.Fprintf(b, `</div><div class="took">%s</div></div>`, lengthOf(r))
	if r.Note != "" {
		fmt.Fprintf(b, `<div class="note">%s</div>`, html.EscapeString(r.Note))
	}
	b.WriteString("</div>\n")
}
