package store

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"cambium/internal/secret"
	"cambium/internal/vcap"
	"cambium/settings"
)

// document64K returns a settings document of 64 KiB, with the usual content of large ones: networks, keys, certificates
// and tags.
func document64K(ntp string) []byte {
	var b strings.Builder
	fmt.Fprintf(&b, `{"agent_id":"a-1","vm":{"name":"vm"},"mbus":"nats://10.0.0.6:4222","ntp":[%q],"networks":{`, ntp)
	for i := range 64 {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `"network-%d":{"type":"manual","ip":"10.0.%d.9","netmask":"255.255.255.0","gateway":"10.0.%d.1","dns":["10.0.0.2","10.0.0.3"],"default":[],"mac":"02:00:00:00:00:%02x","cloud_properties":{"net_id":"d29fdb0d-44d8-4e04-818d-5b03888f8eaa"}}`, i, i, i, i)
	}
	b.WriteString(`},"disks":{"ephemeral":"/dev/sdb","persistent":{`)
	for i := range 32 {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `"vol-%d":{"path":"/dev/sd%d","lun":%d}`, i, i, i)
	}
	b.WriteString(`}},"env":{"bosh":{"mbus":{"urls":["nats://10.0.0.6:4222"],"cert":{"ca":"`)
	pem := strings.Repeat(`MIIDXTCCAkWgAwIBAgIJAJC1HiIAZAiIMA0GCSqGSIb3DQEBCwUAMEUxCzAJBgNV\n`, 40)
	b.WriteString(pem + `","certificate":"` + pem + `","private_key":"` + pem + `"}},"authorized_keys":[`)
	for i := range 40 {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI%s user%d@example"`, strings.Repeat("x", 43), i)
	}
	b.WriteString(`],"tags":{`)
	for i := 0; b.Len() < 64<<10-40; i++ {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `"tag-%d":"value of the tag %d"`, i, i)
	}
	b.WriteString(`}}}}`)
	return []byte(b.String())
}

// BenchmarkLoad fetches, decodes, validates, merges, encodes and persists a changed document.
func BenchmarkLoad(b *testing.B) {
	documents := []secret.JSON{secret.NewJSON(document64K("10.0.0.3")), secret.NewJSON(document64K("10.0.0.4"))}
	n := 0
	c, err := Open(vcap.New(b.TempDir()), Options{Fetch: func(context.Context) (Fetched, error) {
		n++
		return Fetched{Raw: documents[n%2], From: "benchmark"}, nil
	}})
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(documents[0].Reveal())))
	b.ReportAllocs()
	for b.Loop() {
		if l, err := c.Load(b.Context()); err != nil || l.NotCached != nil {
			b.Fatal(err, l.NotCached)
		}
	}
}

// BenchmarkDecodeMergeEncode measures the part that needs no disk.
func BenchmarkDecodeMergeEncode(b *testing.B) {
	raw := secret.NewJSON(document64K("10.0.0.3"))
	b.SetBytes(int64(len(raw.Reveal())))
	b.ReportAllocs()
	for b.Loop() {
		s, rep := settings.Decode("benchmark", raw)
		if rep.Failed() {
			b.Fatal(rep)
		}
		settings.Merge(s, settings.Update{})
		s.Encode()
	}
}
