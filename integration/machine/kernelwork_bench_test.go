//go:build machine && bench

package machine

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"cambium/internal/atomicfile"
	"cambium/internal/status"
	"cambium/lab"
	"cambium/lab/machine"
	"cambium/platform/disk"
	"cambium/platform/disk/layout"
	"cambium/platform/filesystem"
	"cambium/platform/filesystem/probe"

	"github.com/nats-io/nats.go"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// kernelWork holds the time, in nanoseconds, of each piece of work that a first boot cannot do without, done alone and
// one after the other. Unmount belongs to unmount_disk and is not part of the sum.
type kernelWork struct{ Table, Mkfs, Mount, Netlink, Fsyncs, Handshake, Unmount int64 }

func (w kernelWork) sum() int64 {
	return w.Table + w.Mkfs + w.Mount + w.Netlink + w.Fsyncs + w.Handshake
}

func (w kernelWork) String() string {
	return fmt.Sprintf("table %s, mkfs %s, mount %s, netlink %s, fsyncs %s, handshake %s; umount %s", short(int(w.Table)),
		short(int(w.Mkfs)), short(int(w.Mount)),
		short(int(w.Netlink)), short(int(w.Fsyncs)), short(int(w.Handshake)), short(int(w.Unmount)))
}

func medianWork(all []kernelWork) kernelWork {
	slices.SortFunc(all, func(a, b kernelWork) int { return int(a.sum() - b.sum()) })
	return all[len(all)/2]
}

// durableFiles is the number of files that a first boot writes so that they survive a power cut.
const durableFiles = 12

// kernelWorkDisk tells the copy of this test that runs in a machine which blank disk is its own.
const kernelWorkDisk = "CAMBIUM_KERNEL_WORK"

func init() {
	device := os.Getenv(kernelWorkDisk)
	if device == "" {
		return
	}
	w, err := doKernelWork(device)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	_ = json.NewEncoder(os.Stdout).Encode(w)
	os.Exit(0)
}

// measureKernelWork runs this very program in the machine, on a blank disk like the ephemeral one.
func measureKernelWork(b testing.TB, i *lab.Instance) (w kernelWork) {
	b.Helper()
	program, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		b.Fatal(err)
	}
	const path = "/root/kernel-work"
	if err := i.WriteFile(machine.File{Path: path, Data: program, Mode: 0o755}); err != nil {
		b.Fatal(err)
	}
	blank, err := i.AttachNew(b.Context(), "alone", 10*lab.GiB)
	if err != nil {
		b.Fatal(err)
	}
	var out, words bytes.Buffer
	err = i.Run(b.Context(), machine.Command{Args: []string{path}, Env: []string{kernelWorkDisk + "=" + blank.Path},
		Stdout: &out, Stderr: &words})
	if err == nil {
		err = json.Unmarshal(out.Bytes(), &w)
	}
	if err != nil {
		b.Fatalf("kernel work: %v: %s", err, words.String())
	}
	return w
}

func doKernelWork(device string) (w kernelWork, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	partition := device + "1"
	for _, part := range []struct {
		took *int64
		do   func() error
	}{
		{&w.Table, func() error {
			f, err := os.Open(device)
			if err != nil {
				return err
			}
			size, err := f.Seek(0, 2)
			if err := errors.Join(err, f.Close()); err != nil {
				return err
			}
			err = disk.Create(ctx, device, layout.GPT, "", []layout.Partition{{Number: 1, Start: layout.MiB,
				Size: size - 2*layout.MiB, Name: "alone", Type: layout.LinuxGPT}})
			if err == nil {
				err = disk.Announce(ctx, device)
			}
			for err == nil { // the lab makes the node
				if _, missing := os.Stat(partition); missing == nil {
					break
				}
			}
			return err
		}},
		{&w.Mkfs, func() error { return filesystem.Make(ctx, partition, probe.Ext4) }},
		{&w.Mount, func() error {
			if err := os.MkdirAll("/mnt/alone", 0o755); err != nil {
				return err
			}
			return unix.Mount(partition, "/mnt/alone", "ext4", 0, "")
		}},
		{&w.Netlink, setAddress},
		{&w.Fsyncs, func() error {
			for n := range durableFiles {
				if err := atomicfile.Write(filepath.Join("/var/vcap/bosh", fmt.Sprintf("alone-%d", n)), make([]byte, 2048),
					0o600); err != nil {
					return err
				}
			}
			return nil
		}},
		{&w.Handshake, handshake},
		{&w.Unmount, func() error { return unix.Unmount("/mnt/alone", 0) }},
	} {
		begun := time.Now()
		if err := part.do(); err != nil {
			return w, err
		}
		*part.took = int64(time.Since(begun))
	}
	return w, nil
}

// setAddress gives the link what a static network takes: up, an address, a route.
func setAddress() error {
	link, err := netlink.LinkByName("eth0")
	if err != nil {
		return err
	}
	address, err := netlink.ParseAddr("10.99.0.2/24")
	if err != nil {
		return err
	}
	route := &netlink.Route{LinkIndex: link.Attrs().Index, Gw: net.IPv4(10, 99, 0, 1),
		Dst: &net.IPNet{IP: net.IPv4(10, 98, 0, 0), Mask: net.CIDRMask(16, 32)}}
	return errors.Join(netlink.LinkSetUp(link), netlink.AddrReplace(link, address), netlink.RouteReplace(route))
}

// handshake connects to the bus as the agent does.
func handshake() error {
	var s struct {
		Env struct {
			Bosh struct {
				Mbus struct {
					URLs []string `json:"urls"`
					Cert struct {
						CA          string `json:"ca"`
						Certificate string `json:"certificate"`
						PrivateKey  string `json:"private_key"`
					} `json:"cert"`
				} `json:"mbus"`
			} `json:"bosh"`
		} `json:"env"`
	}
	data, err := os.ReadFile("/var/vcap/bosh/agent-bootstrap-env.json")
	if err == nil {
		err = json.Unmarshal(data, &s)
	}
	if err != nil {
		return err
	}
	mbus := s.Env.Bosh.Mbus
	pair, err := tls.X509KeyPair([]byte(mbus.Cert.Certificate), []byte(mbus.Cert.PrivateKey))
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(mbus.Cert.CA))
	// The certificate has a common name and no other, which only such a check accepts.
	verify := func(s tls.ConnectionState) error {
		_, err := s.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: roots})
		return err
	}
	conn, err := nats.Connect(mbus.URLs[0], nats.Secure(&tls.Config{Certificates: []tls.Certificate{pair},
		InsecureSkipVerify: true, VerifyConnection: verify}))
	if err != nil {
		return err
	}
	conn.Close()
	return nil
}

// stepsOf reads the steps of a status alone: the rest of the document differs between versions of this agent.
func stepsOf(b testing.TB, raw []byte) []status.Step {
	b.Helper()
	var d struct{ Steps []status.Step }
	if err := json.Unmarshal(raw, &d); err != nil {
		b.Fatal(err)
	}
	return d.Steps
}
