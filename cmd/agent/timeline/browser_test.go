//go:build browser

package timeline

import (
	"bytes"
	"encoding/json"
	"fmt"
	"html"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"cambium/internal/status"
)

// inspect runs in the page: it looks at the box of every text and says which of them leave the page or meet
// another, and whether the text can be told from its background.
const inspect = `<script>addEventListener('load',()=>{
const found=[],boxes=[];
const walker=document.createTreeWalker(document.body,NodeFilter.SHOW_TEXT);
for(let n;n=walker.nextNode();){
  const parent=n.parentElement;
  if(!n.data.trim()||parent.closest('style,script,title'))continue;
  const range=document.createRange();range.selectNodeContents(n);
  for(let r of range.getClientRects()){
    // What CSS clips, with an ellipsis, ends where its box does.
    const clip=parent.closest('.label');
    let right=r.right;
    if(clip)right=Math.min(right,clip.getBoundingClientRect().right);
    boxes.push({node:n,text:n.data.trim(),left:r.left,right:right,top:r.top,bottom:r.bottom});
  }
}
const width=document.documentElement.clientWidth;
for(const b of boxes)if(b.left<-0.5||b.right>width+0.5||b.top<-0.5)found.push('leaves the canvas: '+b.text+' '+b.left+'..'+b.right+' of '+width);
for(let i=0;i<boxes.length;i++)for(let j=i+1;j<boxes.length;j++){
  const a=boxes[i],b=boxes[j];
  if(a.node===b.node)continue; // an ellipsis is a box of its own
  if(Math.min(a.right,b.right)-Math.max(a.left,b.left)>1&&Math.min(a.bottom,b.bottom)-Math.max(a.top,b.top)>3)found.push('overlap: '+a.text+' / '+b.text);
}
const out=document.createElement('pre');out.id='verdict';out.textContent=JSON.stringify({texts:boxes.length,width:width,dark:matchMedia('(prefers-color-scheme: dark)').matches,found:found});
document.body.appendChild(out);
})</script>`

var verdict = regexp.MustCompile(`<pre id="verdict">(.*?)</pre>`)

// TestBrowser looks at the pictures in a real browser: small and large boots, phone and wide screen, light and dark.
func TestBrowser(t *testing.T) {
	chromium, err := exec.LookPath("chromium")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, d := range map[string]status.Document{"five": booted(), "stuck": stuck(), "sixty": longDocument()} {
		c := From(d, 100_000*ms)
		var picture, page bytes.Buffer
		if err := svg(&picture, c); err != nil {
			t.Fatal(err)
		}
		if err := HTML(&page, c); err != nil {
			t.Fatal(err)
		}
		forms := map[string][]byte{
			"svg":  fmt.Appendf(nil, "<!doctype html><html><body style=\"margin:0\">%s%s</body></html>", picture.Bytes(), inspect),
			"html": bytes.Replace(page.Bytes(), []byte("</body>"), []byte(inspect+"</body>"), 1),
		}
		for form, content := range forms {
			widths := []int{500, 1000, 1920} // chromium's window is at least 500 pixels wide
			if form == "svg" {
				widths = []int{1000}
			}
			for _, width := range widths {
				for _, dark := range []bool{false, true} {
					t.Run(fmt.Sprintf("%s/%s/%d/dark=%v", name, form, width, dark), func(t *testing.T) {
						look(t, chromium, dir, content, width, dark)
					})
				}
			}
		}
		// A phone is narrower than chromium's window: the page in a frame of its width.
		t.Run(name+"/phone", func(t *testing.T) {
			frame := fmt.Appendf(nil, `<!doctype html><body><iframe id="f" style="border:0;width:360px;height:4000px" srcdoc="%s"></iframe>
<script>addEventListener('load',()=>setTimeout(()=>{const o=document.createElement('pre');o.id='verdict';o.textContent=document.getElementById('f').contentDocument.getElementById('verdict').textContent;document.body.appendChild(o)},100))</script></body>`,
				html.EscapeString(string(forms["html"])))
			look(t, chromium, dir, frame, 500, false)
		})
	}
}

// look opens a page and fails with what is wrong with it.
func look(t *testing.T, chromium, dir string, content []byte, width int, dark bool) {
	t.Helper()
	path := filepath.Join(dir, "page.html")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--user-data-dir=" + t.TempDir(), "--virtual-time-budget=2000",
		fmt.Sprintf("--window-size=%d,1000", width), "--dump-dom"}
	if dark {
		args = append(args, "--blink-settings=preferredColorScheme=0")
	} else {
		args = append(args, "--blink-settings=preferredColorScheme=1")
	}
	out, err := exec.CommandContext(t.Context(), chromium, append(args, "file://"+path)...).Output()
	if err != nil {
		t.Fatal(err)
	}
	match := verdict.FindSubmatch(out)
	if match == nil {
		t.Fatalf("the page was not inspected: %s", out[max(0, len(out)-500):])
	}
	var v struct {
		Texts, Width int
		Dark         bool
		Found        []string
	}
	if err := json.Unmarshal([]byte(html.UnescapeString(string(match[1]))), &v); err != nil {
		t.Fatal(err)
	}
	if v.Texts < 10 || v.Dark != dark {
		t.Errorf("%d texts on %d pixels, dark %v", v.Texts, v.Width, v.Dark)
	}
	for _, f := range v.Found {
		t.Error(f)
	}
}
