// Package cluster is a client of a Kubernetes API server, with typed requests and caches of lists.
// It owns no state of pods.
package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	nodev1 "k8s.io/api/node/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	apiversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/huskd/husk/internal/network/policy/accept"
	"github.com/huskd/husk/internal/version"
)

const (
	// requestRate, per second, and requestBurst are enough for all of a node's pods to start at once.
	// An overloaded server answers with "too many requests", and the request is retried.
	requestRate  = 100
	requestBurst = 200
	// answerTime is how long the server may take to answer a request other than a watch.
	answerTime = 20 * time.Second
)

// Client is a client of one API server.
type Client struct {
	rest *rest.RESTClient
	http *http.Client
	log  *slog.Logger
	// Server is the server's URL.
	Server string
	// CA holds the CA certificates of the kubeconfig, in PEM. It may be empty.
	CA []byte

	watches sync.WaitGroup
	outage  *outage

	mu     sync.Mutex
	logged map[string]string // the last logged error, by subject
}

// kinds returns a scheme of the types that huskd uses. One of all of Kubernetes' types would cost
// megabytes of memory.
func kinds() *runtime.Scheme {
	scheme := runtime.NewScheme()
	for _, of := range []struct {
		version schema.GroupVersion
		types   []runtime.Object
	}{
		{corev1.SchemeGroupVersion, []runtime.Object{
			&corev1.Pod{}, &corev1.PodList{}, &corev1.Node{}, &corev1.NodeList{}, &corev1.ConfigMap{}, &corev1.ConfigMapList{},
			&corev1.Secret{}, &corev1.SecretList{}, &corev1.Service{}, &corev1.ServiceList{}, &corev1.Namespace{}, &corev1.NamespaceList{}, &corev1.Event{}, &metav1.Status{},
		}},
		{networkingv1.SchemeGroupVersion, []runtime.Object{&networkingv1.NetworkPolicy{}, &networkingv1.NetworkPolicyList{}}},
		{accept.ClusterVersion, []runtime.Object{&accept.ClusterNetworkPolicy{}, &accept.ClusterNetworkPolicyList{}}},
		{discoveryv1.SchemeGroupVersion, []runtime.Object{&discoveryv1.EndpointSlice{}, &discoveryv1.EndpointSliceList{}}},
		{certificatesv1.SchemeGroupVersion, []runtime.Object{&certificatesv1.CertificateSigningRequest{}}},
		{coordinationv1.SchemeGroupVersion, []runtime.Object{&coordinationv1.Lease{}}},
		{authenticationv1.SchemeGroupVersion, []runtime.Object{&authenticationv1.TokenRequest{}, &authenticationv1.TokenReview{}}},
		{authorizationv1.SchemeGroupVersion, []runtime.Object{&authorizationv1.SubjectAccessReview{}}},
		{nodev1.SchemeGroupVersion, []runtime.Object{&nodev1.RuntimeClass{}, &nodev1.RuntimeClassList{}}},
	} {
		scheme.AddKnownTypes(of.version, of.types...)
		metav1.AddToGroupVersion(scheme, of.version)
	}
	utilruntime.Must(metav1.AddMetaToScheme(scheme))
	return scheme
}

// New returns a client of the server that the kubeconfig file names. It sends no request yet.
func New(kubeconfig string, log *slog.Logger) (*Client, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", kubeconfig, err)
	}
	cfg.UserAgent = "huskd/" + version.Version
	cfg.QPS, cfg.Burst = requestRate, requestBurst
	cfg.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON // custom resources have only JSON
	cfg.APIPath, cfg.GroupVersion = "/api", &corev1.SchemeGroupVersion
	cfg.NegotiatedSerializer = serializer.NewCodecFactory(kinds()).WithoutConversion()
	c := &Client{log: log, Server: cfg.Host, CA: cfg.CAData, logged: map[string]string{}}
	if cfg.CAFile != "" && len(c.CA) == 0 {
		if c.CA, err = os.ReadFile(cfg.CAFile); err != nil {
			return nil, fmt.Errorf("kubeconfig %s: %w", kubeconfig, err)
		}
	}
	if c.http, err = rest.HTTPClientFor(cfg); err == nil {
		c.rest, err = rest.RESTClientForConfigAndClient(cfg, c.http)
	}
	if err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", kubeconfig, err)
	}
	c.outage = newOutage(c.probe)
	return c, nil
}

// Close waits until all watches have ended, which the caller has canceled, and closes the
// connections.
func (c *Client) Close() {
	c.watches.Wait()
	c.http.CloseIdleConnections()
}

