package registrar

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/events"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/muster-fleet/muster/internal/message"
	"github.com/muster-fleet/muster/internal/program"
)

// TestTellIsBounded: what an admission webhook answers has no bound, and the API server takes
// neither a condition nor an event that is too long.
func TestTellIsBounded(t *testing.T) {
	scheme, err := program.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	cluster := wholeCluster()
	cluster.Status.Conditions = nil
	said := &clusterv1.Cluster{}
	recorder := events.NewFakeRecorder(1)
	r := &reconciler{
		recorder: recorder, now: func() time.Time { return now },
		Client: fake.NewClientBuilder().WithScheme(scheme).WithInterceptorFuncs(interceptor.Funcs{
			SubResourcePatch: func(_ context.Context, _ client.Client, _ string, object client.Object, patch client.Patch, _ ...client.SubResourcePatchOption) error {
				body, err := patch.Data(object)
				if err != nil {
					return err
				}
				return json.Unmarshal(body, said)
			},
		}).Build(),
	}
	result := waiting(reasonFailed, strings.Repeat("no", 32<<10), 0)
	if err := r.tell(t.Context(), cluster, result); err != nil {
		t.Fatal(err)
	}
	if len(said.Status.Conditions) != 1 || len(said.Status.Conditions[0].Message) > message.Condition {
		t.Fatalf("%d conditions, or one that is too long", len(said.Status.Conditions))
	}
	if note := <-recorder.Events; len(note) > message.Note+len("Warning "+reasonFailed+" ") {
		t.Errorf("the event has %d bytes", len(note))
	}
	// What is told again is no news.
	cluster.Status.Conditions, said.Status.Conditions = said.Status.Conditions, nil
	if err := r.tell(t.Context(), cluster, result); err != nil {
		t.Fatal(err)
	}
	if said.Status.Conditions != nil {
		t.Error("the same is told again")
	}
}
