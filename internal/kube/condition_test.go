package kube

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/muster-fleet/muster/internal/message"
	"github.com/muster-fleet/muster/internal/program"
)

func TestMerge(t *testing.T) {
	now := time.Unix(2000, 5)
	before, truncated := metav1.Unix(1000, 0), metav1.Unix(2000, 0)
	is := func(status metav1.ConditionStatus, reason, text string, generation int64, since metav1.Time) metav1.Condition {
		return metav1.Condition{Type: "A", Status: status, Reason: reason, Message: text, ObservedGeneration: generation, LastTransitionTime: since}
	}
	wants := func(status metav1.ConditionStatus, reason, text string) []metav1.Condition {
		return []metav1.Condition{{Type: "A", Status: status, Reason: reason, Message: text}}
	}
	foreign := metav1.Condition{Type: "Foreign", Status: "True"}
	for name, test := range map[string]struct {
		have, want, merged []metav1.Condition
		isChanged          bool
	}{
		"none":                   {have: []metav1.Condition{foreign}},
		"new":                    {have: []metav1.Condition{foreign}, want: wants("True", "R", "m"), merged: []metav1.Condition{is("True", "R", "m", 7, truncated)}, isChanged: true},
		"the same":               {have: []metav1.Condition{is("True", "R", "m", 7, before)}, want: wants("True", "R", "m"), merged: []metav1.Condition{is("True", "R", "m", 7, before)}},
		"a message":              {have: []metav1.Condition{is("True", "R", "m", 7, before)}, want: wants("True", "R", "n"), merged: []metav1.Condition{is("True", "R", "n", 7, before)}, isChanged: true},
		"message and generation": {have: []metav1.Condition{is("True", "R", "m", 0, before)}, want: wants("True", "R", "n"), merged: []metav1.Condition{is("True", "R", "n", 7, before)}, isChanged: true},
		"a reason":               {have: []metav1.Condition{is("True", "R", "m", 7, before)}, want: wants("True", "S", "m"), merged: []metav1.Condition{is("True", "S", "m", 7, before)}, isChanged: true},
		"a status":               {have: []metav1.Condition{is("True", "R", "m", 7, before)}, want: wants("False", "R", "m"), merged: []metav1.Condition{is("False", "R", "m", 7, truncated)}, isChanged: true},
		"a generation":           {have: []metav1.Condition{is("True", "R", "m", 6, before)}, want: wants("True", "R", "m"), merged: []metav1.Condition{is("True", "R", "m", 7, before)}, isChanged: true},
		"no generation":          {have: []metav1.Condition{is("True", "R", "m", 0, before)}, want: wants("True", "R", "m"), merged: []metav1.Condition{is("True", "R", "m", 7, before)}},
		"it is kept":             {have: []metav1.Condition{is("True", "R", "m", 6, before)}, want: []metav1.Condition{is("True", "R", "m", 6, before)}, merged: []metav1.Condition{is("True", "R", "m", 6, before)}},
		"it goes":                {have: []metav1.Condition{foreign, is("True", "R", "m", 7, before)}, isChanged: true},
		"a long message":         {want: wants("True", "R", strings.Repeat("x", message.Condition+1)), merged: []metav1.Condition{is("True", "R", strings.Repeat("x", message.Condition-len("…"))+"…", 7, truncated)}, isChanged: true},
		"long, and there":        {have: []metav1.Condition{is("True", "R", strings.Repeat("x", message.Condition-len("…"))+"…", 7, before)}, want: wants("True", "R", strings.Repeat("x", message.Condition+1)), merged: []metav1.Condition{is("True", "R", strings.Repeat("x", message.Condition-len("…"))+"…", 7, before)}},
	} {
		merged, changed := Merge(test.have, []string{"A"}, 7, now, test.want...)
		if diff := cmp.Diff(test.merged, merged); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		if got := slices.Equal(changed, []string{"A"}); got != test.isChanged || !got && changed != nil {
			t.Errorf("%s: %v changes", name, changed)
		}
	}
}

func TestIsTurned(t *testing.T) {
	before := []metav1.Condition{{Type: "A", Status: "True", Reason: "R", Message: "m"}}
	for _, test := range []struct {
		now      metav1.Condition
		isTurned bool
	}{
		{metav1.Condition{Type: "A", Status: "True", Reason: "R", Message: "n"}, false},
		{metav1.Condition{Type: "A", Status: "False", Reason: "R", Message: "m"}, true},
		{metav1.Condition{Type: "A", Status: "True", Reason: "S", Message: "m"}, true},
		{metav1.Condition{Type: "B", Status: "True", Reason: "R", Message: "m"}, true},
	} {
		if got := IsTurned(before, test.now); got != test.isTurned {
			t.Errorf("%+v: %v", test.now, got)
		}
	}
}

// An apply names all conditions of its manager, so that the API server removes the others that the manager has applied, and
// the UID, so that it does not touch a Cluster of the same name.
func TestApplyConditions(t *testing.T) {
	scheme, err := program.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	var sent string
	api := fake.NewClientBuilder().WithScheme(scheme).WithInterceptorFuncs(interceptor.Funcs{
		SubResourcePatch: func(_ context.Context, _ client.Client, part string, answer client.Object, patch client.Patch, options ...client.SubResourcePatchOption) error {
			data, err := patch.Data(answer)
			asked := (&client.SubResourcePatchOptions{}).ApplyOptions(options)
			sent = fmt.Sprintf("%s %s %s forced: %t %s", part, patch.Type(), asked.FieldManager, *asked.Force, data)
			answer.SetResourceVersion("2")
			return err
		},
	}).Build()
	cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "prod", UID: "1"}, Spec: clusterv1.ClusterSpec{Paused: new(true)}}
	for want, conditions := range map[string][]metav1.Condition{
		`[]`: nil,
		`[{"type":"A","status":"True","observedGeneration":3,"lastTransitionTime":"1970-01-01T00:00:01Z","reason":"R","message":""}]`: {
			{Type: "A", Status: "True", Reason: "R", ObservedGeneration: 3, LastTransitionTime: metav1.Unix(1, 0)},
		},
	} {
		answer, err := ApplyConditions(t.Context(), api, "manager", cluster, conditions)
		if err != nil || answer.ResourceVersion != "2" || answer.Spec.Paused != nil {
			t.Errorf("%v, %+v", err, answer)
		}
		want = `status application/apply-patch+yaml manager forced: true {"apiVersion":"cluster.x-k8s.io/v1beta2","kind":"Cluster","metadata":{"name":"prod","namespace":"team","uid":"1"},"status":{"conditions":` + want + `}}`
		if sent != want {
			t.Errorf("got  %s\nwant %s", sent, want)
		}
	}
}
