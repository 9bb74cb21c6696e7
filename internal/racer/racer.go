// Package racer is a hostile program for tests. It replaces directories with links as fast as it can, in directories
// that root is working on.
package racer

import (
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// variable is the environment variable with the directories of a racer.
const variable = "CAMBIUM_RACER"

// Environment returns a variable that turns a program which calls RunIfCalled into a racer. It works in dirs, to which
// its user must have write access. Its links lead to the directory outside.
func Environment(outside string, dirs ...string) string {
	return variable + "=" + strings.Join(append([]string{outside}, dirs...), ":")
}

// RunIfCalled is the main function of a racer, and does nothing in other processes. Until SIGTERM it replaces
// directories with links to outside, as fast as it can, through descriptors that it opened at its start. It prints
// "ready" when it begins, and at the end how often it has succeeded in each directory.
func RunIfCalled() {
	value, ok := os.LookupEnv(variable)
	if !ok {
		return
	}
	paths := strings.Split(value, ":")
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	var dirs []*racedDir
	for _, path := range paths[1:] {
		d, err := openRaced(path, paths[0])
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		dirs = append(dirs, d)
	}
	fmt.Println("ready")
	for {
		select {
		case <-stop:
			for _, d := range dirs {
				fmt.Println(d.exchanged)
			}
			os.Exit(0)
		default:
		}
		for _, d := range dirs {
			d.exchange()
		}
	}
}

type racedDir struct {
	fd        int
	names     []string
	outside   string
	exchanged int
}

func openRaced(path, outside string) (*racedDir, error) {
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, err
	}
	d := &racedDir{outside: outside}
	for _, e := range entries {
		if e.IsDir() {
			d.names = append(d.names, e.Name())
		}
	}
	d.fd, err = unix.Open(filepath.Clean(path), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	return d, err
}

// exchange exchanges each directory with a link. It also creates additional directories that contain links. Most calls
// fail while only root has access to the directory.
func (d *racedDir) exchange() {
	for _, name := range d.names {
		link := ".link to replace " + name
		_ = unix.Symlinkat(d.outside, d.fd, link)
		if unix.Renameat2(d.fd, name, d.fd, link, unix.RENAME_EXCHANGE) == nil {
			d.exchanged++
		}
		surplus := ".surplus beside " + name
		_ = unix.Mkdirat(d.fd, surplus, 0o777)
		_ = unix.Symlinkat(d.outside, d.fd, surplus+"/link")
		_ = unix.Symlinkat(d.outside, d.fd, surplus+" link")
		_ = unix.Renameat2(d.fd, surplus, d.fd, surplus+" link", unix.RENAME_EXCHANGE)
	}
}
