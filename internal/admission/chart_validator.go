package admission

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation/field"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/fleetpolicy"
	"github.com/muster-fleet/muster/internal/helm/plan"
	"github.com/muster-fleet/muster/internal/helm/templates"
	"github.com/muster-fleet/muster/internal/manifests"
)

// ChartValidator is the validating webhook for HelmChartProxies. Its zero value looks at the HelmChartProxy alone
// and does not check the author's permissions.
type ChartValidator struct {
	// Reviewer creates SubjectAccessReviews.
	Reviewer client.Client
}

var _ admission.Validator[*addonsv1.HelmChartProxy] = ChartValidator{}

// ValidateCreate refuses a HelmChartProxy that cannot be deployed.
func (v ChartValidator) ValidateCreate(ctx context.Context, proxy *addonsv1.HelmChartProxy) (admission.Warnings, error) {
	return v.validate(ctx, &addonsv1.HelmChartProxy{}, proxy, plan.Validate(proxy))
}

// ValidateUpdate refuses errors that an update introduces, and changes of immutable fields.
func (v ChartValidator) ValidateUpdate(ctx context.Context, old, proxy *addonsv1.HelmChartProxy) (admission.Warnings, error) {
	return v.validate(ctx, old, proxy, append(plan.ValidateUpdate(old, proxy), introduced(plan.Validate(old), plan.Validate(proxy))...))
}

// ValidateDelete allows every deletion.
func (v ChartValidator) ValidateDelete(context.Context, *addonsv1.HelmChartProxy) (admission.Warnings, error) {
	return nil, nil
}

func (v ChartValidator) validate(ctx context.Context, old, proxy *addonsv1.HelmChartProxy, errs field.ErrorList) (admission.Warnings, error) {
	if v.Reviewer != nil && !reflect.DeepEqual(old.Spec, proxy.Spec) {
		req, err := admission.RequestFromContext(ctx)
		if err != nil {
			return nil, apierrors.NewInternalError(err)
		}
		refused, err := v.mayName(ctx, req.UserInfo, proxy)
		if err != nil {
			return nil, apierrors.NewInternalError(err)
		}
		errs = append(errs, refused...)
	}
	waiting, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	template, ofTemplate, err := templates.Examine(waiting, proxy)
	if proxy.Spec.ValuesTemplate != old.Spec.ValuesTemplate {
		if err != nil {
			return nil, apierrors.NewTooManyRequests(errBusy.Error(), retrySeconds)
		}
		errs = append(errs, ofTemplate...)
	}
	return slices.Concat(plan.Warnings(proxy), template.Warnings), invalid("HelmChartProxy", proxy, errs)
}

// mayName checks that the author may read the Secrets and ConfigMaps that the HelmChartProxy delivers, and may
// deploy to the namespaces that it selects. When the spec changes, it checks all references again, even unchanged
// ones: the same Secret may now go elsewhere.
func (v ChartValidator) mayName(ctx context.Context, user authenticationv1.UserInfo, proxy *addonsv1.HelmChartProxy) (field.ErrorList, error) {
	var errs field.ErrorList
	for _, named := range namedBy(proxy) {
		allowed, err := mayDo(ctx, v.Reviewer, user, authorizationv1.ResourceAttributes{
			Verb: "get", Version: "v1", Resource: named.resource, Namespace: named.namespace, Name: named.name,
		})
		if err != nil {
			return nil, err
		}
		if !allowed {
			errs = append(errs, field.Forbidden(named.path, fmt.Sprintf("user %q may not get %s %q in namespace %q; name one that you may read, or ask for a Role there with verb get on resource %[2]s",
				user.Username, named.resource, named.name, named.namespace)))
		}
	}
	if proxy.Spec.NamespaceSelector == nil {
		return errs, nil
	}
	allowed, err := mayDo(ctx, v.Reviewer, user, authorizationv1.ResourceAttributes{
		Verb: "create", Group: addonsv1.GroupVersion.Group, Version: addonsv1.GroupVersion.Version, Resource: "helmchartproxies",
	})
	if err != nil {
		return nil, err
	}
	if !allowed {
		errs = append(errs, field.Forbidden(field.NewPath("spec", "namespaceSelector"), fmt.Sprintf(
			"user %q may not create helmchartproxies in all namespaces, and this one would deploy to Clusters of other namespaces; remove the field, or ask for a ClusterRole with verb create on resource helmchartproxies", user.Username)))
	}
	return errs, nil
}

type named struct {
	path                      *field.Path
	resource, namespace, name string
}

