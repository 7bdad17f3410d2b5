package apiserver

import (
	"context"
	"fmt"
	"maps"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/huskd/husk/internal/cluster"
	"github.com/huskd/husk/internal/manifest"
	"github.com/huskd/husk/internal/manifest/criconfig"
)

// objectWatch watches a config map or secret that a pod references. Nodes may only watch those,
// each by its name.
type objectWatch struct {
	cancel func()
	synced func() bool
	get    func() (object manifest.Object, version string)
	uid    func() string // of a secret; nil for a config map
	list   string
}

// resolve watches all objects that a pod references. It returns a waitError if one of them isn't
// known yet.
func (s *Source) resolve(ctx context.Context, b *bound, needed map[string]bool) error {
	var missing error
	manifest.References(b.pod, func(kind, name string) {
		if b.isSynthetic(kind, name) {
			return
		}
		key := manifest.ObjectKey(kind, b.pod.Namespace, name)
		needed[key] = true
		w := s.watching[key]
		if w == nil {
			w = s.watch(ctx, kind, b.pod.Namespace, name)
			s.watching[key] = w
		}
		if !w.synced() {
			missing = waitError{"FailedMount", fmt.Errorf("the pod waits for %s", key)}
		}
	})
	for _, t := range b.tokens {
		key := manifest.ObjectKey(manifest.KindSecret, t.namespace, t.name)
		needed[key] = true
		if !s.tokens.ensure(ctx, key, t, &s.group) && missing == nil {
			missing = waitError{"FailedMount", fmt.Errorf("the pod waits for a token of service account %s/%s", t.namespace, t.account)}
		}
	}
	needed[manifest.ObjectKey(manifest.KindConfigMap, b.pod.Namespace, criconfig.ServicesName(b.pod))] = true
	return missing
}

// watch starts watching a config map or secret.
func (s *Source) watch(ctx context.Context, kind, namespace, name string) *objectWatch {
	ctx, cancel := context.WithCancel(ctx)
	list := cluster.List{Fields: "metadata.name=" + name}
	if kind == manifest.KindSecret {
		list.Path, list.Item, list.List = "/api/v1/namespaces/"+namespace+"/secrets", &corev1.Secret{}, &corev1.SecretList{}
		m := cluster.Watch[*corev1.Secret](ctx, s.Client, list, s.Nudge)
		return &objectWatch{cancel, m.Synced, func() (manifest.Object, string) {
			secret, ok := m.Get(namespace, name)
			if !ok {
				return nil, ""
			}
			return manifest.Object(secret.Data), secret.ResourceVersion
		}, func() string {
			secret, _ := m.Get(namespace, name)
			return string(secret.GetUID())
		}, list.String()}
	}
	list.Path, list.Item, list.List = "/api/v1/namespaces/"+namespace+"/configmaps", &corev1.ConfigMap{}, &corev1.ConfigMapList{}
	m := cluster.Watch[*corev1.ConfigMap](ctx, s.Client, list, s.Nudge)
	return &objectWatch{cancel, m.Synced, func() (manifest.Object, string) {
		config, ok := m.Get(namespace, name)
		if !ok {
			return nil, ""
		}
		object := manifest.Object{}
		maps.Copy(object, config.BinaryData)
		for key, value := range config.Data {
			object[key] = []byte(value)
		}
		return object, config.ResourceVersion
	}, nil, list.String()}
}

// collectObjects adds the needed objects to objects and their versions to versions. It stops
// watching the others.
func (s *Source) collectObjects(needed map[string]bool, objects manifest.Objects, versions map[string]string) {
	for key, w := range s.watching {
		if !needed[key] {
			w.cancel()
			s.Client.Forget(w.list)
			delete(s.watching, key)
			continue
		}
		if object, version := w.get(); version != "" {
			objects[key], versions[key] = object, version
			if name, is := strings.CutPrefix(key, manifest.KindSecret+" "); is && w.uid != nil {
				objects[manifest.KindSecretUID+" "+name] = manifest.Object{manifest.UIDKey: []byte(w.uid())}
			}
		}
	}
	s.tokens.collect(needed, objects, versions)
	for _, b := range s.bound {
		if b.pod == nil {
			continue
		}
		key := manifest.ObjectKey(manifest.KindConfigMap, b.pod.Namespace, criconfig.ServicesName(b.pod))
		if !needed[key] {
			continue
		}
		links := b.raw.Spec.EnableServiceLinks == nil || *b.raw.Spec.EnableServiceLinks
		objects[key] = criconfig.ServiceVariables(s.services.All(), b.pod.Namespace, links)
		versions[key] = fingerprint(objects[key])
	}
}
