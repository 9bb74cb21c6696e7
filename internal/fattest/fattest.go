// Package fattest creates FAT images with go-diskfs, so that tests need no tools.
package fattest

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/diskfs/go-diskfs"
	"github.com/diskfs/go-diskfs/disk"
	"github.com/diskfs/go-diskfs/filesystem"
)

// Make creates an image without partitions.
func Make(t testing.TB, path string, size int64, kind filesystem.Type, label string, files map[string]string) {
	t.Helper()
	d, err := diskfs.Create(path, size, diskfs.SectorSizeDefault)
	if err != nil {
		t.Fatal(err)
	}
	f, err := d.CreateFilesystem(disk.FilesystemSpec{Partition: 0, FSType: kind, VolumeLabel: label})
	if err != nil {
		t.Fatal(err)
	}
	Write(t, f, files)
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
}

// Write writes files, and the directories that contain them, to a file system.
func Write(t testing.TB, f filesystem.FileSystem, files map[string]string) {
	t.Helper()
	for name, content := range files {
		if dir := filepath.Dir(name); dir != "." {
			if err := f.Mkdir(dir); err != nil {
				t.Fatal(err)
			}
		}
		w, err := f.OpenFile(name, os.O_CREATE|os.O_RDWR)
		if err != nil {
			t.Fatal(err)
		}
		if content != "" {
			if _, err := w.Write([]byte(content)); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
