// Package cluster speaks with a Kubernetes API server: typed requests, and
// mirrors of lists that follow what the server has. It owns no state of pods.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/huskd/husk/internal/version"
)

// The rates, a second, are enough for all of a node's pods to start at once. A
// server that has no time for them says so, and is asked again later.
const (
	requestRate  = 100
	requestBurst = 200
	// answerTime is how long the server may take to answer what is no watch.
	answerTime = 20 * time.Second
)

// Client asks one API server.
type Client struct {
	rest *rest.RESTClient
	http *http.Client
	log  *slog.Logger
	// Server is its URL, and CA the certificates, in PEM, of the authorities
	// that the kubeconfig trusts; there may be none.
	Server string
	CA     []byte

	following sync.WaitGroup

	mu   sync.Mutex
	said map[string]string // the last complaint about each thing
}

// kinds are those that are read or written here: a scheme of all that
// Kubernetes has would cost megabytes.
func kinds() *runtime.Scheme {
	scheme := runtime.NewScheme()
	for _, of := range []struct {
		version schema.GroupVersion
		types   []runtime.Object
	}{
		{corev1.SchemeGroupVersion, []runtime.Object{
			&corev1.Pod{}, &corev1.PodList{}, &corev1.Node{}, &corev1.NodeList{}, &corev1.ConfigMap{}, &corev1.ConfigMapList{},
			&corev1.Secret{}, &corev1.SecretList{}, &corev1.Service{}, &corev1.ServiceList{}, &corev1.Event{}, &metav1.Status{},
		}},
		{coordinationv1.SchemeGroupVersion, []runtime.Object{&coordinationv1.Lease{}}},
		{authenticationv1.SchemeGroupVersion, []runtime.Object{&authenticationv1.TokenRequest{}, &authenticationv1.TokenReview{}}},
		{authorizationv1.SchemeGroupVersion, []runtime.Object{&authorizationv1.SubjectAccessReview{}}},
		{nodev1.SchemeGroupVersion, []runtime.Object{&nodev1.RuntimeClass{}, &nodev1.RuntimeClassList{}}},
	} {
		scheme.AddKnownTypes(of.version, of.types...)
		metav1.AddToGroupVersion(scheme, of.version)
	}
	return scheme
}

// New returns a client of the server that a kubeconfig names. It asks nothing
// yet.
func New(kubeconfig string, log *slog.Logger) (*Client, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig %s: %w", kubeconfig, err)
	}
	cfg.UserAgent = "huskd/" + version.Version
	cfg.QPS, cfg.Burst = requestRate, requestBurst
	cfg.APIPath, cfg.GroupVersion = "/api", &corev1.SchemeGroupVersion
	cfg.NegotiatedSerializer = serializer.NewCodecFactory(kinds()).WithoutConversion()
	c := &Client{log: log, Server: cfg.Host, CA: cfg.CAData, said: map[string]string{}}
	if cfg.CAFile != "" && len(c.CA) == 0 {
		if c.CA, err = os.ReadFile(cfg.CAFile); err != nil {
			return nil, fmt.Errorf("--kubeconfig %s: %w", kubeconfig, err)
		}
	}
	if c.http, err = rest.HTTPClientFor(cfg); err == nil {
		c.rest, err = rest.RESTClientForConfigAndClient(cfg, c.http)
	}
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig %s: %w", kubeconfig, err)
	}
	return c, nil
}

// Close gives back the connections, once the contexts of all mirrors have ended.
func (c *Client) Close() {
	c.following.Wait()
	c.http.CloseIdleConnections()
}

// Get reads the object at a path.
func (c *Client) Get(ctx context.Context, path string, into runtime.Object) error {
	return c.rest.Get().AbsPath(path).Timeout(answerTime).Do(ctx).Into(into)
}

// Create creates an object, which becomes what the server has made of it.
func (c *Client) Create(ctx context.Context, path string, object runtime.Object) error {
	return c.rest.Post().AbsPath(path).Timeout(answerTime).Body(object).Do(ctx).Into(object)
}

// Update replaces an object, which becomes what the server has made of it.
func (c *Client) Update(ctx context.Context, path string, object runtime.Object) error {
	return c.rest.Put().AbsPath(path).Timeout(answerTime).Body(object).Do(ctx).Into(object)
}

// Patch changes the object at a path. Into becomes what the server has made of it.
func (c *Client) Patch(ctx context.Context, path string, patch []byte, into runtime.Object) error {
	return c.rest.Patch(types.StrategicMergePatchType).AbsPath(path).Timeout(answerTime).Body(patch).Do(ctx).Into(into)
}

// Delete deletes the object at a path at once, if it has that UID. One that is
// gone, or is another now, is as good as deleted.
func (c *Client) Delete(ctx context.Context, path string, uid types.UID) error {
	err := c.rest.Delete().AbsPath(path).Timeout(answerTime).Body(&metav1.DeleteOptions{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "DeleteOptions"}, GracePeriodSeconds: new(int64), Preconditions: &metav1.Preconditions{UID: &uid},
	}).Do(ctx).Error()
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}

// LogOnce logs what is wrong with a thing, once until it is something else or
// nothing: a server that is away for an hour is one line.
func (c *Client) LogOnce(what string, err error) {
	text := ""
	if err != nil && !errors.Is(err, context.Canceled) {
		text = OneLine(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch said := c.said[what]; {
	case text == said:
	case text == "":
		delete(c.said, what)
		c.log.Info("API server: answers again", "about", what)
	default:
		c.said[what] = text
		c.log.Error("API server: "+text, "about", what, "server", c.Server)
	}
}

// Forget has nothing said of a thing that is no longer of interest.
func (c *Client) Forget(what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.said, what)
}

// maxText is how much is shown of what a server says, which may be a page.
const maxText = 400

// OneLine is an error as one line of bounded length.
func OneLine(err error) string {
	text := strings.Join(strings.Fields(err.Error()), " ")
	if len(text) > maxText {
		text = strings.ToValidUTF8(text[:maxText], "") + "…"
	}
	return text
}

// Pods is the path of the pods of a namespace, and Pod that of one.
func Pods(namespace string) string { return "/api/v1/namespaces/" + namespace + "/pods" }

// Pod is the path of a pod.
func Pod(namespace, name string) string { return Pods(namespace) + "/" + name }

// The annotation that makes a pod on the server the mirror of one that was
// declared elsewhere.
const MirrorAnnotation = "kubernetes.io/config.mirror"

// IsMirror says whether a pod only mirrors one that was declared elsewhere.
func IsMirror(pod interface{ GetAnnotations() map[string]string }) bool {
	_, is := pod.GetAnnotations()[MirrorAnnotation]
	return is
}
