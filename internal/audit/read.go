package audit

import (
	"context"
	"fmt"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/pager"
	"github.com/muster-fleet/muster/internal/settings"
)

// Read reads the state of a cluster. It notes kinds that it may not read in the state, and returns any
// other error.
func Read(ctx context.Context, reader client.Reader) (*State, error) {
	r := &reading{Reader: reader, state: &State{
		Settings: settings.Default(), Namespaces: map[string]map[string]string{}, Classes: map[types.NamespacedName]bool{}, Unread: map[Kind]string{},
		Now: time.Now(),
	}}
	for _, read := range []struct {
		kind Kind
		do   func(context.Context) error
	}{
		{Configs, r.config}, {Namespaces, r.namespaces}, {Clusters, r.clusters}, {Classes, r.classes},
		{FleetClusters, r.fleetClusters}, {Mappings, r.mappings}, {Webhook, r.webhook},
	} {
		err := read.do(ctx)
		switch {
		case err == nil || meta.IsNoMatchError(err): // A kind that is not served has no objects.
		case apierrors.IsForbidden(err):
			r.state.Unread[read.kind] = "may not be read"
		default:
			return nil, fmt.Errorf("reading %s: %w", read.kind, err)
		}
	}
	return r.state, nil
}

type reading struct {
	client.Reader
	state *State
}

func (r *reading) config(ctx context.Context) error {
	config := &addonsv1.FleetAddonConfig{}
	if err := r.Get(ctx, client.ObjectKey{Name: addonsv1.FleetAddonConfigName}, config); err != nil {
		return client.IgnoreNotFound(err)
	}
	if current, err := settings.From(config); err != nil {
		r.state.Unread[Configs] = err.Error()
	} else {
		r.state.Settings = current
	}
	return nil
}

func (r *reading) namespaces(ctx context.Context) error {
	return all(ctx, r, metadataList(corev1.SchemeGroupVersion.WithKind("NamespaceList")), func(list *metav1.PartialObjectMetadataList) {
		for i := range list.Items {
			r.state.Namespaces[list.Items[i].Name] = list.Items[i].Labels
		}
	})
}

// clusters reduces Clusters to the fields that Audit needs: there may be thousands.
func (r *reading) clusters(ctx context.Context) error {
	return all(ctx, r, &clusterv1.ClusterList{}, func(list *clusterv1.ClusterList) {
		for i := range list.Items {
			short := &clusterv1.Cluster{ObjectMeta: list.Items[i].ObjectMeta}
			short.ManagedFields = nil
			if said := meta.FindStatusCondition(list.Items[i].Status.Conditions, addonsv1.FleetImportedCondition); said != nil {
				short.Status.Conditions = []metav1.Condition{*said}
			}
			short.Spec.Paused = list.Items[i].Spec.Paused
			short.Spec.Topology.ClassRef = list.Items[i].Spec.Topology.ClassRef
			r.state.Clusters = append(r.state.Clusters, short)
		}
	})
}

func (r *reading) classes(ctx context.Context) error {
	return all(ctx, r, metadataList(clusterv1.GroupVersion.WithKind("ClusterClassList")), func(list *metav1.PartialObjectMetadataList) {
		for i := range list.Items {
			r.state.Classes[client.ObjectKeyFromObject(&list.Items[i])] = true
		}
	})
}

func (r *reading) fleetClusters(ctx context.Context) error {
	return all(ctx, r, metadataList(fleetv1.SchemeGroupVersion.WithKind("ClusterList")), func(list *metav1.PartialObjectMetadataList) {
		for i := range list.Items {
			r.state.FleetClusters = append(r.state.FleetClusters, &list.Items[i])
		}
	})
}

func (r *reading) mappings(ctx context.Context) error {
	return all(ctx, r, &fleetv1.BundleNamespaceMappingList{}, func(list *fleetv1.BundleNamespaceMappingList) {
		for i := range list.Items {
			r.state.Mappings = append(r.state.Mappings, &list.Items[i])
		}
	})
}

func (r *reading) webhook(ctx context.Context) error {
	webhook := &metav1.PartialObjectMetadata{}
	webhook.SetGroupVersionKind(schema.GroupVersionKind{Group: "admissionregistration.k8s.io", Version: "v1", Kind: "ValidatingWebhookConfiguration"})
	if err := r.Get(ctx, client.ObjectKey{Name: webhookName}, webhook); err != nil {
		return client.IgnoreNotFound(err)
	}
	since := webhook.CreationTimestamp.Time
	r.state.AskedSince = &since
	return nil
}

func metadataList(kind schema.GroupVersionKind) *metav1.PartialObjectMetadataList {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(kind)
	return list
}

// all lists all objects of a kind.
func all[L client.ObjectList](ctx context.Context, reader client.Reader, empty L, each func(L)) error {
	_, err := pager.Each(ctx, reader, empty, each)
	return err
}
