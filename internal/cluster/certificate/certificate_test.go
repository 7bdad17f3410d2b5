package certificate

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/huskd/husk/internal/cluster"
	"github.com/huskd/husk/internal/cluster/clustertest"
)

func TestMain(m *testing.M) {
	klog.SetSlogLogger(slog.New(slog.DiscardHandler))
	os.Exit(m.Run())
}

// signer is an API server that signs each request at once, apart from the first, which it denies.
type signer struct {
	*clustertest.Server
	t    *testing.T
	ca   *x509.Certificate
	key  *ecdsa.PrivateKey
	life time.Duration

	mu       sync.Mutex
	requests map[string]*certificatesv1.CertificateSigningRequest
}

func newSigner(t *testing.T, life time.Duration) *signer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	s := &signer{Server: clustertest.New(t), t: t, key: key, life: life, requests: map[string]*certificatesv1.CertificateSigningRequest{}}
	s.ca = &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, IsCA: true, BasicConstraintsValid: true, NotAfter: time.Now().Add(time.Hour)}
	s.Intercept(s.serve)
	return s
}

func (s *signer) serve(w http.ResponseWriter, r *http.Request) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	var request *certificatesv1.CertificateSigningRequest
	if r.Method == http.MethodPost {
		request = &certificatesv1.CertificateSigningRequest{}
		if err := json.NewDecoder(r.Body).Decode(request); err != nil {
			s.t.Error(err)
		}
		if len(s.requests) == 0 {
			request.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: certificatesv1.CertificateDenied, Status: corev1.ConditionTrue, Reason: "Test", Message: "the first"}}
		} else {
			request.Status.Certificate = s.sign(request)
		}
		s.requests[request.Name] = request
	} else {
		request = s.requests[filepath.Base(r.URL.Path)]
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(request)
	return true
}

func (s *signer) sign(r *certificatesv1.CertificateSigningRequest) []byte {
	block, _ := pem.Decode(r.Spec.Request)
	asked, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		s.t.Fatal(err)
	}
	if asked.Subject.CommonName != "system:node:here" || asked.Subject.Organization[0] != "system:nodes" {
		s.t.Errorf("subject %s", asked.Subject)
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(int64(len(s.requests))), Subject: asked.Subject, DNSNames: asked.DNSNames, IPAddresses: asked.IPAddresses,
		NotBefore: time.Now().Add(-time.Second), NotAfter: time.Now().Add(s.life),
	}, s.ca, asked.PublicKey, s.key)
	if err != nil {
		s.t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// TestBootstrap gets a client certificate after a denied request, and a kubeconfig with it.
func TestBootstrap(t *testing.T) {
	t.Parallel()
	s := newSigner(t, time.Hour)
	client, err := cluster.New(s.Kubeconfig, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	file, kubeconfig := filepath.Join(dir, "pki", "client.pem"), filepath.Join(dir, "etc", "kubeconfig")
	if ok, err := Usable(kubeconfig); ok || err != nil {
		t.Errorf("a missing kubeconfig: %t, %v", ok, err)
	}
	c, err := Open(Config{Node: "here", File: file})
	if err != nil || c.Current() != nil {
		t.Fatal(c.Current(), err)
	}
	c.Renew(t.Context(), client)
	if c.Current() == nil || len(s.requests) != 2 {
		t.Fatalf("%d requests", len(s.requests))
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	if err := WriteKubeconfig(kubeconfig, s.Kubeconfig, file); err != nil {
		t.Fatal(err)
	}
	if ok, err := Usable(kubeconfig); !ok || err != nil || !ManagedBy(kubeconfig, file) {
		t.Errorf("the new kubeconfig: usable %t, %v", ok, err)
	}
	if ok, err := Usable(s.Kubeconfig); !ok || err != nil || ManagedBy(s.Kubeconfig, file) {
		t.Errorf("a kubeconfig with a token: usable %t, %v", ok, err)
	}
	again, err := Open(Config{Node: "here", File: file})
	if err != nil || again.Current() == nil {
		t.Fatal("the certificate isn't kept: ", err)
	}
	again.now = func() time.Time { return time.Now().Add(2 * time.Hour) }
	if again.Current() != nil || again.rest() != 0 {
		t.Error("an expired certificate is used")
	}
	if err := os.WriteFile(file, []byte("rubbish"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(Config{File: file}); err == nil || !strings.Contains(err.Error(), "remove it") {
		t.Errorf("a damaged file: %v", err)
	}
}

// TestExpired: a certificate that has expired while the server was away is replaced with the
// bootstrap client, since the server refuses the node's own.
func TestExpired(t *testing.T) {
	t.Parallel()
	s, refuses := newSigner(t, time.Second), clustertest.New(t)
	s.requests["denied"] = nil
	refuses.Intercept(func(w http.ResponseWriter, _ *http.Request) bool {
		http.Error(w, "who are you?", http.StatusUnauthorized)
		return true
	})
	own, err := cluster.New(refuses.Kubeconfig, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	c, err := Open(Config{Node: "here", File: filepath.Join(t.TempDir(), "client.pem"), Bootstrap: func() (*cluster.Client, error) {
		return cluster.New(s.Kubeconfig, slog.New(slog.DiscardHandler))
	}})
	if err != nil {
		t.Fatal(err)
	}
	c.Renew(t.Context(), own)
	first := c.current.Load().Leaf
	s.life = time.Hour
	c.now = func() time.Time { return first.NotAfter.Add(time.Millisecond) }
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- c.Run(ctx, own) }()
	clustertest.Eventually(t, func() string {
		if c.Current() == nil {
			return "no certificate"
		}
		return ""
	})
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestServing: a serving certificate is renewed before it expires, and when an address is new.
func TestServing(t *testing.T) {
	t.Parallel()
	s := newSigner(t, 3*time.Second)
	client, err := cluster.New(s.Kubeconfig, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	addresses := []string{"192.0.2.1", "host"}
	c, err := Open(Config{Node: "here", File: filepath.Join(t.TempDir(), "server.pem"), Addresses: func() []string {
		mu.Lock()
		defer mu.Unlock()
		return addresses
	}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- c.Run(ctx, client) }()
	var first *tls.Certificate
	clustertest.Eventually(t, func() string {
		if first = c.Current(); first == nil {
			return "no certificate"
		}
		return ""
	})
	if first.Leaf.VerifyHostname("192.0.2.1") != nil || first.Leaf.VerifyHostname("host") != nil {
		t.Errorf("addresses %v %v", first.Leaf.IPAddresses, first.Leaf.DNSNames)
	}
	clustertest.Eventually(t, func() string {
		if next := c.Current(); next == nil || next.Leaf.SerialNumber.Cmp(first.Leaf.SerialNumber) == 0 {
			return "the certificate isn't renewed"
		}
		return ""
	})
	mu.Lock()
	addresses = append(addresses, "2001:db8::1")
	mu.Unlock()
	clustertest.Eventually(t, func() string {
		if next := c.Current(); next == nil || next.Leaf.VerifyHostname("2001:db8::1") != nil {
			return "the new address isn't in the certificate"
		}
		return ""
	})
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
