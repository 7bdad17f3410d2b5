package kubeletapi

import (
	"context"
	"crypto/tls"
	"net"
	"testing"
	"time"
)

// TestVersionsAndSuites: a client that offers only what the configuration excludes is refused.
func TestVersionsAndSuites(t *testing.T) {
	t.Parallel()
	const aes128, aes256 = tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384
	for _, c := range []struct {
		server Accept
		client *tls.Config
		refuse bool
	}{
		{Accept{}, &tls.Config{MaxVersion: tls.VersionTLS11, MinVersion: tls.VersionTLS10}, true},
		{Accept{}, &tls.Config{MaxVersion: tls.VersionTLS12, CipherSuites: []uint16{aes256}}, false},
		{Accept{MinVersion: tls.VersionTLS13}, &tls.Config{MaxVersion: tls.VersionTLS12}, true},
		{Accept{MinVersion: tls.VersionTLS13}, &tls.Config{}, false},
		{Accept{CipherSuites: []uint16{aes128}}, &tls.Config{MaxVersion: tls.VersionTLS12, CipherSuites: []uint16{aes256}}, true},
		{Accept{CipherSuites: []uint16{aes128}}, &tls.Config{MaxVersion: tls.VersionTLS12}, false},
	} {
		server, err := (&Server{Config: Config{Accept: c.server}, auth: &auth{}}).tlsConfig()
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		near, far := net.Pipe()
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = tls.Server(far, server).HandshakeContext(ctx)
		}()
		client := c.client.Clone()
		client.InsecureSkipVerify = true
		conn := tls.Client(near, client)
		err = conn.HandshakeContext(ctx)
		if (err != nil) != c.refuse {
			t.Errorf("%+v with %+v: %v, version %x, suite %s", c.server, client, err, conn.ConnectionState().Version, tls.CipherSuiteName(conn.ConnectionState().CipherSuite))
		}
		_ = near.Close()
		_ = far.Close()
		<-done
		cancel()
	}
}
