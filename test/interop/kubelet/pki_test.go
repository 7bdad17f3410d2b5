package kubelet

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"testing"
	"time"
)

// authority is a certificate authority whose files are in the machine's directory.
type authority struct {
	m    *machine
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	next int64 // serial number of the next certificate
}

// lifetime is how long certificates are valid: longer than any test runs.
const lifetime = 24 * time.Hour

// newAuthority makes an authority and writes name.crt and name.key.
func (m *machine) newAuthority(name string) *authority {
	m.t.Helper()
	a := &authority{m: m, next: 1, cert: &x509.Certificate{
		Subject: pkix.Name{CommonName: "authority " + name}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}}
	a.key = a.issue(name, a.cert)
	return a
}

// issue completes and signs a certificate, which is valid for lifetime unless it says until when,
// and writes name.crt and name.key.
func (a *authority) issue(name string, cert *x509.Certificate) *ecdsa.PrivateKey {
	a.m.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.m.t.Fatal(err)
	}
	signer := a.key
	if signer == nil {
		signer = key
	}
	cert.SerialNumber = big.NewInt(a.next)
	a.next++
	cert.NotBefore = time.Now().Add(-time.Hour)
	if cert.NotAfter.IsZero() {
		cert.NotAfter = time.Now().Add(lifetime)
	}
	der, err := x509.CreateCertificate(rand.Reader, cert, a.cert, key.Public(), signer)
	if err != nil {
		a.m.t.Fatal(err)
	}
	a.m.write(name+".crt", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	a.m.write(name+".key", encodeKey(a.m.t, key))
	return key
}

// client issues a certificate for a client of that name and group.
func (a *authority) client(file, name, group string) {
	a.m.t.Helper()
	a.clientUntil(time.Time{}, file, name, group)
}

// clientUntil issues a client's certificate that ends at a time.
func (a *authority) clientUntil(end time.Time, file, name, group string) {
	a.m.t.Helper()
	a.issue(file, &x509.Certificate{
		Subject: pkix.Name{CommonName: name, Organization: []string{group}}, NotAfter: end,
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
}

// server issues a certificate for a server with these names and addresses.
func (a *authority) server(file string, names []string, addresses ...string) {
	a.m.t.Helper()
	cert := &x509.Certificate{
		Subject: pkix.Name{CommonName: names[0]}, DNSNames: names,
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, address := range addresses {
		cert.IPAddresses = append(cert.IPAddresses, net.ParseIP(address))
	}
	a.issue(file, cert)
}

func newKey(t *testing.T) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return encodeKey(t, key)
}

func encodeKey(t *testing.T, key *ecdsa.PrivateKey) string {
	t.Helper()
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}))
}
