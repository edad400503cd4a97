package main

import (
	"context"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// completeNames completes the names of ClusterClasses and Clusters.
func (o *options) completeNames(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return append(o.names(cmd, clusterv1.GroupVersion.WithKind("ClusterClassList")), o.names(cmd, clusterv1.GroupVersion.WithKind("ClusterList"))...), cobra.ShellCompDirectiveNoFileComp
}

// completeTrace completes the name of a Bundle, then that of a Cluster.
func (o *traceOptions) completeTrace(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	switch len(args) {
	case 0:
		return o.names(cmd, fleetv1.SchemeGroupVersion.WithKind("BundleList")), cobra.ShellCompDirectiveNoFileComp
	case 1:
		return o.names(cmd, clusterv1.GroupVersion.WithKind("ClusterList")), cobra.ShellCompDirectiveNoFileComp
	default:
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
}

// names lists objects for a completion, which must not take long, and has nobody to tell
// of an error.
func (o *options) names(cmd *cobra.Command, kind schema.GroupVersionKind) []string {
	reader, err := o.reader()
	if err != nil {
		return nil
	}
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(kind)
	ctx, cancel := context.WithTimeout(cmd.Context(), 3*time.Second)
	defer cancel()
	if err := reader.List(ctx, list, client.InNamespace(o.scope().Namespace), client.Limit(500)); err != nil {
		return nil
	}
	var names []string
	for i := range list.Items {
		names = append(names, list.Items[i].Namespace+"/"+list.Items[i].Name)
	}
	return names
}
