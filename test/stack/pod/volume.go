package pod

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/muster-fleet/muster/test/stack/files"
	"github.com/muster-fleet/muster/test/stack/poll"
)

const dataLink = "..data"

// Volume updates a directory as the kubelet does: files are links through one link that is swapped at once, so that
// a reader never sees a certificate with the key of another.
type Volume struct {
	namespace string
	plan      volumePlan
	last      map[string][]byte
}

// Mount fills the directories of all volumes before the process starts.
func (p *Plan) Mount(ctx context.Context, client kubernetes.Interface) ([]*Volume, error) {
	var mounted []*Volume
	for _, plan := range p.volumes {
		v := &Volume{namespace: p.namespace, plan: plan}
		if err := v.mount(ctx, client); err != nil {
			return nil, err
		}
		mounted = append(mounted, v)
	}
	return mounted, nil
}

// mount fills the directory before the process starts. Like a pod, the process waits for a Secret that does not
// exist yet.
func (v *Volume) mount(ctx context.Context, client kubernetes.Interface) error {
	if v.plan.file {
		if files.Exists(v.plan.hostDir) {
			return nil
		}
		return files.WriteAtomically(v.plan.hostDir, nil)
	}
	if err := os.MkdirAll(v.plan.hostDir, 0o755); err != nil {
		return err
	}
	if v.plan.kind == "" {
		return nil
	}
	what := v.plan.kind + " " + v.namespace + "/" + v.plan.source
	return poll.Until(ctx, what, 2*time.Minute, func(ctx context.Context) error { return v.fill(ctx, client) })
}

// fill writes the present content of the Secret or ConfigMap.
func (v *Volume) fill(ctx context.Context, client kubernetes.Interface) error {
	data := map[string][]byte{}
	var err error
	if v.plan.kind == "Secret" {
		var secret *corev1.Secret
		secret, err = client.CoreV1().Secrets(v.namespace).Get(ctx, v.plan.source, metav1.GetOptions{})
		maps.Copy(data, secret.Data)
	} else {
		var configMap *corev1.ConfigMap
		configMap, err = client.CoreV1().ConfigMaps(v.namespace).Get(ctx, v.plan.source, metav1.GetOptions{})
		maps.Copy(data, configMap.BinaryData)
		for key, value := range configMap.Data {
			data[key] = []byte(value)
		}
	}
	if apierrors.IsNotFound(err) && v.plan.optional {
		return nil
	}
	if err != nil {
		return err
	}
	return v.write(data)
}

// Follow rewrites the directory within a second of every change until ctx ends.
func (v *Volume) Follow(ctx context.Context, client kubernetes.Interface) {
	for v.plan.kind != "" && ctx.Err() == nil {
		_ = v.fill(ctx, client)
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}

func (v *Volume) files(data map[string][]byte) (map[string][]byte, error) {
	if len(v.plan.items) == 0 {
		return data, nil
	}
	files := map[string][]byte{}
	for _, item := range v.plan.items {
		content, ok := data[item.Key]
		if !ok && !v.plan.optional {
			return nil, fmt.Errorf("there is no key %q", item.Key)
		}
		files[item.Path] = content
	}
	return files, nil
}

// write puts the files into a new directory and swaps the link to it.
func (v *Volume) write(data map[string][]byte) error {
	wanted, err := v.files(data)
	if err != nil {
		return err
	}
	if v.last != nil && maps.EqualFunc(wanted, v.last, bytes.Equal) {
		return nil
	}
	fresh, err := os.MkdirTemp(v.plan.hostDir, time.Now().Format("..2006_01_02_15_04_05."))
	if err != nil {
		return err
	}
	for name, content := range wanted {
		path := filepath.Join(fresh, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, content, os.FileMode(v.plan.mode)); err != nil {
			return err
		}
	}
	link := filepath.Join(v.plan.hostDir, dataLink)
	old, _ := os.Readlink(link)
	if err := files.SwapLink(filepath.Base(fresh), link); err != nil {
		return err
	}
	var problems []error
	for name := range wanted {
		if path := filepath.Join(v.plan.hostDir, name); !files.Exists(path) {
			problems = append(problems, os.Symlink(filepath.Join(dataLink, name), path))
		}
	}
	for name := range v.last {
		if _, remains := wanted[name]; !remains {
			problems = append(problems, os.Remove(filepath.Join(v.plan.hostDir, name)))
		}
	}
	if old != "" {
		problems = append(problems, os.RemoveAll(filepath.Join(v.plan.hostDir, old)))
	}
	v.last = maps.Clone(wanted)
	return errors.Join(problems...)
}
