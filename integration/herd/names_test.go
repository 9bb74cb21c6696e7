package herd

import (
	"encoding/json"
	"io"
	"os"
	"path/filepath"

	"github.com/sirupsen/logrus"

	"cambium/agent/action"
	"cambium/agent/dummy"
	"cambium/blobstore"
	"cambium/internal/secret"
	"cambium/internal/vcap"
)

// names configures how the agents of a flock fetch DNS records: from a WebDAV server, into a directory of each agent.
type names struct {
	Endpoint string `json:"endpoint"`
	CA       string `json:"ca"`
	Dir      string `json:"dir"`
}

func (n *names) of(id string) (*action.DNS, error) {
	dirs := vcap.New(filepath.Join(n.Dir, id))
	if err := dummy.MakeDirs(dirs); err != nil {
		return nil, err
	}
	var options struct {
		Endpoint string `json:"endpoint"`
		TLS      struct {
			Cert struct {
				CA string `json:"ca"`
			} `json:"cert"`
		} `json:"tls"`
	}
	options.Endpoint, options.TLS.Cert.CA = n.Endpoint, n.CA
	raw, err := json.Marshal(options)
	if err != nil {
		return nil, err
	}
	quiet := logrus.New()
	quiet.SetOutput(io.Discard)
	store, err := blobstore.New(blobstore.Options{Provider: "dav", Options: secret.NewJSON(raw), Dirs: dirs,
		Log: logrus.NewEntry(quiet)})
	if err != nil {
		return nil, err
	}
	return &action.DNS{Blobs: store, Hosts: dummy.Hosts{Dirs: dirs}, Records: dirs.DNSRecords(), GID: os.Getgid()}, nil
}
