package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/internal/stamp/desired"
)

// tooMany returns more labels than are copied.
func tooMany() map[string]string {
	labels := map[string]string{}
	for i := range desired.MaxCopiedKeys + 1 {
		labels[fmt.Sprint("l", i)] = ""
	}
	return labels
}

// partCluster is the Fleet Cluster of wantedCluster after its Cluster got too many labels and another class.
func partCluster(in settings.Settings) *fleetv1.Cluster {
	cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "prod", UID: "uid", Labels: tooMany(), Annotations: map[string]string{stamp.ClusterNameAnnotation: "prod"}}}
	cluster.Spec.Topology.ClassRef = clusterv1.ClusterClassRef{Namespace: "classes", Name: "other"}
	return desired.FleetCluster(in, cluster, nil, nil, desired.Targets{Group: "group", Mapping: "mapping"}, "")
}

// sent is a client that records what is sent.
type sent struct {
	client.Client
	patches []string
	created []client.Object
}

func (s *sent) Patch(_ context.Context, object client.Object, patch client.Patch, _ ...client.PatchOption) error {
	body, err := patch.Data(object)
	s.patches = append(s.patches, fmt.Sprintf("%s %s", patch.Type(), body))
	object.SetResourceVersion("100")
	return err
}

func (s *sent) Create(_ context.Context, object client.Object, _ ...client.CreateOption) error {
	object.SetUID("assigned")
	object.SetResourceVersion("100")
	s.created = append(s.created, object)
	return nil
}

// A part changes what it names, and neither sends nor takes off anything else.
func TestApplyPart(t *testing.T) {
	in := settings.Default()
	in.Cluster.AgentNamespace, in.Cluster.HostNetwork = "elsewhere", false
	have := stored(t, wantedCluster(), func(have *fleetv1.Cluster) {
		have.Labels["of-others"] = "x"
		have.OwnerReferences = append([]metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "x", UID: "x"}}, have.OwnerReferences...)
	})
	server := &sent{}
	applier := newApplier(t, nil, have)
	applier.Client = server
	written, result, err := applier.Apply(t.Context(), partCluster(in), have, true)
	if err != nil || result != Updated {
		t.Fatalf("Apply = %q, %v", result, err)
	}
	want := []any{map[string]any{
		"metadata": map[string]any{"resourceVersion": "7", "labels": map[string]any{"clusterclass-name.fleet.addons.cluster.x-k8s.io": "other"}},
		"spec":     map[string]any{"agentNamespace": "elsewhere", "hostNetwork": false, "agentEnvVars": nil},
	}}
	var got []any
	for _, patch := range server.patches {
		kind, body, _ := strings.Cut(patch, " ")
		if kind != string(types.MergePatchType) {
			t.Errorf("a patch of type %s", kind)
		}
		var document any
		if err := json.Unmarshal([]byte(body), &document); err != nil {
			t.Fatal(err)
		}
		got = append(got, document)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("sent (-want +got):\n%s", diff)
	}
	if labels := written.GetLabels(); labels["env"] != "prod" || labels["of-others"] != "x" {
		t.Errorf("a label is gone: %v", labels)
	}
	if got, want := written.GetAnnotations()[desired.HashAnnotation], have.Annotations[desired.HashAnnotation]; got != want {
		t.Errorf("the hash is %q, want that of the last whole, %q", got, want)
	}

	server.patches = nil
	if _, result, err := applier.Apply(t.Context(), partCluster(in), written, true); err != nil || result != Unchanged || len(server.patches) > 0 {
		t.Errorf("a second time: Apply = %q, %v, sent %q", result, err, server.patches)
	}
	if _, result, err := applier.Apply(t.Context(), partCluster(settings.Default()), written, false); err != nil || result != Skipped || len(server.patches) > 0 {
		t.Errorf("not to be patched: Apply = %q, %v, sent %q", result, err, server.patches)
	}
	if !Differs(wantedCluster(), written) {
		t.Error("the whole, as it was before, does not differ from what the part made of it")
	}
}

