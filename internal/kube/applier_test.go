package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/program"
	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/internal/stamp/desired"
)

// server is a fake API server for one kind of request at a time.
type server struct {
	client.Client
	err error
	// generation is the object's, in the answer to an apply.
	generation int64
	applied    []client.PatchOptions
	deleted    []client.DeleteOptions
}

func (s *server) Patch(_ context.Context, answer client.Object, patch client.Patch, options ...client.PatchOption) error {
	applied := client.PatchOptions{}
	applied.ApplyOptions(options)
	s.applied = append(s.applied, applied)
	if s.err != nil {
		return s.err
	}
	if patch.Type() != types.ApplyPatchType {
		return fmt.Errorf("not an apply but %s", patch.Type())
	}
	body, err := patch.Data(answer)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(body, answer); err != nil {
		return err
	}
	answer.SetUID("assigned")
	answer.SetResourceVersion("100")
	answer.SetGeneration(s.generation)
	return nil
}

func (s *server) Delete(_ context.Context, _ client.Object, options ...client.DeleteOption) error {
	deleted := client.DeleteOptions{}
	deleted.ApplyOptions(options)
	s.deleted = append(s.deleted, deleted)
	return s.err
}

// cached is a cache with at most one Fleet Cluster.
type cached struct {
	client.Reader
	shows *fleetv1.Cluster
}

func (c cached) Get(_ context.Context, key client.ObjectKey, object client.Object, _ ...client.GetOption) error {
	if c.shows == nil || client.ObjectKeyFromObject(c.shows) != key {
		return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
	}
	c.shows.DeepCopyInto(object.(*fleetv1.Cluster))
	return nil
}

func newApplier(t *testing.T, server client.Client, shows *fleetv1.Cluster) *Applier {
	t.Helper()
	scheme, err := program.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	return &Applier{Client: server, Store: NewStore(cached{shows: shows}, scheme)}
}

func TestApply(t *testing.T) {
	altered := stored(t, wantedCluster(), func(have *fleetv1.Cluster) { have.Labels["env"] = "test" })
	tests := map[string]struct {
		have   client.Object
		patch  bool
		err    error
		want   Result
		writes int
		// generation is the object's after the write, if it is not 1.
		generation int64
	}{
		"absent":              {patch: true, want: Created, writes: 1},
		"absent, never patch": {want: Created, writes: 1},
		"it exists, but the cache does not show it": {patch: true, want: Created, writes: 2, generation: 2},
		"unchanged":              {have: stored(t, wantedCluster(), nil), patch: true, want: Unchanged},
		"unchanged, never patch": {have: stored(t, wantedCluster(), nil), want: Unchanged},
		"altered":                {have: altered, patch: true, want: Updated, writes: 1},
		"altered, never patch":   {have: altered, want: Skipped},
		"refused":                {patch: true, err: errors.New("no"), writes: 1},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			server := &server{err: test.err, generation: max(1, test.generation)}
			shows, _ := test.have.(*fleetv1.Cluster)
			applier := newApplier(t, server, shows)
			written, got, err := applier.Apply(t.Context(), wantedCluster(), test.have, test.patch)
			if !errors.Is(err, test.err) || test.err != nil && !strings.HasPrefix(err.Error(), "applying Cluster team/prod: ") {
				t.Fatalf("the error is %v", err)
			}
			if got != test.want || len(server.applied) != test.writes {
				t.Errorf("Apply = %q with %d writes, want %q with %d", got, len(server.applied), test.want, test.writes)
			}
			for _, options := range server.applied {
				if options.FieldManager != stamp.FieldManager || !ptr.Deref(options.Force, false) {
					t.Errorf("applied with %+v", options)
				}
			}

			hasWritten := test.writes > 0 && test.err == nil
			found, err := applier.Store.Get(t.Context(), client.ObjectKey{Namespace: "team", Name: "prod"}, &fleetv1.Cluster{})
			if errors.Is(err, ErrBehind) != hasWritten || found != (shows != nil && !hasWritten) {
				t.Fatalf("the Store has it: %v, %v", found, err)
			}
			if !hasWritten {
				return
			}
			seen := written.(*fleetv1.Cluster)
			if seen.UID != "assigned" || seen.ResourceVersion != "100" {
				t.Errorf("written is %s of %s", seen.ResourceVersion, seen.UID)
			}
			if retained := seen.Spec.TemplateValues.Data; !cmp.Equal(retained, desired.ShortValues(retained)) {
				t.Errorf("whole template values are returned: %v", seen.Spec.TemplateValues.Data)
			}
			// This keeps the event of the write from causing a second write.
			if _, again, err := applier.Apply(t.Context(), wantedCluster(), seen, true); err != nil || again != Unchanged {
				t.Errorf("the second Apply = %q, %v", again, err)
			}
		})
	}
}