func namedBy(proxy *addonsv1.HelmChartProxy) []named {
	spec, path := &proxy.Spec, field.NewPath("spec")
	var all []named
	secret := func(path *field.Path, ref corev1.SecretReference) {
		if ref.Name != "" {
			all = append(all, named{path, "secrets", cmp.Or(ref.Namespace, proxy.Namespace), ref.Name})
		}
	}
	if spec.Credentials != nil {
		secret(path.Child("credentials", "secret"), spec.Credentials.Secret)
	}
	if spec.TLSConfig != nil && spec.TLSConfig.CASecretRef != nil {
		secret(path.Child("tlsConfig", "caSecret"), *spec.TLSConfig.CASecretRef)
	}
	for i, from := range spec.ValuesFrom {
		resource := "configmaps"
		if from.Kind == "Secret" {
			resource = "secrets"
		}
		all = append(all, named{path.Child("valuesFrom").Index(i), resource, proxy.Namespace, from.Name})
	}
	return all
}

// checkChart finds what the webhooks would say about a HelmChartProxy. `kubectl muster render` shows the result of
// its template for each Cluster.
func (c *checker) checkChart(ctx context.Context, about Finding, from *manifests.Object) error {
	proxy := &addonsv1.HelmChartProxy{}
	broken, ok, err := c.decode(ctx, about, from, proxy)
	if !ok {
		return err
	}
	template, errs, err := templates.Examine(ctx, proxy)
	if err != nil {
		return err
	}
	proxy.Namespace = about.Namespace
	c.charts = append(c.charts, manifest[*addonsv1.HelmChartProxy]{Finding: about, object: proxy})
	c.findBroken(about, append(plan.Validate(proxy), errs...), broken)
	for _, warning := range slices.Concat(plan.Warnings(proxy), template.Warnings) {
		c.find(about, SeverityWarning, "", warning)
	}
	return nil
}

// checkReleases warns about HelmChartProxies that ask for one release on a Cluster of the manifests.
func (c *checker) checkReleases() {
	ofRelease := map[string][]manifest[*addonsv1.HelmChartProxy]{}
	for _, chart := range c.charts {
		release := plan.ReleaseNamespace(chart.object) + "/" + plan.ReleaseName(chart.object)
		for _, other := range ofRelease[release] {
			if cluster := c.selectedByBoth(chart.object, other.object); cluster != "" {
				c.find(chart.Finding, SeverityWarning, "spec.releaseName", fmt.Sprintf(
					"HelmChartProxy %s/%s asks for the same release %s on Cluster %s; only one of them gets it, and the other says %s: choose another releaseName or namespace, or selectors that never match the same Cluster",
					other.Namespace, other.Name, release, cluster, addonsv1.ReleaseTakenReason))
			}
		}
		ofRelease[release] = append(ofRelease[release], chart)
	}
}

// checkPolicies warns about HelmChartProxies whose ServiceAccount Fleet's Policies in the manifests refuse: in their own
// namespace, unless they select others, and in those of the Clusters in the manifests.
func (c *checker) checkPolicies() {
	for _, chart := range c.charts {
		selects := c.selecting(chart.object)
		if selects == nil {
			continue
		}
		reached := map[string]bool{chart.Namespace: chart.object.Spec.NamespaceSelector == nil}
		for _, its := range c.created {
			reached[its.Namespace] = reached[its.Namespace] || selects(its)
		}
		bundle := &fleetv1.BundleSpec{}
		bundle.ServiceAccount = chart.object.Spec.ServiceAccount
		for _, namespace := range slices.Sorted(maps.Keys(c.policies)) {
			if refusal := fleetpolicy.Of(c.policies[namespace], bundle); refusal != nil && reached[namespace] {
				c.find(chart.Finding, SeverityWarning, "spec.serviceAccount", fmt.Sprintf("%s, so nothing is deployed to Clusters there (%s): %s",
					refusal.Why(namespace), addonsv1.PolicyRefusesReason, refusal.Do("it")))
			}
		}
	}
}

// selectedByBoth returns a Cluster of the manifests that two HelmChartProxies select; empty if there is none.
func (c *checker) selectedByBoth(a, b *addonsv1.HelmChartProxy) string {
	first, second := c.selecting(a), c.selecting(b)
	if first == nil || second == nil {
		return ""
	}
	for _, its := range c.created {
		if first(its) && second(its) {
			return its.Namespace + "/" + its.Name
		}
	}
	return ""
}

// selecting returns a function that reports whether a HelmChartProxy selects a Cluster of the manifests; nil if its selectors
// cannot be used.
func (c *checker) selecting(of *addonsv1.HelmChartProxy) func(manifest[*clusterRequest]) bool {
	selector, trouble := plan.NewSelector(of)
	if trouble != nil { // It was said.
		return nil
	}
	namespaceLabels := func(name string) labels.Set {
		its, _ := c.namespaceLabels(name)
		return its
	}
	return func(its manifest[*clusterRequest]) bool {
		subject := its.object.subject(its.Namespace)
		cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: its.Namespace, Name: its.Name, Labels: subject.Labels}}
		cluster.Spec.Topology.ClassRef = clusterv1.ClusterClassRef{Namespace: subject.Class.Namespace, Name: subject.Class.Name}
		return selector.Matches(cluster, namespaceLabels)
	}
}