// A part takes off what Muster alone may set, such as the mark of a release.
func TestApplyPartTakesStraysOff(t *testing.T) {
	have := stored(t, wantedCluster(), func(have *fleetv1.Cluster) {
		have.Annotations[stamp.ReleasedAnnotation], have.OwnerReferences = "true", nil
		have.Labels[stamp.ClassNameLabel] = "other"
		have.Spec.AgentEnvVars = nil
	})
	server := &sent{}
	applier := newApplier(t, nil, have)
	applier.Client = server
	written, _, err := applier.Apply(t.Context(), partCluster(settings.Default()), have, true)
	if err != nil {
		t.Fatal(err)
	}
	if _, found := written.GetAnnotations()[stamp.ReleasedAnnotation]; found || len(written.GetOwnerReferences()) != 1 || len(server.patches) != 1 {
		t.Errorf("it is still released: %v, sent %q", written.GetAnnotations(), server.patches)
	}
}

// What Argo CD spares while it has no owner is no longer spared by the write that gives it one; later, the same annotations
// are another writer's.
func TestApplyGivesAnOwner(t *testing.T) {
	optOuts := desired.Spared()
	isSpared := func(object client.Object) bool { return Contains(object.GetAnnotations(), optOuts) }
	for name, want := range map[string]*fleetv1.Cluster{"a whole": wantedCluster(), "a part": partCluster(settings.Default())} {
		have := stored(t, wantedCluster(), func(have *fleetv1.Cluster) {
			have.OwnerReferences = nil
			maps.Copy(have.Annotations, optOuts)
		})
		// An apply leaves annotations that a patch has set.
		server := &leaving{annotations: optOuts}
		applier := newApplier(t, nil, have)
		applier.Client = server
		written, _, err := applier.Apply(t.Context(), want, have, true)
		if err != nil || isSpared(written) || len(written.GetOwnerReferences()) != 1 {
			t.Errorf("%s: written %v, %v", name, written, err)
		}

		server.others = true
		others := stored(t, wantedCluster(), func(have *fleetv1.Cluster) { maps.Copy(have.Annotations, optOuts) })
		want = want.DeepCopy()
		want.Spec.AgentNamespace = "elsewhere"
		if written, _, err := applier.Apply(t.Context(), want, others, true); err != nil || !isSpared(written) {
			t.Errorf("%s: what another writer set is gone: %v, %v", name, written, err)
		}
	}
}

// leaving is an API server on which an apply leaves annotations, which others have set, too.
type leaving struct {
	client.Client
	annotations map[string]string
	others      bool
}

func (l *leaving) Patch(_ context.Context, object client.Object, patch client.Patch, _ ...client.PatchOption) error {
	body, err := patch.Data(object)
	if err != nil || patch.Type() != types.ApplyPatchType {
		return err
	}
	if err := json.Unmarshal(body, object); err != nil {
		return err
	}
	annotations := object.GetAnnotations()
	maps.Copy(annotations, l.annotations)
	object.SetAnnotations(annotations)
	fields := &metav1.FieldsV1{Raw: []byte(`{"f:metadata":{"f:annotations":{"f:argocd.argoproj.io/sync-options":{},"f:argocd.argoproj.io/compare-options":{}}}}`)}
	managed := []metav1.ManagedFieldsEntry{{Manager: stamp.FieldManager, Operation: metav1.ManagedFieldsOperationUpdate, FieldsV1: fields}}
	if l.others {
		managed = append(managed, metav1.ManagedFieldsEntry{Manager: "kubectl", FieldsV1: fields})
	}
	object.SetManagedFields(managed)
	return nil
}

// A group is made without the labels of its class if these are too many, by a request that fails if a group is there.
func TestApplyPartCreates(t *testing.T) {
	want := desired.ClassGroup(settings.Default(), &desired.Class{ObjectMeta: metav1.ObjectMeta{Namespace: "classes", Name: "standard", UID: "uid", Labels: tooMany()}})
	server := &sent{}
	applier := newApplier(t, nil, nil)
	applier.Client = server
	written, result, err := applier.Apply(t.Context(), want, nil, true)
	if err != nil || result != Created || len(server.created) != 1 || len(server.patches) > 0 {
		t.Fatalf("Apply = %q, %v, created %v, sent %q", result, err, server.created, server.patches)
	}
	if len(written.GetLabels()) != 3 || written.GetUID() != "assigned" {
		t.Errorf("written is %v", written)
	}
}