// keeper is a fake API server on which another client has written a kubeconfig: an apply leaves it, and
// only a merge patch removes it.
type keeper struct {
	server
	merged string
}

func (k *keeper) Patch(ctx context.Context, answer client.Object, patch client.Patch, options ...client.PatchOption) error {
	if patch.Type() == types.ApplyPatchType {
		err := k.server.Patch(ctx, answer, patch, options...)
		answer.(*fleetv1.Cluster).Spec.KubeConfigSecret = "somebody's"
		return err
	}
	body, err := patch.Data(answer)
	k.merged = string(body)
	return err
}

// If the agent registers itself, Fleet must find no kubeconfig with which it would import the cluster.
func TestSomebodysKubeconfigGoes(t *testing.T) {
	want := wantedCluster()
	want.Spec.ClientID, want.Spec.KubeConfigSecret = "drawn", ""
	have := stored(t, want, func(have *fleetv1.Cluster) { have.Spec.KubeConfigSecret = "somebody's" })
	keeper := &keeper{server: server{generation: 2}}
	applier := newApplier(t, &keeper.server, nil)
	applier.Client = keeper
	written, result, err := applier.Apply(t.Context(), want, have, true)
	if err != nil || result != Updated {
		t.Fatalf("Apply = %q, %v", result, err)
	}
	if !strings.Contains(keeper.merged, `"kubeConfigSecret":null`) {
		t.Errorf("it stays: %q", keeper.merged)
	}
	if left := written.(*fleetv1.Cluster).Spec.KubeConfigSecret; left != "" {
		t.Errorf("the Store would have %q", left)
	}
}

func TestDelete(t *testing.T) {
	gone := apierrors.NewNotFound(schema.GroupResource{}, "prod")
	tests := map[string]struct {
		finalizers []string
		err        error
		wantErr    bool
	}{
		"at once":                   {},
		"gone already":              {err: gone},
		"held by Fleet":             {finalizers: []string{"fleet.cattle.io/cluster-finalizer"}},
		"refused":                   {err: errors.New("no"), wantErr: true},
		"replaced in the meanwhile": {err: apierrors.NewConflict(schema.GroupResource{}, "prod", errors.New("uid")), wantErr: true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			object := &fleetv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "prod", UID: "a", ResourceVersion: "10"}}
			object.Finalizers = test.finalizers
			server := &server{err: test.err}
			applier := newApplier(t, server, object)
			if err := applier.Delete(t.Context(), object); (err != nil) != test.wantErr {
				t.Errorf("the error is %v", err)
			}
			uid := types.UID("a")
			if diff := cmp.Diff(&uid, server.deleted[0].Preconditions.UID); diff != "" {
				t.Errorf("precondition (-want +got):\n%s", diff)
			}
			found, err := applier.Store.Get(t.Context(), client.ObjectKeyFromObject(object), &fleetv1.Cluster{})
			if isDeleted := !test.wantErr; errors.Is(err, ErrBehind) != isDeleted || found == isDeleted {
				t.Errorf("the Store has it: %v, %v", found, err)
			}
		})
	}
}

// A log names Fleet's Cluster and the CAPI Cluster by different keys.
func TestLogKeys(t *testing.T) {
	for object, want := range map[client.Object]string{
		&fleetv1.Cluster{}: "fleetCluster", &clusterv1.Cluster{}: "cluster", &fleetv1.ClusterGroup{}: "clusterGroup",
	} {
		if got := logKeyOf(object); got != want {
			t.Errorf("%T is %s, want %s", object, got, want)
		}
	}
	var line string
	log := funcr.New(func(_, args string) { line = args }, funcr.Options{})
	a := newApplier(t, &server{}, nil)
	if _, _, err := a.Apply(ctrl.LoggerInto(t.Context(), log), wantedCluster(), nil, true); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(line, `"fleetCluster"="`+client.ObjectKeyFromObject(wantedCluster()).String()+`"`) || strings.Contains(line, `"kind"`) {
		t.Errorf("the line is %s", line)
	}
}
