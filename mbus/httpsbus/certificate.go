package httpsbus

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"time"

	"cambium/internal/atomicfile"
)

// selfSignedValidity is the validity period of a self-signed certificate.
const selfSignedValidity = 10 * 365 * 24 * time.Hour

// certificate returns the certificate of the settings. If they have none, it creates and keeps a self-signed one. No
// other VM has its key, and a caller that pinned it still trusts it after a restart.
func certificate(o Options, host string) (tls.Certificate, error) {
	if o.Certificate != "" || !o.PrivateKey.Empty() {
		pair, err := tls.X509KeyPair([]byte(o.Certificate), []byte(o.PrivateKey.Reveal()))
		if err != nil {
			return tls.Certificate{}, fmt.Errorf("https bus: certificate: %w", err)
		}
		return pair, nil
	}
	data, err := os.ReadFile(o.KeyFile)
	if err == nil {
		pair, err := tls.X509KeyPair(data, data)
		if err == nil && pair.Leaf.VerifyHostname(nameOf(host)) == nil && time.Now().Before(pair.Leaf.NotAfter) {
			return pair, nil
		}
		o.Log.Warn("cannot use the stored https certificate; making a new one")
	} else if !errors.Is(err, fs.ErrNotExist) {
		return tls.Certificate{}, fmt.Errorf("https bus: stored certificate: %w", err)
	}
	data, err = makeCertificate(nameOf(host))
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("https bus: make certificate: %w", err)
	}
	if err := atomicfile.Write(o.KeyFile, data, 0o600); err != nil {
		return tls.Certificate{}, fmt.Errorf("https bus: store certificate: %w", err)
	}
	return tls.X509KeyPair(data, data)
}

// nameOf returns the name for the certificate; "" for a wildcard address.
func nameOf(host string) string {
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		return "localhost"
	}
	return host
}

func makeCertificate(host string) ([]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: "bosh-agent"},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(selfSignedValidity),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	if ip := net.ParseIP(host); ip != nil {
		template.IPAddresses = []net.IP{ip}
	} else {
		template.DNSNames = []string{host}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	return append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw})...), nil
}
