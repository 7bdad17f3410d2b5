// Package certificate gets the node's certificates from the cluster by certificate signing
// requests, and renews them. client-go has the same in util/certificate, but its clients for all of
// Kubernetes' types make huskd 28 MB larger, and take 15 MB of memory.
package certificate

import (
	"context"
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
	mathrand "math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/huskd/husk/internal/atomicfile"
	"github.com/huskd/husk/internal/cluster"
)

const requests = "/apis/certificates.k8s.io/v1/certificatesigningrequests"

// The times of a request. Somebody may have to approve it by hand.
const (
	pollTime    = 2 * time.Second
	approveTime = 15 * time.Minute
	firstRetry  = time.Second
	lastRetry   = time.Minute
)

// Config configures a Certificate.
type Config struct {
	// Node is the node's name.
	Node string
	// File holds the chain and the key, in PEM.
	File string
	// Addresses returns the names and addresses of a certificate that the node serves with. It is
	// nil for one by which the node is a client.
	Addresses func() []string
	// Bootstrap returns a client that may request a certificate for a node that has none which is
	// valid. If it is nil, only the node's own client requests certificates.
	Bootstrap func() (*cluster.Client, error)
}

// Certificate is a certificate of the node, which a signer of the cluster renews.
type Certificate struct {
	Config
	current atomic.Pointer[tls.Certificate]
	now     func() time.Time // tests replace it
}

// Open returns the certificate in the file. It need not exist yet.
func Open(cfg Config) (*Certificate, error) {
	c := &Certificate{Config: cfg, now: time.Now}
	pair, err := tls.LoadX509KeyPair(cfg.File, cfg.File)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return c, nil
	case err != nil:
		return nil, fmt.Errorf("certificate %s: %w: remove it, and huskd requests another", cfg.File, err)
	}
	c.current.Store(&pair)
	return c, nil
}

// Current returns the certificate, or nil if there is none that is still valid.
func (c *Certificate) Current() *tls.Certificate {
	pair := c.current.Load()
	if pair == nil || c.now().After(pair.Leaf.NotAfter) {
		return nil
	}
	return pair
}

// Run requests the certificate when there is none, and renews it before it expires and when the
// node's addresses have changed, until ctx ends.
func (c *Certificate) Run(ctx context.Context, client *cluster.Client) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(c.rest()):
		}
		if c.rest() == 0 {
			c.Renew(ctx, client)
		}
	}
}

// Renew requests a certificate until there is a new one, or ctx ends.
func (c *Certificate) Renew(ctx context.Context, client *cluster.Client) {
	for retry := firstRetry; ; retry = min(2*retry, lastRetry) {
		err := c.replace(ctx, client)
		client.LogOnce("the certificate "+c.File, err)
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(retry):
		}
	}
}

// checkTime is the time between checks of the node's addresses.
const checkTime = time.Minute

// rest returns how long the certificate can be left as it is. Zero means that it has to be renewed.
func (c *Certificate) rest() time.Duration {
	pair := c.Current()
	if pair == nil || c.Addresses != nil && !covers(pair.Leaf, c.Addresses()) {
		return 0
	}
	return min(max(renewAt(pair.Leaf).Sub(c.now()), 0), checkTime)
}

// renewAt returns when a certificate is renewed: when 70 to 90 % of its life are over, like a
// kubelet's, and not for all nodes at once.
func renewAt(leaf *x509.Certificate) time.Time {
	life := leaf.NotAfter.Sub(leaf.NotBefore)
	// The share follows from the serial number, so that it stays the same.
	share := 0.7 + 0.2*float64(leaf.SerialNumber.Uint64()%1000)/1000
	return leaf.NotBefore.Add(time.Duration(float64(life) * share))
}

func covers(leaf *x509.Certificate, addresses []string) bool {
	return !slices.ContainsFunc(addresses, func(a string) bool { return leaf.VerifyHostname(a) != nil })
}

// replace requests a new certificate, waits until it is approved and signed, and stores it.
func (c *Certificate) replace(ctx context.Context, client *cluster.Client) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	request, err := c.request(key)
	if err != nil {
		return err
	}
	if c.Bootstrap != nil && c.Current() == nil {
		// The node's own client has the expired certificate: the server may have been away for long.
		if client, err = c.Bootstrap(); err != nil {
			return err
		}
		defer client.Close()
	}
	if err := client.Create(ctx, requests, request); err != nil {
		return fmt.Errorf("request a certificate of %s: %w", request.Spec.SignerName, err)
	}
	chain, err := await(ctx, client, request.Name)
	if err != nil {
		return fmt.Errorf("certificate signing request %s of %s: %w", request.Name, request.Spec.SignerName, err)
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	encoded := slices.Concat(chain, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}))
	pair, err := tls.X509KeyPair(encoded, encoded)
	if err != nil {
		return fmt.Errorf("certificate signing request %s: the signer's answer: %w", request.Name, err)
	}
	if err := writeFile(c.File, encoded); err != nil {
		return err
	}
	c.current.Store(&pair)
	return nil
}

// request returns a request for a key, as the signers kube-apiserver-client-kubelet and
// kubelet-serving demand it.
func (c *Certificate) request(key *ecdsa.PrivateKey) (*certificatesv1.CertificateSigningRequest, error) {
	template := &x509.CertificateRequest{Subject: pkix.Name{CommonName: "system:node:" + c.Node, Organization: []string{"system:nodes"}}}
	signer, usage := certificatesv1.KubeAPIServerClientKubeletSignerName, certificatesv1.UsageClientAuth
	if c.Addresses != nil {
		signer, usage = certificatesv1.KubeletServingSignerName, certificatesv1.UsageServerAuth
		for _, a := range c.Addresses() {
			if ip := net.ParseIP(a); ip != nil {
				template.IPAddresses = append(template.IPAddresses, ip)
			} else {
				template.DNSNames = append(template.DNSNames, a)
			}
		}
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, template, key)
	if err != nil {
		return nil, err
	}
	return &certificatesv1.CertificateSigningRequest{
		TypeMeta:   metav1.TypeMeta{APIVersion: certificatesv1.SchemeGroupVersion.String(), Kind: "CertificateSigningRequest"},
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("csr-%s-%08x", c.Node, mathrand.Uint32())},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request:    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
			SignerName: signer, Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, usage},
		},
	}, nil
}

// await waits until a request is signed, and returns the certificates in PEM.
func await(ctx context.Context, client *cluster.Client, name string) ([]byte, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, approveTime, fmt.Errorf("not approved and signed within %v: kubectl certificate approve %s", approveTime, name))
	defer cancel()
	for {
		var r certificatesv1.CertificateSigningRequest
		if err := client.Get(ctx, requests+"/"+name, &r); err != nil && ctx.Err() == nil {
			return nil, err
		}
		for _, c := range r.Status.Conditions {
			if (c.Type == certificatesv1.CertificateDenied || c.Type == certificatesv1.CertificateFailed) && c.Status != corev1.ConditionFalse {
				return nil, fmt.Errorf("%s: %s: %s", c.Type, c.Reason, c.Message)
			}
		}
		if len(r.Status.Certificate) > 0 {
			return r.Status.Certificate, nil
		}
		select {
		case <-time.After(pollTime):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// writeFile replaces a file that only root can read.
func writeFile(path string, content []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return atomicfile.Write(path, content, 0o600)
}
