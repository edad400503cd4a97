// Command fleet asks Fleet's own code which Clusters a Bundle is for. The test builds it as
// part of a module below Fleet's, so that it may import what is internal to Fleet. For each
// case on standard input, a JSON object with lists of Kubernetes objects, it prints one answer.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/go-logr/logr"
	"github.com/rancher/fleet/internal/cmd/controller/target"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

type question struct {
	Bundle     fleetv1.Bundle
	Clusters   []fleetv1.Cluster
	Groups     []fleetv1.ClusterGroup
	Mappings   []fleetv1.BundleNamespaceMapping
	Namespaces []corev1.Namespace
	// States are the numbers of package rollout for how far each Cluster is with an upgrade.
	States []int
}

type answer struct {
	// Targets are the Clusters that the Bundle is for, Error why it is for none.
	Targets []string
	Error   string
	// Moved are the Clusters that have the new version after a step of its rollout, RolloutError why there is none.
	Moved        []string
	RolloutError string
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	log.SetLogger(logr.Discard())
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), fleetv1.AddToScheme(scheme)); err != nil {
		return err
	}
	questions, answers := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		var q question
		if err := questions.Decode(&q); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if err := answers.Encode(ask(scheme, &q)); err != nil {
			return err
		}
	}
}

func ask(scheme *runtime.Scheme, q *question) answer {
	c := fake.NewClientBuilder().WithScheme(scheme).WithLists(
		&fleetv1.ClusterList{Items: q.Clusters}, &fleetv1.ClusterGroupList{Items: q.Groups},
		&fleetv1.BundleNamespaceMappingList{Items: q.Mappings}, &corev1.NamespaceList{Items: q.Namespaces},
	).Build()
	targets, _, err := target.New(c, c).Targets(context.Background(), &q.Bundle, "manifest")
	if err != nil {
		return answer{Error: err.Error()}
	}
	result := answer{Targets: []string{}, Moved: []string{}}
	for _, t := range targets {
		result.Targets = append(result.Targets, t.Cluster.Namespace+"/"+t.Cluster.Name)
	}
	if err := step(q, targets); err != nil {
		result.RolloutError = err.Error()
		return result
	}
	for _, t := range targets {
		if t.Deployment != nil && t.Deployment.Spec.DeploymentID == t.DeploymentID {
			result.Moved = append(result.Moved, t.Cluster.Namespace+"/"+t.Cluster.Name)
		}
	}
	return result
}

// step has Fleet look at the Bundle once, as its reconciler does.
func step(q *question, targets []*target.Target) error {
	states := map[string]int{}
	for i := range q.States {
		states[q.Clusters[i].Namespace+"/"+q.Clusters[i].Name] = q.States[i]
	}
	for _, t := range targets {
		state, known := states[t.Cluster.Namespace+"/"+t.Cluster.Name]
		if !known {
			continue // It is new.
		}
		id := "old"
		if isMoved := state >= 2; isMoved {
			id = t.DeploymentID
		}
		t.Deployment = &fleetv1.BundleDeployment{}
		t.Deployment.Spec.DeploymentID, t.Deployment.Spec.StagedDeploymentID, t.Deployment.Status.AppliedDeploymentID = id, id, id
		if isReady := state == 0 || state == 3; isReady {
			t.Deployment.Status.Ready = true
		} else if len(t.Cluster.Name)%2 == 0 {
			t.Deployment.Status.AppliedDeploymentID = "older" // Not applied and not ready are the same to Fleet.
			t.Deployment.Status.Ready = true
		}
	}
	status := &fleetv1.BundleStatus{Unavailable: target.Unavailable(targets)}
	var err error
	if status.MaxUnavailable, err = target.MaxUnavailable(targets); err != nil {
		return err
	}
	return target.UpdatePartitions(status, targets)
}
