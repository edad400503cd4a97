package random

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/test/oracle"
	"github.com/muster-fleet/muster/test/oracle/wire"
	"github.com/muster-fleet/muster/test/revision"
	"github.com/muster-fleet/muster/test/stack"
)

// judge says what one revision of Muster has to make of a state.
type judge interface {
	Settle(oracle.State) oracle.State
	Admitted(oracle.State, *clusterv1.Cluster) *clusterv1.Cluster
}

// ownJudge is package oracle of this work tree.
type ownJudge struct{}

func (ownJudge) Settle(s oracle.State) oracle.State { return oracle.Settle(s) }
func (ownJudge) Admitted(s oracle.State, requested *clusterv1.Cluster) *clusterv1.Cluster {
	return oracle.Admitted(s, requested)
}

// muster is one revision of Muster, with the oracle of its time.
type muster struct {
	judge
	name      string
	manifests string
	binaries  map[string]string
}

var (
	present = &muster{judge: ownJudge{}, name: "new"}
	// former is what is upgraded from, nil where nothing is.
	former *muster
	// installed is whose manifests were applied last, and the others are whose programs run:
	// one that is started is that of the manifests.
	installed, stamping, syncing = present, present, present
)

// takeFormer builds a revision of the history and its oracle, and makes it what is installed.
func takeFormer(name string, options *stack.Options) (*wire.Judge, error) {
	r, err := revision.Build(ctx, name)
	if err != nil {
		return nil, err
	}
	root, err := stack.RepoRoot()
	if err != nil {
		return nil, err
	}
	// A revision may have them already: ours are what the two of us speak.
	for _, file := range []string{"test/oracle/wire/wire.go", "test/cmd/oracle/main.go"} {
		content, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			return nil, err
		}
		if err := os.RemoveAll(filepath.Dir(filepath.Join(r.Dir, file))); err != nil {
			return nil, err
		}
		if err := os.MkdirAll(filepath.Dir(filepath.Join(r.Dir, file)), 0o755); err != nil {
			return nil, err
		}
		if err := os.WriteFile(filepath.Join(r.Dir, file), content, 0o600); err != nil {
			return nil, err
		}
	}
	program, err := r.Program(ctx, "./test/cmd/oracle")
	if err != nil {
		return nil, err
	}
	judge, err := wire.Start(program)
	if err != nil {
		return nil, err
	}
	former = &muster{judge: judge, name: "old", manifests: r.Manifests(), binaries: r.Binaries}
	installed, stamping, syncing = former, former, former
	options.Manifests, options.Binaries = former.manifests, former.binaries
	return judge, nil
}

// isSkewed: not all that runs is of one revision.
func isSkewed() bool { return installed != stamping || installed != syncing }

// oldIsThere: the former revision has a say.
func oldIsThere() bool {
	return former != nil && (installed == former || stamping == former || syncing == former)
}

// revisionOperations happen in no run but those of TestUpgrade, at its bidding.
var revisionOperations = []operation{
	{name: "Apply", draw: nothing, do: applyRevision},
	{name: "RestartWebhook", draw: nothing, do: func(r *run, _ Step) (bool, error) {
		if stamping == installed {
			return false, nil
		}
		if err := env.Stop(ctx, webhookProcess); err != nil {
			return false, err
		}
		r.webhookUp = false
		return true, r.startWebhook()
	}},
	{name: "RestartSyncer", draw: nothing, do: func(r *run, step Step) (bool, error) {
		if syncing == installed {
			return false, nil
		}
		end := env.Stop
		if step.Kind == "Kill" {
			end = env.Kill
		}
		if _, err := r.stopSyncer(end); err != nil {
			return false, err
		}
		// What the former one opened is its own affair.
		if _, err := r.audit.Read(stack.AuditFilter{}); err != nil {
			return false, err
		}
		return true, r.startSyncer()
	}, racy: func(r *run, _ Step) bool {
		// Where they differ on purpose, the one goes on from what the other has made.
		differ := oracle.View(former.Settle(r.state)) != oracle.View(present.Settle(r.state))
		if differ {
			r.differed++
		}
		return differ
	}},
}

// applyRevision applies the manifests of the other revision. What runs goes on running.
func applyRevision(r *run, step Step) (bool, error) {
	to := map[string]*muster{"old": former, "new": present}[step.Value]
	if to == nil || to == installed || isSkewed() {
		return false, nil
	}
	if err := r.startSyncer(); err != nil {
		return false, err
	}
	if err := r.startWebhook(); err != nil {
		return false, err
	}
	if err := env.UseMuster(ctx, to.manifests, to.binaries); err != nil {
		return false, err
	}
	installed = to
	return true, r.sameDefinition()
}

// sameDefinition checks that the CRD has one version and no conversion, under whichever
// revision, and that it took nothing from the FleetAddonConfig.
func (r *run) sameDefinition() error {
	const crd = "fleetaddonconfigs.addons.cluster.x-k8s.io"
	seen, err := env.Kubectl(ctx, "get", "crd", crd, "-o", "jsonpath={.spec.versions[*].name} {.status.storedVersions[*]} {.spec.conversion.strategy}")
	if err != nil {
		return err
	}
	if want := "v1alpha1 v1alpha1 None"; seen != want {
		return &oracleError{fmt.Sprintf("versions, stored versions and conversion of the CRD are %q, not %q", seen, want)}
	}
	if r.state.Config == nil {
		return nil
	}
	config := r.state.Config.DeepCopy()
	if err := admin.Get(ctx, client.ObjectKeyFromObject(config), config); err != nil {
		return err
	}
	if diff := oracle.Diff(asYAML(known(r.state.Config)), asYAML(known(config))); diff != "" || config.UID != r.state.Config.UID {
		return &oracleError{"the FleetAddonConfig is not what it was:\n" + diff}
	}
	return nil
}

// known is what the CRDs of both revisions know of a FleetAddonConfig. The newer one has a
// field with a default, which comes and goes with it.
func known(config *addonsv1.FleetAddonConfig) addonsv1.FleetAddonConfigSpec {
	spec := *config.Spec.DeepCopy()
	if spec.Cluster != nil {
		spec.Cluster.AgentInitiated = nil
	}
	return spec
}

// bothKnow: the oracles of both revisions know what a step is about.
func bothKnow(step Step) bool {
	switch step.Op {
	case "CreateCluster":
		return step.Kind != "Calls"
	case "SetConfig":
		return step.Config.Cluster == nil || step.Config.Cluster.AgentInitiated == nil
	case "StopGC", "StartGC", "CreateDisplacing", "DeleteDisplacing":
		return false
	case "DropPin":
		return step.Value != "taken"
	case "ForeignLabel":
		switch step.Key {
		case oracle.Others + "a", managedByLabel, nameLabel, namespaceLabel, "env", "tier":
		default:
			return false
		}
	}
	for _, operation := range slices.Concat(tenantOperations, callingOperations, registrarOperations, chartsOperations, carriedOperations) {
		if operation.name == step.Op {
			return false
		}
	}
	return true
}
