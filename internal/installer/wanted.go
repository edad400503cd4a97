package installer

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/Masterminds/semver/v3"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/stamp"
)

const (
	// AdoptAnnotation on the FleetAddonConfig hands over releases that another Helm client installed. Nothing else
	// does.
	AdoptAnnotation = "fleet.addons.cluster.x-k8s.io/adopt-fleet"
	// DefaultRepository is the repository of the Fleet project.
	DefaultRepository = "https://rancher.github.io/fleet-helm-charts"
	// FleetNamespace is the namespace of Fleet and its releases. Fleet's programs know no other.
	FleetNamespace = stamp.FleetSystem
)

// wanted holds the requests of a FleetAddonConfig.
type wanted struct {
	install *install
	server  *serverWanted
	gates   *gates
	// bootstrap says whether Fleet manages the management cluster too; nil leaves that as it is.
	bootstrap *bool
	adopt     bool
}

// install holds the request of spec.install: an exact version, a range (within), or, with neither, the newest
// release.
type install struct {
	exact  *semver.Version
	within *semver.Constraints
	text   string // what the user wrote
	// invalid says why the version is unusable; nil if it is usable. Admission refuses such a version.
	invalid *Problem

	repository string
	// secret has the credentials of the repository; its name is empty if there is none.
	secret types.NamespacedName
	// planOnly means that the installer only shows its next step.
	planOnly bool
}

// serverWanted holds the request of spec.config.server.
type serverWanted struct {
	infer bool
	url   string
	ca    *corev1.ObjectReference
}

// gates are the requested feature gates.
type gates struct {
	helmOps, ociStorage bool
	// configMap holds the values of a Fleet that Rancher installs; its name is empty if none is given.
	configMap types.NamespacedName
}

func wantedFrom(config *addonsv1.FleetAddonConfig) wanted {
	result := wanted{adopt: config.Annotations[AdoptAnnotation] == "true", install: installFrom(config.Spec.Install)}
	if fleet := config.Spec.Config; fleet != nil {
		result.bootstrap = fleet.BootstrapLocalCluster
		result.gates = gatesFrom(fleet.FeatureGates)
		result.server = serverFrom(fleet.Server)
	}
	return result
}

func (w *wanted) isNothing() bool {
	return w.install == nil && !w.asksForSettings()
}

func (w *wanted) serverWanted() bool { return w.server != nil }

func (w *wanted) asksForSettings() bool {
	return w.serverWanted() || w.gates != nil || w.bootstrap != nil
}

// gatesIn is the ConfigMap that the user names for the feature gates; its name is empty if there is none.
func (w *wanted) gatesIn() types.NamespacedName {
	if w.gates == nil {
		return types.NamespacedName{}
	}
	return w.gates.configMap
}

func installFrom(spec *addonsv1.FleetInstall) *install {
	if spec == nil || spec.Version == nil && !ptr.Deref(spec.FollowLatest, false) {
		return nil
	}
	result := &install{
		text:       strings.TrimSpace(ptr.Deref(spec.Version, "")),
		repository: strings.TrimSuffix(cmp.Or(ptr.Deref(spec.Repository, ""), DefaultRepository), "/"),
		planOnly:   spec.Mode == addonsv1.InstallPlan,
	}
	if ref := spec.RepositorySecretRef; ref != nil {
		result.secret = types.NamespacedName{Namespace: cmp.Or(ref.Namespace, FleetNamespace), Name: ref.Name}
	}
	if spec.Version == nil {
		return result
	}
	exact, err := semver.StrictNewVersion(strings.TrimPrefix(result.text, "v"))
	if err == nil {
		result.exact = exact
		return result
	}
	if result.within, err = semver.NewConstraint(result.text); err != nil {
		result.invalid = &Problem{addonsv1.VersionInvalidReason, fmt.Sprintf("spec.install.version: %q is neither a version nor a range: %v", result.text, err)}
	}
	return result
}

func serverFrom(spec *addonsv1.Server) *serverWanted {
	if spec == nil {
		return nil
	}
	if spec.InferLocal != nil {
		if !*spec.InferLocal {
			return nil
		}
		return &serverWanted{infer: true}
	}
	custom := spec.CustomServer
	if spec.Custom != nil {
		custom = *spec.Custom
	}
	if custom.APIServerURL == nil && custom.APIServerCAConfigRef == nil {
		return nil
	}
	return &serverWanted{url: ptr.Deref(custom.APIServerURL, ""), ca: custom.APIServerCAConfigRef}
}

func gatesFrom(spec *addonsv1.FeatureGates) *gates {
	if spec == nil {
		return nil
	}
	result := &gates{helmOps: ptr.Deref(spec.ExperimentalHelmOps, true), ociStorage: ptr.Deref(spec.ExperimentalOCIStorage, true)}
	if spec.ConfigMap != nil && spec.ConfigMap.Ref != nil {
		result.configMap = types.NamespacedName{Namespace: spec.ConfigMap.Ref.Namespace, Name: spec.ConfigMap.Ref.Name}
	}
	return result
}
