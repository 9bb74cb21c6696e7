package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"cambium/internal/tcp"
	"cambium/lab/blobstore"
	"cambium/lab/metadata"
	"cambium/lab/registry"
)

// blobPort is the usual port of a blobstore.
const blobPort = 25250

// alicloudMetadata is the address of the metadata service on Alibaba Cloud.
const alicloudMetadata = "100.100.100.200"

// serve starts the services that machines use: blobstore, metadata, registry.
func (l *Lab) serve() error {
	if !l.o.Bare {
		listener, err := l.Net.Listen("tcp", net.JoinHostPort(Gateway, strconv.Itoa(blobPort)))
		if err != nil {
			return err
		}
		if l.Blobs, err = blobstore.Start(listener,
			blobstore.Options{Dir: filepath.Join(l.dir, "blobs"), CA: l.CA, Secret: l.o.BlobSecret}); err != nil {
			return err
		}
	}
	if err := l.nameServer(); err != nil {
		return err
	}
	l.Metadata, l.Registry = metadata.New(), registry.New()
	l.Metadata.Neighbor = l.Net.Neighbor
	for _, address := range []string{metadata.Address, alicloudMetadata} {
		if err := l.Net.AddAddress("lo", address+"/32"); err != nil {
			return err
		}
		if err := l.http(net.JoinHostPort(address, "80"), l.Metadata); err != nil {
			return err
		}
	}
	return l.http(net.JoinHostPort(Gateway, strconv.Itoa(registry.Port)), l.Registry)
}

// dnsHeader is the length of the header of a DNS message.
const dnsHeader = 12

// nameServer serves DNS at the address in settings and leases. Its answer is always that the name does not exist.
func (l *Lab) nameServer() error {
	conn, err := l.Net.ListenPacket(net.JoinHostPort(Gateway, "53"))
	if err != nil {
		return err
	}
	l.names = conn
	go func() {
		buffer := make([]byte, 4<<10)
		for {
			n, from, err := conn.ReadFrom(buffer)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil && n > dnsHeader {
				buffer[2], buffer[3] = buffer[2]|0x80, 0x83 // a response: no such name
				_, _ = conn.WriteTo(buffer[:n], from)
			}
		}
	}()
	return nil
}

func (l *Lab) http(address string, handler http.Handler) error {
	listener, err := l.Net.Listen("tcp", address)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second, ErrorLog: log.New(io.Discard, "", 0)}
	l.servers = append(l.servers, server)
	go func() { _ = server.Serve(listener) }()
	return nil
}

// dhcp adds a machine and its address to the DHCP server of the lab's network. The server is started for the first
// machine.
func (l *Lab) dhcp(mac net.HardwareAddr, ip string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := os.MkdirAll(l.dhcpHosts(), 0o755); err != nil {
		return err
	}
	// The server watches the directory.
	if err := os.WriteFile(filepath.Join(l.dhcpHosts(), ip), []byte(mac.String()+","+ip+"\n"), 0o644); err != nil {
		return err
	}
	if l.dnsmasq != nil {
		return nil
	}
	return l.startDHCP()
}

// forgetHost removes a machine from the DHCP server. It restarts the server, because a running one keeps the lease and
// refuses the address to others.
func (l *Lab) forgetHost(ip string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := os.Remove(filepath.Join(l.dhcpHosts(), ip)); errors.Is(err, os.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	l.stopDHCP()
	return l.startDHCP()
}

// dhcpHosts returns the directory with a file for each machine of the DHCP server.
func (l *Lab) dhcpHosts() string { return filepath.Join(l.dir, "dhcp") }

func (l *Lab) startDHCP() error {
	logFile, err := os.OpenFile(filepath.Join(l.dir, "dnsmasq.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer func() { _ = logFile.Close() }()
	l.dnsmasq = exec.Command("nsenter", "--net="+l.Net.Path(), "dnsmasq", "--keep-in-foreground", "--conf-file=/dev/null",
		"--port=0", "--user=root", "--group=root", "--pid-file=", "--interface="+bridge, "--bind-interfaces",
		"--dhcp-authoritative",
		"--dhcp-range="+Gateway+",static,"+Netmask, "--dhcp-option=option:router,"+Gateway,
		"--dhcp-option=option:dns-server,"+Gateway,
		"--dhcp-hostsdir="+l.dhcpHosts(), "--leasefile-ro", "--log-dhcp", "--log-facility=-")
	l.dnsmasq.Stdout, l.dnsmasq.Stderr = logFile, logFile
	l.dnsmasq.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := l.dnsmasq.Start(); err != nil {
		l.dnsmasq = nil
		return fmt.Errorf("dhcp server: %w", err)
	}
	return nil
}

func (l *Lab) stopDHCP() {
	if l.dnsmasq != nil {
		_ = l.dnsmasq.Process.Kill()
		_ = l.dnsmasq.Wait()
		l.dnsmasq = nil
	}
}

// stopServices stops what serve and dhcp have started.
func (l *Lab) stopServices() {
	for _, server := range l.servers {
		_ = server.Close()
	}
	if l.names != nil {
		_ = l.names.Close()
	}
	if l.Blobs != nil {
		l.Blobs.Close()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stopDHCP()
}

// Publish forwards a port on the host's loopback to target until ctx ends. If port is 0, the kernel chooses one. It
// returns the address.
func (l *Lab) Publish(ctx context.Context, port int, target string) (string, error) {
	listener, err := tcp.Listen(ctx, net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return "", fmt.Errorf("publish %s: %w", target, err)
	}
	context.AfterFunc(ctx, func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				go l.forward(ctx, conn, target)
			}
		}
	}()
	return listener.Addr().String(), nil
}

func (l *Lab) forward(ctx context.Context, from net.Conn, target string) {
	defer func() { _ = from.Close() }()
	to, err := l.Net.DialContext(ctx, "tcp", target)
	if err != nil {
		return
	}
	defer func() { _ = to.Close() }()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = io.Copy(to, from)
		if half, ok := to.(*net.TCPConn); ok {
			_ = half.CloseWrite()
		}
	}()
	_, _ = io.Copy(from, to)
	_ = from.Close()
	<-ended
}