// Version returns the server's version, such as v1.36.3.
func (c *Client) Version(ctx context.Context) (string, error) {
	answer, err := c.rest.Get().AbsPath("/version").Timeout(answerTime).DoRaw(ctx)
	if err != nil {
		return "", err
	}
	var info apiversion.Info
	if err := json.Unmarshal(answer, &info); err != nil {
		return "", fmt.Errorf("version of the server: %w", err)
	}
	return info.GitVersion, nil
}

// Serves reports whether the server has a kind of object, by the name in its path.
func (c *Client) Serves(ctx context.Context, version schema.GroupVersion, plural string) (bool, error) {
	result := c.rest.Get().AbsPath("/apis", version.Group, version.Version).SetHeader("Accept", runtime.ContentTypeJSON).Timeout(answerTime).Do(ctx)
	err := result.Error() // with the server's words, unlike that of Raw
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	var list metav1.APIResourceList
	if err == nil {
		answer, _ := result.Raw()
		err = json.Unmarshal(answer, &list)
	}
	if err != nil {
		return false, fmt.Errorf("kinds of %s: %w", version, err)
	}
	return slices.ContainsFunc(list.APIResources, func(r metav1.APIResource) bool { return r.Name == plural }), nil
}

// Get reads the object at path.
func (c *Client) Get(ctx context.Context, path string, into runtime.Object) error {
	return c.rest.Get().AbsPath(path).Timeout(answerTime).Do(ctx).Into(into)
}

// Create creates an object, and updates it from the server's answer.
func (c *Client) Create(ctx context.Context, path string, object runtime.Object) error {
	return c.rest.Post().AbsPath(path).Timeout(answerTime).Body(object).Do(ctx).Into(object)
}

// Update replaces an object, and updates it from the server's answer.
func (c *Client) Update(ctx context.Context, path string, object runtime.Object) error {
	return c.rest.Put().AbsPath(path).Timeout(answerTime).Body(object).Do(ctx).Into(object)
}

// Patch applies a strategic merge patch to the object at path, and decodes the result.
func (c *Client) Patch(ctx context.Context, path string, patch []byte, into runtime.Object) error {
	return c.rest.Patch(types.StrategicMergePatchType).AbsPath(path).Timeout(answerTime).Body(patch).Do(ctx).Into(into)
}

// Delete deletes the object at path without a grace period. It succeeds if the object is gone, or
// was replaced by one with another UID.
func (c *Client) Delete(ctx context.Context, path string, uid types.UID) error {
	err := c.rest.Delete().AbsPath(path).Timeout(answerTime).Body(&metav1.DeleteOptions{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "DeleteOptions"}, GracePeriodSeconds: new(int64), Preconditions: &metav1.Preconditions{UID: &uid},
	}).Do(ctx).Error()
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}

// LogOnce logs an error about a subject, unless the last error about it was the same: a server that
// is down for an hour costs one line. A nil error ends the series.
func (c *Client) LogOnce(subject string, err error) {
	text := ""
	if err != nil && !errors.Is(err, context.Canceled) {
		text = OneLine(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch last := c.logged[subject]; {
	case text == last:
	case text == "":
		delete(c.logged, subject)
		c.log.Info("API server: answers again", "about", subject)
	default:
		c.logged[subject] = text
		c.log.Error("API server: "+text, "about", subject, "server", c.Server)
	}
}

// Forget drops the last error about a subject without logging a recovery.
func (c *Client) Forget(subject string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.logged, subject)
}

// maxText bounds the text of an error in bytes: a server may answer with a whole page.
const maxText = 400

// OneLine returns the text of an error as one line of bounded length.
func OneLine(err error) string {
	text := strings.Join(strings.Fields(err.Error()), " ")
	if len(text) > maxText {
		text = strings.ToValidUTF8(text[:maxText], "") + "…"
	}
	return text
}

// Pods returns the path of the pods of a namespace.
func Pods(namespace string) string { return "/api/v1/namespaces/" + namespace + "/pods" }

// Pod returns the path of a pod.
func Pod(namespace, name string) string { return Pods(namespace) + "/" + name }

// MirrorAnnotation marks a pod on the server as the mirror of one that was declared elsewhere.
const MirrorAnnotation = "kubernetes.io/config.mirror"

// IsMirror reports whether a pod mirrors one that was declared elsewhere.
func IsMirror(pod interface{ GetAnnotations() map[string]string }) bool {
	_, is := pod.GetAnnotations()[MirrorAnnotation]
	return is
}
