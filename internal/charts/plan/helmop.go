package plan

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/stamp"
)

const (
	// HelmOpKind is the kind of HelmOps. A Bundle of this kind stands for one: Fleet makes of a
	// HelmOp the Bundle of the same name, without files, and agents download the chart.
	HelmOpKind = "HelmOp"

	// NudgeAnnotation on a HelmOp is when Fleet was last made to look at it again. Fleet looks when
	// a HelmOp changes, and not when its Bundle does.
	NudgeAnnotation = stamp.Domain + "/looked-at-again"

	// FormerAnnotation on a HelmOp names the Secrets with access that it named before, and that are to
	// be deleted once Fleet has followed.
	FormerAnnotation = stamp.Domain + "/former-access"

	// AccessLabel on a HelmOp, and what Fleet makes of it, is the digest of the Secret with access.
	AccessLabel = stamp.Domain + "/access-version"

	// ValuesDigestAnnotation on a Bundle or HelmOp is the digest of the Secret with values that it names.
	// Both digests have a key that only the program has.
	ValuesDigestAnnotation = stamp.Domain + "/values-digest"

	bundleKind = "Bundle"
)

// IsHelmOp reports whether a Bundle stands for a HelmOp.
func IsHelmOp(bundle *fleetv1.Bundle) bool { return bundle.Kind == HelmOpKind }

// Access is what it takes to reach a repository.
type Access struct {
	Username, Password string
	// Authorities are certificates in PEM.
	Authorities []byte
}

// data returns what Fleet reads of the Secret that a HelmOp names.
func (a *Access) data() map[string][]byte {
	data := map[string][]byte{}
	if a.Username != "" || a.Password != "" { // Fleet wants both or none.
		data["username"], data["password"] = []byte(a.Username), []byte(a.Password)
	}
	if len(a.Authorities) > 0 {
		data["cacerts"] = a.Authorities
	}
	return data
}

// NeedsAccess reports whether a repository is reached with something that is in Secrets.
func NeedsAccess(proxy *addonsv1.HelmChartProxy) bool {
	return proxy.Spec.Credentials != nil || proxy.Spec.TLSConfig != nil && proxy.Spec.TLSConfig.CASecretRef != nil
}

// isRegistry reports whether a repository is an OCI registry.
func isRegistry(repoURL string) bool { return strings.HasPrefix(repoURL, "oci://") }

// CheckAgent returns an error if Fleet cannot download a chart in a version that it may be.
func CheckAgent(repoURL, chart, version string) error {
	switch {
	case strings.HasSuffix(strings.ToLower(chart), ".tgz"):
		return errors.New("a name that ends in .tgz is a URL for Fleet")
	case isRegistry(repoURL) && strings.Contains(version, "+"):
		return fmt.Errorf("version %s has build metadata, and Fleet finds none such in an OCI registry", version)
	}
	return nil
}

// byAgents has the agents of the clusters download the chart of a Bundle.
func (in Input) byAgents(bundle *fleetv1.Bundle) {
	spec, helm := &in.Proxy.Spec, bundle.Spec.Helm
	bundle.Kind = HelmOpKind
	helm.Repo, helm.Chart, helm.Version = spec.RepoURL, spec.ChartName, in.Chart.Version
	if isRegistry(spec.RepoURL) {
		helm.Repo, helm.Chart = strings.TrimSuffix(spec.RepoURL, "/")+"/"+spec.ChartName, ""
	}
	options := &fleetv1.BundleHelmOptions{InsecureSkipTLSverify: spec.TLSConfig != nil && spec.TLSConfig.InsecureSkipTLSVerify}
	if NeedsAccess(in.Proxy) {
		options.SecretName = AccessName(in.Proxy, in.Namespace)
	}
	bundle.Spec.HelmOpOptions = options
}

// pin names the exact version in a target, which would otherwise get what Fleet believes of the
// HelmOp's: nothing, at first, which agents take for the latest.
func pin(target fleetv1.BundleTarget, version string) fleetv1.BundleTarget {
	if target.Helm == nil {
		target.Helm = &fleetv1.HelmOptions{}
	}
	target.Helm.Version = version
	return target
}

// sizeOfTarget returns how large a target becomes at most: Fleet repeats where the chart is in each.
func (in Input) sizeOfTarget() int {
	if in.Chart == nil || !in.Chart.Agent {
		return targetSize
	}
	const more = 64 // The names of the fields.
	return targetSize + len(in.Proxy.Spec.RepoURL) + len(in.Proxy.Spec.ChartName) + len(in.Chart.Version) + more
}

// HelmOpOf returns the HelmOp that a Bundle stands for.
func HelmOpOf(bundle *fleetv1.Bundle) *fleetv1.HelmOp {
	op := &fleetv1.HelmOp{
		TypeMeta:   metav1.TypeMeta{APIVersion: fleetv1.SchemeGroupVersion.String(), Kind: HelmOpKind},
		ObjectMeta: *bundle.ObjectMeta.DeepCopy(),
	}
	op.Spec.BundleSpec = *bundle.Spec.DeepCopy()
	op.Spec.HelmOpOptions = nil
	op.Spec.Labels = maps.Clone(bundle.Labels) // The Bundle gets them, and what Fleet makes of it.
	if options := bundle.Spec.HelmOpOptions; options != nil {
		op.Spec.HelmSecretName, op.Spec.InsecureSkipTLSverify = options.SecretName, options.InsecureSkipTLSverify
	}
	return op
}

