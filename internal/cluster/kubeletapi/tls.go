package kubeletapi

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"net"
	"time"
)

// tlsConfig returns the TLS configuration. It requests a client certificate, which auth verifies: a
// client without a valid one can still send a token.
func (s *Server) tlsConfig() (*tls.Config, error) {
	config := &tls.Config{MinVersion: max(s.Accept.MinVersion, tls.VersionTLS12), CipherSuites: s.Accept.CipherSuites, ClientAuth: tls.RequestClientCert, ClientCAs: s.auth.roots}
	if s.CertFile == "" {
		cert, err := selfSigned(s.Node, s.Hosts)
		if err != nil {
			return nil, err
		}
		config.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			if s.Signed != nil {
				if signed := s.Signed(); signed != nil {
					return signed, nil
				}
			}
			return &cert, nil
		}
		return config, nil
	}
	load := func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		cert, err := tls.LoadX509KeyPair(s.CertFile, s.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("--node-tls-cert-file: %w", err)
		}
		return &cert, nil
	}
	if _, err := load(nil); err != nil {
		return nil, err
	}
	config.GetCertificate = load // at each handshake: the file may be renewed while huskd runs
	return config, nil
}

// lifetime of the self-signed certificate, which huskd makes at each start.
const lifetime = 10 * 365 * 24 * time.Hour

func selfSigned(node string, hosts []string) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return tls.Certificate{}, err
	}
	cert := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: node},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(lifetime),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true, DNSNames: []string{node},
	}
	for _, h := range hosts {
		if ip := net.ParseIP(h); ip != nil {
			cert.IPAddresses = append(cert.IPAddresses, ip)
		} else {
			cert.DNSNames = append(cert.DNSNames, h)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, cert, cert, key.Public(), key)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}
