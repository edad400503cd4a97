package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/program"
	"github.com/muster-fleet/muster/internal/view/source"
)

// forbidding is an API server for a user who has rights only in one namespace, and may not read Fleet's
// configuration.
type forbidding struct {
	client.Reader
	hidden func(list client.ObjectList) bool
}

func (f forbidding) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	if f.hidden(list) {
		return apierrors.NewForbidden(schema.GroupResource{}, "", nil)
	}
	return f.Reader.List(ctx, list, options...)
}

// still has the clock of the file.
func (f forbidding) Now() time.Time { return noon }

// through runs a command whose file reader is wrapped, and returns the output and the error as one text.
func through(t *testing.T, between func(client.Reader) client.Reader, args ...string) string {
	t.Helper()
	var out bytes.Buffer
	o := newOptions(genericiooptions.IOStreams{In: strings.NewReader(""), Out: &out, ErrOut: &out})
	o.through = between
	root := newRoot(o)
	root.SetArgs(args)
	if err := root.ExecuteContext(t.Context()); err != nil {
		return out.String() + "error: " + err.Error() + "\n"
	}
	return out.String()
}

// TestRightsMissing compares the output for a user who may not read all objects. It shows the objects that the
// user may read, and a line for each other kind.
func TestRightsMissing(t *testing.T) {
	file := stateFile(t, "cross-namespace")
	for name, hidden := range map[string]func(client.ObjectList) bool{
		"no-mappings":       func(list client.ObjectList) bool { _, is := list.(*fleetv1.BundleNamespaceMappingList); return is },
		"no-fleet-clusters": func(list client.ObjectList) bool { _, is := list.(*fleetv1.ClusterList); return is },
		"no-config-no-groups": func(list client.ObjectList) bool {
			_, isConfig := list.(*addonsv1.FleetAddonConfigList)
			_, isGroup := list.(*fleetv1.ClusterGroupList)
			return isConfig || isGroup
		},
		"nothing": func(client.ObjectList) bool { return true },
	} {
		t.Run(name, func(t *testing.T) {
			run := func(args ...string) string {
				return through(t, func(reader client.Reader) client.Reader { return forbidding{reader, hidden} }, append(args, "-f", file)...)
			}
			var a archive
			a.addOutputs(run, [2]string{"classes/cni", "team-a/prod"}, formats)
			a.add("check", run("check"))
			a.add("check a Cluster that does not exist", run("check", "team-a/typo"))
			a.add("tree of a Cluster that does not exist", run("tree", "team-a/typo"))
			a.golden(t, "rights-"+name)
		})
	}
}

// TestTenThousand compares the output for many Clusters.
func TestTenThousand(t *testing.T) {
	w := newWorld()
	for i := range 10_000 {
		_, fleet := w.cluster("team-a", fmt.Sprintf("c%04d", i), standard)
		switch i {
		case 17, 4711:
			troubled(fleet, fleetv1.ErrApplied, "ErrApplied(1) [Bundle cni]")
		case 9999:
			fleet.Status.Agent.LastSeen = metav1.Time{}
		}
	}
	// Groups and mappings were added with each.
	seen := map[string]bool{}
	w.bundle("cni")
	var objects []client.Object
	for _, object := range w.objects {
		key := fmt.Sprintf("%T %s/%s", object, object.GetNamespace(), object.GetName())
		if !seen[key] {
			objects = append(objects, object)
		}
		seen[key] = true
	}
	file := filepath.Join(t.TempDir(), "all.yaml")
	if err := os.WriteFile(file, recorded(t, objects), 0o600); err != nil {
		t.Fatal(err)
	}
	scheme, err := program.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	once, err := source.Open(scheme, []string{file}, nil) // Reading that much YAML takes seconds, so it is done once.
	if err != nil {
		t.Fatal(err)
	}
	small := stateFile(t, "healthy")
	run := func(args ...string) string {
		return through(t, func(client.Reader) client.Reader { return once }, append(args, "-f", small)...)
	}
	var a archive
	a.add("tree.tree", run("tree", "--bundles"))
	a.add("tree.problems", run("tree", "--problems"))
	a.add("tree.mermaid", run("tree", "-o", "mermaid"))
	a.add("trace.tree", run("trace", "cni", "c4711"))
	a.golden(t, "ten-thousand")
	// The output for programs has megabytes, because nothing is folded.
	if got := strings.Count(run("tree", "-o", "json"), `"kind": "Cluster"`); got != 10_000 {
		t.Errorf("JSON has %d Clusters", got)
	}
}
