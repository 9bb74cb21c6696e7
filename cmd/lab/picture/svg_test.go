package picture

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"flag"
	"image"
	"image/color"
	"image/png"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"cambium/cmd/agent/timeline"
	"cambium/internal/golden"
	"cambium/internal/skiptest"
)

// inChromium is set by make test-chromium: most people look at pictures in a browser, but a browser is too large for
// every run.
var inChromium = flag.Bool("chromium", false, "draw with chromium in place of rsvg-convert")

// paint has the picture drawn by a program that is not a browser: it does not support CSS variables.
func paint(t *testing.T, picture []byte, size image.Point) image.Image {
	t.Helper()
	from, to := filepath.Join(t.TempDir(), "picture.svg"), filepath.Join(t.TempDir(), "picture.png")
	if err := os.WriteFile(from, picture, 0o600); err != nil {
		t.Fatal(err)
	}
	argv := []string{"rsvg-convert", "--format=png", "--output=" + to, from}
	if *inChromium {
		argv = []string{"chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
			"--force-device-scale-factor=1", "--window-size=1600,2400", "--screenshot=" + to, "file://" + from}
	}
	if _, err := exec.LookPath(argv[0]); err != nil {
		skiptest.Skip(t, "there is no "+argv[0]+": make setup, or make test-chromium, installs it")
	}
	if out, err := exec.CommandContext(t.Context(), argv[0], argv[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	data, err := os.ReadFile(to)
	if err != nil {
		t.Fatal(err)
	}
	drawn, err := png.Decode(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	if window, ok := drawn.(interface {
		SubImage(image.Rectangle) image.Image
	}); ok && *inChromium {
		return window.SubImage(image.Rectangle{Max: size})
	}
	return drawn
}

// count returns the number of pixels that have a color.
func count(drawn image.Image, want color.RGBA) (n int) {
	for y := range drawn.Bounds().Dy() {
		for x := range drawn.Bounds().Dx() {
			if color.RGBAModel.Convert(drawn.At(x, y)) == want {
				n++
			}
		}
	}
	return n
}

// read returns a chart as `agent timeline --json` prints it.
func read(t testing.TB, name string) (c timeline.Chart) {
	t.Helper()
	data, err := os.ReadFile("../../agent/timeline/testdata/timeline-" + name + ".json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &c); err != nil {
		t.Fatal(err)
	}
	return c
}

func TestPictureInAViewer(t *testing.T) {
	paper := color.RGBA{255, 255, 255, 255}
	red, green := color.RGBA{0xcf, 0x22, 0x2e, 255}, color.RGBA{0x2d, 0xa4, 0x4e, 255}
	const bar = 8 * (rowHeight - 8) // pixels, at least
	for name, c := range map[string]struct {
		red, green bool
		texts      []string
	}{
		"ready": {green: true,
			texts: []string{"agent a-1: ready", "ready after 120ms", "warned 39ms"}},
		"stuck": {red: true,
			texts: []string{"agent a-1: starting", "ephemeral-disk: no disk", "failed 30s"}},
		"sixty": {green: true},
	} {
		t.Run(name, func(t *testing.T) {
			var picture bytes.Buffer
			chart := read(t, name)
			if err := Draw(&picture, chart); err != nil {
				t.Fatal(err)
			}
			var size struct {
				Width  int `xml:"width,attr"`
				Height int `xml:"height,attr"`
			}
			if err := xml.Unmarshal(picture.Bytes(), &size); err != nil {
				t.Fatal(err)
			}
			drawn := paint(t, picture.Bytes(), image.Pt(size.Width, size.Height))
			got := drawn.Bounds().Size()
			if got != image.Pt(size.Width, size.Height) || got.X != pictureWidth || got.Y < len(chart.Rows)*rowHeight {
				t.Errorf("the picture has %v pixels, and says %+v", got, size)
			}
			all := drawn.Bounds().Dx() * drawn.Bounds().Dy()
			if n := count(drawn, paper); n < all/2 || n > all*99/100 {
				t.Errorf("%d of %d pixels are paper", n, all)
			}
			for shade, want := range map[color.RGBA]bool{red: c.red, green: c.green} {
				// The legend has a square of each.
				if n := count(drawn, shade); (n > rowHeight*rowHeight+bar) != want {
					t.Errorf("%d pixels are %v", n, shade)
				}
			}
			for _, want := range append(c.texts, "done", "waiting", "failed") {
				if !strings.Contains(picture.String(), ">"+want+"<") {
					t.Errorf("the picture does not say %q", want)
				}
			}
			for x := pictureWidth - margin/2; x < pictureWidth; x++ {
				for y := range size.Height {
					if color.RGBAModel.Convert(drawn.At(x, y)) != paper {
						t.Fatalf("something leaves the picture at %d, %d", x, y)
					}
				}
			}
		})
	}
}

func TestPictureIsSelfContainedAndEscaped(t *testing.T) {
	c := read(t, "ready")
	c.Title = `agent <script>"&`
	var out bytes.Buffer
	if err := Draw(&out, c); err != nil {
		t.Fatal(err)
	}
	for _, forbidden := range []string{"<script", "src=", "href=", "@import", "url(", "var(", "@media", "<style",
		"class="} {
		if strings.Contains(out.String(), forbidden) {
			t.Errorf("the picture contains %s", forbidden)
		}
	}
}

// TestPicturesInTheDocumentation compares them with what would be drawn; -update draws them.
func TestPicturesInTheDocumentation(t *testing.T) {
	for name, chart := range map[string]string{"timeline": "ready", "timeline-failed": "stuck"} {
		var drawn bytes.Buffer
		if err := Draw(&drawn, read(t, chart)); err != nil {
			t.Fatal(err)
		}
		golden.Check(t, "../../../../docs/"+name+".svg", drawn.String())
	}
}

// FuzzDraw draws any chart, also of another version or damaged: a picture is XML.
func FuzzDraw(f *testing.F) {
	for _, name := range []string{"ready", "stuck"} {
		data, err := json.Marshal(read(f, name))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte(`{"begin_ns":-9223372036854775808,"end_ns":9223372036854775807,"rows":[{}]}`)) // once drew ticks without end
	f.Fuzz(func(t *testing.T, data []byte) {
		var c timeline.Chart
		if json.Unmarshal(data, &c) != nil {
			return
		}
		var picture strings.Builder
		if err := Draw(&picture, c); err != nil {
			t.Fatal(err)
		}
		for decoder := xml.NewDecoder(strings.NewReader(picture.String())); ; {
			if _, err := decoder.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%v in %s", err, picture.String())
			}
		}
	})
}
