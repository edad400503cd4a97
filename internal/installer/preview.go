package installer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
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
// object, and makes none. With an error it returns the changes that come before it.
func Preview(ctx context.Context, cluster client.Client, releases Releases, repository OpenRepository, config *addonsv1.FleetAddonConfig) (*Previewed, error) {
	p := &Previewed{Releases: []PreviewedRelease{}, Conditions: []metav1.Condition{}}
	r := newReconciler(cluster, cluster, Options{LookupInterval: time.Hour, HelmTimeout: time.Minute}, "", releases, repository)
	r.rootCA = publicAuthority(cluster)
	s, err := r.observe(ctx, config)
	if err != nil {
		return p, err
	}
	if s.install != nil {
		if s.install.invalid != nil {
			return p, s.install.invalid
		}
		s.install.planOnly = false
	}
	return p, p.walk(ctx, r, s)
}

// walk plans step after step, as if each had been taken.
func (p *Previewed) walk(ctx context.Context, r *reconciler, s *state) error {
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
			return nil
		case ask:
			err = r.lookUp(ctx, s)
			s.offered = r.looked.offered
		case putCRDs:
			err = p.put(ctx, r, s, &next, &s.crds)
		case putFleet:
			err = p.put(ctx, r, s, &next, &s.fleet)
		case freeCRDs, freeFleet:
			return fmt.Errorf("the next step would be to %s, which was left half done; what follows cannot be predicted", next.step)
		default:
			p.Next = string(next.step)
			return nil
		}
		if err != nil {
			return err
		}
	}
	return fmt.Errorf("not done after %d steps", mostSteps)
}

// put finds the changes that a release would bring, and continues as if it had been deployed.
func (p *Previewed) put(ctx context.Context, r *reconciler, s *state, next *plan, release **Release) error {
	order := r.order(s, next)
	order.DryRun = true
	goes := cmp.Or(next.version, s.current())
	if goes == nil { // A first release that failed is deployed again.
		goes = s.fleet.Version
	}
	if next.version != nil {
		var err error
		if order.Archive, err = r.archive(ctx, s, next); err != nil {
			return err
		}
	}
	was, err := r.releases.Manifest(ctx, order.Name)
	if err != nil {
		return err
	}
	becomes, err := r.releases.Put(ctx, order)
	if err != nil {
		return err
	}
	change := PreviewedRelease{Name: order.Name, To: goes.String()}
	if *release != nil {
		change.From = (*release).Version.String()
	}
	if change.Changes, err = difference(was, becomes); err != nil {
		return err
	}
	p.Releases = append(p.Releases, change)
	*release = &Release{Version: goes, Deployed: goes, AppVersion: goes.String(), Status: StatusDeployed, MadeBy: "preview", Values: next.values}
	return nil
}

// difference returns a line for each object that differs between two manifests.
func difference(was, becomes string) ([]string, error) {
	before, err := objects(was)
	if err != nil {
		return nil, err
	}
	after, err := objects(becomes)
	if err != nil {
		return nil, err
	}
	lines := []string{}
	names := maps.Clone(before)
	maps.Copy(names, after)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		switch old, object := before[name], after[name]; {
		case old == nil:
			lines = append(lines, "+ "+name)
		case object == nil:
			lines = append(lines, "- "+name)
		case !reflect.DeepEqual(old, object):
			lines = append(lines, "~ "+name+": "+strings.Join(differing("", old, object), ", "))
		}
	}
	return lines, nil
}

// objects returns the objects of a manifest by kind and name.
func objects(manifest string) (map[string]map[string]any, error) {
	result := map[string]map[string]any{}
	decoder := utilyaml.NewYAMLOrJSONDecoder(strings.NewReader(manifest), 4096)
	for {
		object := &unstructured.Unstructured{}
		if err := decoder.Decode(object); errors.Is(err, io.EOF) {
			return result, nil
		} else if err != nil {
			return nil, fmt.Errorf("reading a manifest: %w", err)
		}
		if len(object.Object) > 0 {
			result[object.GetKind()+" "+object.GetName()] = object.Object
		}
	}
}

// differing returns the paths at which two objects differ, at most three keys deep.
func differing(path string, a, b map[string]any) []string {
	const depth = 3
	var paths []string
	keys := maps.Clone(a)
	maps.Copy(keys, b)
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		if reflect.DeepEqual(a[key], b[key]) {
			continue
		}
		below, isMap := a[key].(map[string]any)
		other, isOther := b[key].(map[string]any)
		if at := path + "." + key; isMap && isOther && strings.Count(at, ".") < depth {
			paths = append(paths, differing(at, below, other)...)
		} else {
			paths = append(paths, at)
		}
	}
	return paths
}
