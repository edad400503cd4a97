package kube

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Labels by which a tool deletes go with the last of CAAPF's managers, unless another writer has set them, too.
func TestPruningLabelsOfCAAPF(t *testing.T) {
	live := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{
		"applyset.kubernetes.io/part-of": "x", "kapp.k14s.io/app": "x", "app.kubernetes.io/instance": "x", "env": "x",
	}}}
	fields := func(manager, keys string) metav1.ManagedFieldsEntry {
		return metav1.ManagedFieldsEntry{Manager: manager, FieldsV1: &metav1.FieldsV1{Raw: []byte(`{"f:metadata":{"f:labels":{` + keys + `}}}`)}}
	}
	live.ManagedFields = []metav1.ManagedFieldsEntry{
		fields("prod-addon-provider-fleet", `"f:applyset.kubernetes.io/part-of":{},"f:kapp.k14s.io/app":{},"f:app.kubernetes.io/instance":{},"f:env":{}`),
		fields("kapp", `"f:kapp.k14s.io/app":{}`),
	}
	if diff := cmp.Diff(map[string]any{"applyset.kubernetes.io/part-of": nil}, pruningLabelsOfCAAPF(live)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