// A write that is too large is tried again when its content changes, and once an hour.
func TestTooLargeIsNotTriedAgain(t *testing.T) {
	server := &server{err: apierrors.NewRequestEntityTooLargeError("limit is 3145728")}
	applier := newApplier(t, server, nil)
	now := time.Now()
	applier.Store.now = func() time.Time { return now }
	in := settings.Default()
	try := func(writes int, change func()) {
		t.Helper()
		change()
		want := desired.FleetCluster(in, &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "prod", UID: "uid", Annotations: map[string]string{stamp.ClusterNameAnnotation: "prod"}}},
			nil, map[string]any{"x": "y"}, desired.Targets{}, "")
		_, _, err := applier.Apply(t.Context(), want, nil, true)
		if !errors.Is(err, server.err) || len(server.applied) != writes {
			t.Errorf("%d writes, want %d; the error is %v", len(server.applied), writes, err)
		}
	}
	try(1, func() {})
	try(1, func() {})
	try(1, func() { now = now.Add(TooLargeInterval - time.Second) })
	try(2, func() { now = now.Add(time.Minute) })
	try(2, func() {})
	try(3, func() { in.Cluster.AgentNamespace = "elsewhere" })
	try(3, func() {})
	try(4, func() { in.Cluster.AgentNamespace = settings.DefaultAgentNamespace })
	server.err = nil
	try(5, func() { now = now.Add(2 * TooLargeInterval) })
	try(6, func() {})
	// What is not about the size is tried as ever.
	server.err = apierrors.NewServiceUnavailable("busy")
	try(7, func() {})
	try(8, func() {})
	now = now.Add(2 * TooLargeInterval)
	if try(9, func() {}); len(applier.Store.refused) > 0 {
		t.Errorf("it still remembers %v", applier.Store.refused)
	}
}

// creating refuses to create objects, and counts.
type creating struct {
	client.Client
	err   error
	count int
}

func (c *creating) Create(context.Context, client.Object, ...client.CreateOption) error {
	c.count++
	return c.err
}

// A part has no hash of its own, and the hash of the last apply says nothing about the part.
func TestTooLargePartIsTriedAgain(t *testing.T) {
	server := &creating{err: apierrors.NewRequestEntityTooLargeError("limit is 3145728")}
	applier := newApplier(t, server, nil)
	for i, size := range []int{3, 3, 1} {
		want := &fleetv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "prod"}}
		want.SetGroupVersionKind(fleetv1.SchemeGroupVersion.WithKind("Cluster"))
		want.Spec.AgentNamespace = strings.Repeat("a", size)
		_, _, err := applier.Apply(t.Context(), want, nil, true)
		if writes := []int{1, 1, 2}[i]; !errors.Is(err, server.err) || server.count != writes {
			t.Errorf("%d: %d writes, want %d; the error is %v", i, server.count, writes, err)
		}
	}
}

func TestIsTooLarge(t *testing.T) {
	annotations := field.NewPath("metadata", "annotations")
	invalid := func(errs ...*field.Error) error {
		return fmt.Errorf("applying: %w", apierrors.NewInvalid(schema.GroupKind{Kind: "Cluster"}, "prod", errs))
	}
	for name, test := range map[string]struct {
		err  error
		want bool
	}{
		"nothing":                    {},
		"the request":                {apierrors.NewRequestEntityTooLargeError("limit is 3145728"), true},
		"the object, to etcd":        {fmt.Errorf("applying: %w", apierrors.NewInternalError(errors.New("etcdserver: request is too large"))), true},
		"the object, to its client":  {apierrors.NewInternalError(errors.New("rpc error: code = ResourceExhausted desc = trying to send message larger than max (2100000 vs. 2097152)")), true},
		"its annotations":            {invalid(field.TooLong(annotations, "", 262144)), true},
		"another field":              {invalid(field.TooLong(field.NewPath("metadata", "name"), "", 63)), false},
		"a bad annotation":           {invalid(field.Invalid(annotations, "x", "no")), false},
		"something else is internal": {apierrors.NewInternalError(errors.New("no")), false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := IsTooLarge(test.err); got != test.want {
				t.Errorf("IsTooLarge = %v", got)
			}
			if test.want && IsPassing(test.err) {
				t.Error("it passes")
			}
		})
	}
}
