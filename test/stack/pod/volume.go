package pod

import (
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
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"github.com/muster-fleet/muster/test/stack/files"
	"github.com/muster-fleet/muster/test/stack/poll"
)

const dataLink = "..data"

// Volume keeps a directory like the kubelet does: files are links through one
// link that is swapped whole, so that a reader never sees a certificate with the
// key of another.
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

// mount fills the directory before the process starts. Like a pod, it waits for a
// Secret that does not exist yet.
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
	if v.plan.secret == "" && v.plan.configMap == "" {
		return nil
	}
	return poll.Until(ctx, v.what(), 2*time.Minute, func(ctx context.Context) error {
		data, err := v.get(ctx, client)
		if apierrors.IsNotFound(err) && v.plan.optional {
			return nil
		}
		if err != nil {
			return err
		}
		return v.write(data)
	})
}

func (v *Volume) what() string {
	if v.plan.secret != "" {
		return "Secret " + v.namespace + "/" + v.plan.secret
	}
	return "ConfigMap " + v.namespace + "/" + v.plan.configMap
}

func (v *Volume) get(ctx context.Context, client kubernetes.Interface) (map[string][]byte, error) {
	if v.plan.secret != "" {
		secret, err := client.CoreV1().Secrets(v.namespace).Get(ctx, v.plan.secret, metav1.GetOptions{})
		return dataOf(secret), err
	}
	configMap, err := client.CoreV1().ConfigMaps(v.namespace).Get(ctx, v.plan.configMap, metav1.GetOptions{})
	return dataOf(configMap), err
}

func dataOf(object runtime.Object) map[string][]byte {
	switch source := object.(type) {
	case *corev1.Secret:
		return source.Data
	case *corev1.ConfigMap:
		data := maps.Clone(source.BinaryData)
		if data == nil {
			data = map[string][]byte{}
		}
		for key, value := range source.Data {
			data[key] = []byte(value)
		}
		return data
	}
	return nil
}

// Follow rewrites the directory on every change until ctx ends. A watch that asks
// for no version begins with what exists now, so nothing is missed in between.
func (v *Volume) Follow(ctx context.Context, client kubernetes.Interface) {
	if v.plan.secret == "" && v.plan.configMap == "" {
		return
	}
	for ctx.Err() == nil {
		events, err := v.watch(ctx, client)
		if err == nil {
			for event := range events.ResultChan() {
				if event.Type == watch.Added || event.Type == watch.Modified {
					_ = v.write(dataOf(event.Object))
				}
			}
			events.Stop()
		}
		select {
		case <-ctx.Done():
		case <-time.After(200 * time.Millisecond):
		}
	}
}

func (v *Volume) watch(ctx context.Context, client kubernetes.Interface) (watch.Interface, error) {
	options := func(name string) metav1.ListOptions {
		return metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", name).String()}
	}
	if v.plan.secret != "" {
		return client.CoreV1().Secrets(v.namespace).Watch(ctx, options(v.plan.secret))
	}
	return client.CoreV1().ConfigMaps(v.namespace).Watch(ctx, options(v.plan.configMap))
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
	same := func(a, b []byte) bool { return string(a) == string(b) }
	if v.last != nil && maps.EqualFunc(wanted, v.last, same) {
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
	if v.last != nil {
		for name := range v.last {
			if _, stays := wanted[name]; !stays {
				problems = append(problems, os.Remove(filepath.Join(v.plan.hostDir, name)))
			}
		}
	}
	if old != "" {
		problems = append(problems, os.RemoveAll(filepath.Join(v.plan.hostDir, old)))
	}
	v.last = maps.Clone(wanted)
	return errors.Join(problems...)
}