// BundleFor returns the Bundle that stands for a HelmOp. They share what they hold.
func BundleFor(op *fleetv1.HelmOp) fleetv1.Bundle {
	bundle := fleetv1.Bundle{TypeMeta: metav1.TypeMeta{APIVersion: fleetv1.SchemeGroupVersion.String(), Kind: HelmOpKind}, ObjectMeta: op.ObjectMeta, Spec: op.Spec.BundleSpec}
	bundle.Spec.HelmOpOptions = &fleetv1.BundleHelmOptions{SecretName: op.Spec.HelmSecretName, InsecureSkipTLSverify: op.Spec.InsecureSkipTLSverify}
	return bundle
}

// MadeOf returns what Fleet makes of a HelmOp, once it knows the version.
func MadeOf(op *fleetv1.HelmOp) *fleetv1.BundleSpec {
	bundle := BundleFor(op)
	spec := bundle.Spec.DeepCopy()
	for _, target := range spec.Targets {
		if target.Helm == nil {
			continue
		}
		for _, its := range []struct{ to, from *string }{
			{&target.Helm.Repo, &spec.Helm.Repo}, {&target.Helm.Chart, &spec.Helm.Chart}, {&target.Helm.Version, &spec.Helm.Version},
		} {
			if *its.to == "" {
				*its.to = *its.from
			}
		}
	}
	return spec
}

// Follows reports how Fleet has taken a HelmOp over: whether its Bundle, nil if there is none, is
// what the HelmOp says, and why it does not accept it.
func Follows(op *fleetv1.HelmOp, bundle *fleetv1.Bundle) (follows bool, trouble string) {
	follows = isMadeOf(op, bundle)
	for _, condition := range op.Status.Conditions {
		if condition.Type == fleetv1.HelmOpAcceptedCondition && string(condition.Status) == string(metav1.ConditionFalse) {
			return follows, fmt.Sprintf("HelmOp %s: %s", op.Name, plain(condition.Message))
		}
	}
	return follows, ""
}

// IsTaken reports whether Fleet has worked with a Bundle as it is.
func IsTaken(bundle *fleetv1.Bundle) bool {
	return bundle.Status.ObservedGeneration == bundle.Generation
}

// NotTaken says that Fleet has not worked with a Bundle or HelmOp as it is.
func NotTaken(bundle *fleetv1.Bundle) string {
	kind := bundleKind
	if IsHelmOp(bundle) {
		kind = HelmOpKind
	}
	return fmt.Sprintf("Fleet has not taken %s %s over yet", kind, bundle.Name)
}

// isMadeOf compares a Bundle with the HelmOp that it is made of. What Fleet adds plays no part: the
// version that it believes in, for each target names its own; certificates; and, where the HelmOp
// names none, what a Policy of Fleet's does.
func isMadeOf(op *fleetv1.HelmOp, bundle *fleetv1.Bundle) bool {
	if bundle == nil || !bundle.DeletionTimestamp.IsZero() || bundle.Labels[fleetv1.HelmOpLabel] != op.Name {
		return false
	}
	want, have := MadeOf(op), bundle.Spec.DeepCopy()
	if have.Helm == nil || have.HelmOpOptions == nil {
		return false
	}
	want.Resources, have.Resources = nil, nil
	have.Helm.Version, have.HelmOpOptions.CABundle = want.Helm.Version, nil
	if want.ServiceAccount == "" {
		have.ServiceAccount = ""
	}
	if want.HelmOpOptions.SecretName == "" {
		have.HelmOpOptions.SecretName = ""
	}
	return bytes.Equal(inJSON(want), inJSON(have))
}

// inJSON returns a spec as JSON, where nothing and something empty are the same.
func inJSON(spec *fleetv1.BundleSpec) []byte {
	data, err := json.Marshal(spec)
	if err != nil { // It is a type of the API.
		panic(err)
	}
	return data
}

// SecretKind is the kind of Secrets that values are read from.
const SecretKind = "Secret"

const configMapKind = "ConfigMap"

// Shared are the values for all Clusters.
type Shared struct {
	// Data are the values by key; they are merged in the order of Keys.
	Data map[string][]byte
	Keys []string
	// Secret says that they are from a Secret.
	Secret bool
	// Kept says that they are to stay as they are; there are no Data.
	Kept bool
}

// NewShared returns no values.
func NewShared() *Shared { return &Shared{Data: map[string][]byte{}} }

// Add adds what spec.valuesFrom names at an index.
func (s *Shared) Add(index int, from addonsv1.ValuesReference, data []byte) error {
	if err := CheckValues(data); err != nil {
		return fmt.Errorf("spec.valuesFrom[%d]: %w", index, err)
	}
	s.add(fmt.Sprintf("%02d.yaml", index), data)
	s.Secret = s.Secret || from.Kind == SecretKind
	return nil
}

// With returns the values with those of a template that is the same for all Clusters; nil
// if there are none.
func (s *Shared) With(proxy *addonsv1.HelmChartProxy, template *Template) (*Shared, error) {
	if template.IsStatic() && proxy.Spec.ValuesTemplate != "" {
		values, err := template.Render(nil)
		if err != nil {
			return nil, fmt.Errorf("spec.valuesTemplate: %w", err)
		}
		s.add(ValuesKey, values)
	}
	if len(s.Keys) == 0 {
		return nil, nil
	}
	return s, nil
}

func (s *Shared) add(key string, data []byte) {
	s.Data[key], s.Keys = data, append(s.Keys, key)
}
