package audit

import (
	"context"
	"errors"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// server answers with pages of one Cluster each, and with an error for any other kind.
type server struct {
	pages   int
	problem error
	asked   []string
}

func (s *server) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	return s.problem
}

func (s *server) List(_ context.Context, list client.ObjectList, options ...client.ListOption) error {
	clusters, ok := list.(*clusterv1.ClusterList)
	if !ok {
		return s.problem
	}
	asked := (&client.ListOptions{}).ApplyOptions(options)
	s.asked = append(s.asked, strconv.FormatInt(asked.Limit, 10)+" "+asked.Continue)
	page, _ := strconv.Atoi(asked.Continue) // The first page has no token.
	clusters.Items = append(clusters.Items, *user("one-" + strconv.Itoa(page)))
	if page+1 < s.pages {
		clusters.Continue = strconv.Itoa(page + 1)
	}
	return nil
}

func TestReadPages(t *testing.T) {
	from := &server{pages: 3, problem: apierrors.NewForbidden(schema.GroupResource{}, "", nil)}
	state, err := Read(t.Context(), from)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, cluster := range state.Clusters {
		names = append(names, cluster.Name)
	}
	if diff := cmp.Diff([]string{"one-0", "one-1", "one-2"}, names); diff != "" {
		t.Errorf("Clusters (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"500 ", "500 1", "500 2"}, from.asked); diff != "" {
		t.Errorf("asked for (-want +got):\n%s", diff)
	}
	for _, kind := range []Kind{Configs, Namespaces, Classes, FleetClusters, Mappings, Webhook} {
		if state.Unread[kind] == "" {
			t.Errorf("%s could not be read, but is not noted", kind)
		}
	}
}

// Read must not treat an error as an empty answer.
func TestReadFails(t *testing.T) {
	for _, problem := range []error{errors.New("no answer"), apierrors.NewResourceExpired("too old")} {
		if _, err := Read(t.Context(), &server{problem: problem}); !errors.Is(err, problem) {
			t.Errorf("want %v, got %v", problem, err)
		}
	}
}
