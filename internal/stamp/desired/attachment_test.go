package desired

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/muster-fleet/muster/internal/settings"
)

// The policy muster-syncer-fleet refuses an attachment with one of these keys, whether it is a label or an annotation.
func TestAttachmentCopiesNoRefusedKey(t *testing.T) {
	entries := map[string]string{"app.kubernetes.io/managed-by": "muster", "management.cattle.io/cluster-name": "c-other", "region": "eu"}
	cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "one", UID: "1", Labels: entries, Annotations: entries}}
	got := Attachment(settings.Default(), types.NamespacedName{Namespace: "ws", Name: "c-abcde"}, "2", cluster, nil, nil, Targets{})
	for of, copied := range map[string]map[string]string{"labels": got.Labels, "annotations": got.Annotations} {
		for key := range entries {
			if _, found := copied[key]; found != (key == "region") {
				t.Errorf("%s: %s is copied: %v", of, key, found)
			}
		}
	}
}
