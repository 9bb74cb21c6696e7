package timeline

import (
	"bytes"
	"encoding/xml"
	"flag"
	"image"
	"image/color"
	"image/png"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"cambium/internal/skiptest"
	"cambium/internal/status"
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

func TestPictureInAViewer(t *testing.T) {
	paper := color.RGBA{255, 255, 255, 255}
	red, green := color.RGBA{0xcf, 0x22, 0x2e, 255}, color.RGBA{0x2d, 0xa4, 0x4e, 255}
	const bar = 8 * (rowHeight - 8) // pixels, at least
	for name, c := range map[string]struct {
		document   status.Document
		red, green bool
		texts      []string
	}{
		"ready": {document: booted(), green: true,
			texts: []string{"agent a-1: ready", "ready after 120ms", "warned 39ms"}},
		"failed": {document: stuck(), red: true,
			texts: []string{"agent a-1: starting", "ephemeral-disk: no disk", "failed 30s"}},
		"sixty": {document: longDocument(), green: true},
	} {
		t.Run(name, func(t *testing.T) {
			var picture bytes.Buffer
			chart := From(c.document, 100_000*ms)
			if err := SVG(&picture, chart); err != nil {
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
