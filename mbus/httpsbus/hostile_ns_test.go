//go:build ns

package httpsbus

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"cambium/internal/nstest"
	"cambium/internal/secret"
)

const (
	hostileEnv         = "CAMBIUM_TEST_HOSTILE"
	hostileAddresses   = 500
	hostileConnections = 10000
	sharedConnections  = 100 // more of the first address, which the right client has, too
)

func hostileAddress(i int) string { return fmt.Sprintf("10.9.%d.%d", 1+i/250, 1+i%250) }

// attack opens connections, leaves half of them in the middle of the TLS handshake and the rest idle after it, and holds
// them until its standard input ends.
func attack(target string) {
	// The cheapest key exchange there is: the attacker's own processor is not what is attacked.
	config := &tls.Config{InsecureSkipVerify: true, CurvePreferences: []tls.CurveID{tls.X25519}}
	var held []net.Conn
	var mu sync.Mutex
	var group sync.WaitGroup
	slots := make(chan struct{}, 64)
	for i := range hostileConnections + sharedConnections {
		from := hostileAddress(i % hostileAddresses)
		if i >= hostileConnections {
			from = hostileAddress(0)
		}
		slots <- struct{}{}
		group.Go(func() {
			defer func() { <-slots }()
			dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: 20 * time.Second}
			conn, err := dialer.Dial("tcp", target)
			if err != nil {
				return
			}
			if i%2 == 0 {
				_, _ = conn.Write([]byte{0x16, 0x03, 0x01, 0x02, 0x00, 0x01}) // the first bytes of a ClientHello
			} else {
				_ = tls.Client(conn, config).Handshake() // fails where the server has made room for others
			}
			mu.Lock()
			held = append(held, conn)
			mu.Unlock()
		})
	}
	group.Wait()
	fmt.Printf("standing %d\n", len(held))
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
}

// TestNSHostileConnections: the right client gets through beside ten thousand connections that show no password,
// from an address that an attacker uses, too, in at most ten times what it takes on an idle bus.
func TestNSHostileConnections(t *testing.T) {
	if target := os.Getenv(hostileEnv); target != "" {
		attack(target) // as a process of its own, in the peer's network namespace
		return
	}
	nstest.Run(t, func(t *testing.T) {
		peer := nstest.NewPeer(t)
		peer.Veth(t, "bus0", "")
		for i := range hostileAddresses {
			peer.Address(t, "bus0", hostileAddress(i)+"/16")
		}
		nstest.Up(t, "bus0", "10.9.0.1/16")
		// On a busy machine the attack takes longer than a handshake may; only the limits are to close connections.
		header := headerTime
		headerTime = time.Hour
		t.Cleanup(func() { headerTime = header })
		s := start(t, nil, func(o *Options) { o.URL = secret.NewURL("https://mbus:s3cret@10.9.0.1:0") })
		target := s.Address().String()
		idle := pings(t, peer, target)
		before, openBefore := inUse(), descriptors(t)

		attacker := exec.Command(os.Args[0], "-test.run=^TestNSHostileConnections$", "-test.v")
		attacker.Env = append(os.Environ(), hostileEnv+"="+target)
		input, err := attacker.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		output, err := attacker.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		peer.Do(t, attacker.Start)
		t.Cleanup(func() {
			_ = input.Close()
			_ = attacker.Wait()
		})
		lines := bufio.NewScanner(output)
		standing := 0
		for standing == 0 && lines.Scan() {
			_, _ = fmt.Sscanf(lines.Text(), "standing %d", &standing)
		}
		if standing < hostileConnections {
			t.Fatalf("%d hostile connections, want %d", standing, hostileConnections)
		}
		if open := descriptors(t) - openBefore; open > maxPending+64 {
			t.Errorf("%d connections are open, want at most %d", open, maxPending)
		}
		otherPings := pings(t, peer, target)
		used := inUse() - before
		t.Logf("%d hostile connections; a ping with a connection of its own takes %s, on an idle bus %s; %d MiB in use for them", standing, otherPings, idle, used>>20)
		if used > 256<<20 {
			t.Errorf("%d MiB in use for hostile connections, want at most 256", used>>20)
		}
		if otherPings > 10*idle {
			t.Errorf("a ping takes %s beside hostile connections, more than ten times the %s of an idle bus", otherPings, idle)
		}
	})
}

// descriptors is the number of this process's open files.
func descriptors(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

// inUse is the memory of heap and stacks.
func inUse() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse + m.StackInuse)
}

// pings is the median time of a ping over a new connection from the first hostile address.
func pings(t *testing.T, peer *nstest.Peer, target string) time.Duration {
	t.Helper()
	var all []time.Duration
	for range 21 {
		begun := time.Now()
		var conn net.Conn
		peer.Do(t, func() (err error) {
			conn, err = (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(hostileAddress(0))},
				Timeout: 20 * time.Second}).Dial("tcp", target)
			return err
		})
		client := tls.Client(conn, &tls.Config{InsecureSkipVerify: true})
		r, err := http.NewRequest("POST", "https://"+target+"/agent", strings.NewReader(`{"method":"ping"}`))
		if err != nil {
			t.Fatal(err)
		}
		r.SetBasicAuth("mbus", "s3cret")
		if err := r.Write(client); err != nil {
			t.Fatal(err)
		}
		response, err := http.ReadResponse(bufio.NewReader(client), r)
		if err != nil {
			t.Fatal(err)
		}
		if response.StatusCode != http.StatusOK {
			t.Fatalf("got %s", response.Status)
		}
		_ = response.Body.Close()
		_ = conn.Close()
		all = append(all, time.Since(begun))
	}
	slices.Sort(all)
	return all[len(all)/2]
}
