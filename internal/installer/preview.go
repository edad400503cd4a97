package installer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/structured-merge-diff/v6/typed"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/authority"
)

// Previewed lists the changes that the installer would make.
type Previewed struct {
	// Releases are the Helm releases that it would install or upgrade, in this order.
	Releases []PreviewedRelease `json:"releases"`
	// Next is the next step, if its outcome cannot be predicted.
	Next string `json:"next,omitempty"`
	// Conditions are what the FleetAddonConfig would report once no step is left.
	Conditions []metav1.Condition `json:"conditions"`
}

// PreviewedRelease is a Helm release that the installer would install or upgrade.
type PreviewedRelease struct {
	Name string `json:"name"`
	// From is the deployed version; empty if there is none.
	From string `json:"from,omitempty"`
	To   string `json:"to"`
	// Changes has a line for each object that differs.
	Changes []string `json:"changes"`
}

// Write writes the preview as text.
func (p *Previewed) Write(to io.Writer) error {
	out := &strings.Builder{}
	if len(p.Releases) == 0 && p.Next == "" {
		out.WriteString("nothing would change: no Helm release of Fleet would be installed or upgraded\n")
	}
	for _, release := range p.Releases {
		fmt.Fprintf(out, "Helm release %s %s:\n", release.Name, release.movement())
		for _, line := range release.Changes {
			fmt.Fprintf(out, "  %s\n", line)
		}
	}
	if p.Next != "" {
		fmt.Fprintf(out, "would %s\n", p.Next)
	}
	for _, condition := range p.Conditions {
		fmt.Fprintf(out, "%s would be %s, %s: %s\n", condition.Type, condition.Status, condition.Reason, condition.Message)
	}
	_, err := io.WriteString(to, out.String())
	return err
}

func (r *PreviewedRelease) movement() string {
	switch r.From {
	case "":
		return "would be installed at " + r.To
	case r.To:
		return "would stay at " + r.To
	default:
		return fmt.Sprintf("would be upgraded from %s to %s", r.From, r.To)
	}
}

// Preview returns the changes that the installer would make for a FleetAddonConfig, object by
// object, and makes none: it plans step after step, as if each had been taken. With an error it returns the changes
// that come before it.
func Preview(ctx context.Context, cluster client.Client, releases Releases, repository OpenRepository, config *addonsv1.FleetAddonConfig) (*Previewed, error) {
	p := &Previewed{Releases: []PreviewedRelease{}, Conditions: []metav1.Condition{}}
	r := newReconciler(cluster, cluster, defaults, "", releases, repository)
	r.rootCA = func(ctx context.Context) (string, error) { // The one that pods get: a person has no ServiceAccount.
		root := &corev1.ConfigMap{}
		_, err := read(ctx, cluster, types.NamespacedName{Namespace: metav1.NamespaceSystem, Name: "kube-root-ca.crt"}, root)
		return root.Data[authority.Key], err
	}
	s := newState(config)
	if err := r.observe(ctx, s); err != nil {
		return p, err
	}
	if s.install != nil {
		if s.install.invalid != nil {
			return p, s.install.invalid
		}
		s.install.planOnly = false
	}
	for range mostSteps {
		next := s.next()
		var err error
		switch next.step {
		case rest:
			for _, condition := range []*metav1.Condition{next.installed, next.configured} {
				if condition != nil {
					p.Conditions = append(p.Conditions, *condition)
				}
			}
			return p, nil
		case ask:
			err = r.lookUp(ctx, s.install)
		case putCRDs:
			err = p.put(ctx, r, s, &next, &s.crds)
		case putFleet:
			err = p.put(ctx, r, s, &next, &s.fleet)
		case freeCRDs, freeFleet:
			err = fmt.Errorf("the next step would be to %s, which was left half done; what follows cannot be predicted", next.step)
		default:
			p.Next = string(next.step)
			return p, nil
		}
		if err != nil {
			return p, err
		}
	}
	return p, fmt.Errorf("not done after %d steps", mostSteps)
}

// put finds the changes that a release would bring, and continues as if it had been deployed.
func (p *Previewed) put(ctx context.Context, r *reconciler, s *state, next *plan, release **Release) error {
	order := r.order(s, next)
	order.DryRun = true
	if next.version != nil {
		var err error
		if order.Archive, err = r.archive(ctx, s, next); err != nil {
			return err
		}
	}
	was, becomes, err := r.releases.Put(ctx, order)
	if err != nil {
		return err
	}
	change, goes := PreviewedRelease{Name: order.Name}, next.version
	if had := *release; had != nil {
		change.From = had.Version.String()
		goes = cmp.Or(goes, had.Deployed, had.Version) // A first release that failed is deployed again.
	}
	change.To = goes.String()
	if change.Changes, err = difference(was, becomes); err != nil {
		return err
	}
	p.Releases = append(p.Releases, change)
	*release = &Release{Version: goes, Deployed: goes, AppVersion: goes.String(), Status: StatusDeployed, MadeBy: "preview", Values: next.values}
	return nil
}

// difference returns a line for each object that differs between two manifests.
func difference(was, becomes string) ([]string, error) {
	before, err := byName(was)
	if err != nil {
		return nil, err
	}
	after, err := byName(becomes)
	if err != nil {
		return nil, err
	}
	lines := []string{}
	for _, name := range sets.List(sets.KeySet(before).Union(sets.KeySet(after))) {
		switch old, object := before[name], after[name]; {
		case old == nil:
			lines = append(lines, "+ "+name)
		case object == nil:
			lines = append(lines, "- "+name)
		default:
			fields, err := old.Compare(object)
			if err != nil {
				return nil, fmt.Errorf("comparing %s: %w", name, err)
			}
			if !fields.IsSame() {
				paths := fields.Added.Union(fields.Modified).Union(fields.Removed).Leaves().String()
				lines = append(lines, "~ "+name+": "+strings.ReplaceAll(paths, "\n", ", "))
			}
		}
	}
	return lines, nil
}

// byName returns the objects of a manifest by kind and name.
func byName(manifest string) (map[string]*typed.TypedValue, error) {
	objects, err := Objects(strings.NewReader(manifest))
	if err != nil {
		return nil, err
	}
	result := map[string]*typed.TypedValue{}
	for _, object := range objects {
		if result[object.GetKind()+" "+object.GetName()], err = typed.DeducedParseableType.FromUnstructured(object.Object); err != nil {
			return nil, err
		}
	}
	return result, nil
}

// Objects returns the objects of a manifest.
func Objects(manifest io.Reader) (result []*unstructured.Unstructured, _ error) {
	decoder := utilyaml.NewYAMLOrJSONDecoder(manifest, 4096)
	for {
		object := &unstructured.Unstructured{}
		if err := decoder.Decode(object); errors.Is(err, io.EOF) {
			return result, nil
		} else if err != nil {
			return nil, fmt.Errorf("reading a manifest: %w", err)
		}
		if len(object.Object) > 0 {
			result = append(result, object)
		}
	}
}
