package kubeletapi

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/containerd/errdefs"

	"github.com/huskd/husk/internal/agent"
	"github.com/huskd/husk/internal/agent/podplan"
	"github.com/huskd/husk/internal/agent/view"
	"github.com/huskd/husk/internal/manifest/criconfig"
)

func podList(items []corev1.Pod) corev1.PodList {
	return corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}, Items: append([]corev1.Pod{}, items...)}
}

// listPods responds with the pods of the node as the API server has them, with their present
// status.
func (s *Server) listPods(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, podList(s.Reported()))
}

// listRunning responds with what runs: the pods with a sandbox or running containers, with no more
// than the names that these have.
func (s *Server) listRunning(w http.ResponseWriter, _ *http.Request) {
	var items []corev1.Pod
	for _, p := range s.Pods() {
		m := p.Manifest
		out := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: p.ReportedName(s.Node), Namespace: m.Namespace, UID: m.UID}}
		for _, c := range p.Containers {
			if view.ContainerState(c) == podplan.ContainerRunning {
				out.Spec.Containers = append(out.Spec.Containers, corev1.Container{Name: c.Name(), Image: c.Config.GetImage().GetUserSpecifiedImage()})
			}
		}
		if st, ok := p.Sandbox(); ok && view.SandboxState(st) == podplan.SandboxReady || len(out.Spec.Containers) > 0 {
			items = append(items, out)
		}
	}
	writeJSON(w, podList(items))
}

// checkpoint writes a checkpoint of a container, which keeps running, and responds with its path.
// The codes of errors are the kubelet's.
func (s *Server) checkpoint(w http.ResponseWriter, r *http.Request) {
	p, err := s.find(r)
	name := r.PathValue("container")
	if err == nil && criconfig.FindContainer(p.Manifest, name) == nil {
		err = errdefs.ErrNotFound.WithMessage(fmt.Sprintf("container %q is not in pod %s", name, p.Name()))
	}
	var timeout int64
	if list := r.URL.Query()["timeout"]; err == nil && len(list) > 0 {
		if timeout, err = strconv.ParseInt(list[len(list)-1], 10, 32); err != nil {
			err = errdefs.ErrNotFound.WithMessage("timeout is not a number of seconds")
		}
	}
	if err != nil {
		refuse(w, err)
		return
	}
	file := fmt.Sprintf("checkpoint-%s_%s-%s-%s.tar", p.ReportedName(s.Node), p.Manifest.Namespace, name, time.Now().Format(time.RFC3339))
	path := filepath.Join(s.Checkpoints, file)
	if err := s.writeCheckpoint(r, p, path, time.Duration(timeout)*time.Second); err != nil {
		http.Error(w, fmt.Sprintf("checkpointing of %s/%s failed (%v)", p.Name(), name, err), http.StatusInternalServerError)
		return
	}
	writeJSON(w, map[string][]string{"items": {path}})
}

func (s *Server) writeCheckpoint(r *http.Request, p agent.Pod, path string, timeout time.Duration) error {
	runs := p.Runs(r.PathValue("container"))
	if len(runs) == 0 {
		return errors.New("it has not been started")
	}
	if err := os.MkdirAll(s.Checkpoints, 0o700); err != nil {
		return err
	}
	return s.Checkpoint(r.Context(), runs[0].ID, path, timeout)
}

// find returns the pod in the request's path, which may have the name of its mirror pod.
func (s *Server) find(r *http.Request) (agent.Pod, error) {
	namespace, name, uid := r.PathValue("namespace"), r.PathValue("pod"), r.PathValue("uid")
	declared, isMirror := strings.CutSuffix(name, "-"+s.Node)
	for _, p := range s.Pods() {
		m := p.Manifest
		if m.Namespace == namespace && (m.Name == name || isMirror && m.Name == declared) && (uid == "" || string(m.UID) == uid) {
			return p, nil
		}
	}
	return agent.Pod{}, errdefs.ErrNotFound.WithMessage(fmt.Sprintf("pod %s/%s is not on node %s", namespace, name, s.Node))
}
