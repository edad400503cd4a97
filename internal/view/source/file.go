package source

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/json"

	"github.com/muster-fleet/muster/internal/manifests"
)

// File is a client.Reader on files as kubectl get -o yaml writes them, so that a bug report can be examined
// without its cluster.
type File struct {
	scheme *runtime.Scheme
	byKind map[schema.GroupKind][]*manifests.Object
	now    time.Time
}

// Open reads files. It fails if a file cannot be read completely, because half a graph would look like the whole.
func Open(scheme *runtime.Scheme, paths []string, stdin io.Reader) (*File, error) {
	objects, problems := manifests.Read(paths, stdin)
	var errs []error
	for _, problem := range problems {
		errs = append(errs, problem)
	}
	result := &File{scheme: scheme, byKind: map[schema.GroupKind][]*manifests.Object{}}
	for i := range objects {
		object := &objects[i]
		kind := object.GroupVersionKind()
		if kind.Group == clusterv1.GroupVersion.Group && kind.Version != clusterv1.GroupVersion.Version {
			errs = append(errs, object.Wrap(fmt.Errorf("is %s; get it as %s: kubectl get clusters.%s.%s", object.APIVersion, clusterv1.GroupVersion, clusterv1.GroupVersion.Version, clusterv1.GroupVersion.Group)))
		}
		result.byKind[kind.GroupKind()] = append(result.byKind[kind.GroupKind()], object)
		result.now = newest(result.now, object.Raw)
	}
	if len(objects) == 0 && len(errs) == 0 {
		errs = append(errs, errors.New("the file has no objects"))
	}
	return result, errors.Join(errs...)
}

// newest returns the latest time in an object. Files do not say when they were written, and according to the
// reader's clock, every agent of last week would be silent.
func newest(latest time.Time, raw []byte) time.Time {
	text := string(raw)
	for {
		i := strings.Index(text, `Z"`)
		if i < 0 {
			return latest
		}
		const length = len("2006-01-02T15:04:05Z")
		if start := i + 1 - length; start >= 0 {
			if at, err := time.Parse(time.RFC3339, text[start:i+1]); err == nil && at.After(latest) {
				latest = at
			}
		}
		text = text[i+2:]
	}
}

// Now returns the latest time in the files.
func (f *File) Now() time.Time { return f.now }

// Get implements client.Reader.
func (f *File) Get(_ context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	kind, err := apiutil.GVKForObject(into, f.scheme)
	if err != nil {
		return err
	}
	for _, object := range f.byKind[kind.GroupKind()] {
		if object.Name == key.Name && f.namespaceOf(object) == key.Namespace {
			return decode(object, into)
		}
	}
	if len(f.byKind[kind.GroupKind()]) == 0 {
		return errNotInFile
	}
	return apierrors.NewNotFound(schema.GroupResource{Group: kind.Group, Resource: kind.Kind}, key.String())
}

func decode(object *manifests.Object, into client.Object) error {
	if err := json.UnmarshalCaseSensitivePreserveInts(object.Raw, into); err != nil {
		return object.Wrap(err)
	}
	return nil
}

// List implements client.Reader.
func (f *File) List(_ context.Context, list client.ObjectList, options ...client.ListOption) error {
	kind, err := apiutil.GVKForObject(list, f.scheme)
	if err != nil {
		return err
	}
	kind.Kind = strings.TrimSuffix(kind.Kind, "List")
	all := f.byKind[kind.GroupKind()]
	if len(all) == 0 {
		return errNotInFile
	}
	wanted := (&client.ListOptions{}).ApplyOptions(options)
	var items []runtime.Object
	for _, object := range all {
		if !isWanted(wanted, object, f.namespaceOf(object)) {
			continue
		}
		item, err := f.newItem(list, kind)
		if err != nil {
			return err
		}
		if err := decode(object, item); err != nil {
			return err
		}
		item.SetNamespace(f.namespaceOf(object))
		items = append(items, item)
	}
	return meta.SetList(list, items)
}

func (f *File) newItem(list client.ObjectList, kind schema.GroupVersionKind) (client.Object, error) {
	if _, ok := list.(*metav1.PartialObjectMetadataList); ok {
		return &metav1.PartialObjectMetadata{}, nil
	}
	item, err := f.scheme.New(kind)
	if err != nil {
		return nil, err
	}
	return item.(client.Object), nil
}

func isWanted(wanted *client.ListOptions, object *manifests.Object, namespace string) bool {
	return (wanted.Namespace == "" || wanted.Namespace == namespace) &&
		(wanted.LabelSelector == nil || wanted.LabelSelector.Matches(labelsOf(object))) &&
		(wanted.FieldSelector == nil || wanted.FieldSelector.Matches(nameOf(object)))
}

// namespaceOf returns the namespace of an object; without one it is in "default", as for kubectl, unless
// its kind has no namespaces.
func (f *File) namespaceOf(object *manifests.Object) string {
	for _, feed := range feeds() {
		if kind, err := apiutil.GVKForObject(feed.list, f.scheme); err == nil && feed.wide && strings.TrimSuffix(kind.Kind, "List") == object.Kind {
			return ""
		}
	}
	return cmp.Or(object.Namespace, metav1.NamespaceDefault)
}
