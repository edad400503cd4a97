package charts

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/Masterminds/semver/v3"
	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/charts/fetch"
	"github.com/muster-fleet/muster/internal/charts/plan"
)

// errHeld says that nothing is to be written: what is to be there is not known.
var errHeld = errors.New("everything stays as it is")

// share reads the values for all Clusters.
func (r *reconciler) share(ctx context.Context, v *visit, template *plan.Template) (again time.Duration, err error) {
	values := plan.NewShared()
	hold := func(err error) (time.Duration, error) {
		v.fail(addonsv1.ValueParsingFailedReason, err.Error())
		return pollInterval, errHeld
	}
	for i, from := range v.proxy.Spec.ValuesFrom {
		again = pollInterval
		data, found, err := r.readValues(ctx, v.key.Namespace, from)
		if err != nil {
			return hold(fmt.Errorf("spec.valuesFrom[%d]: %w", i, err))
		}
		if !found {
			continue
		}
		if err := values.Add(i, from, data); err != nil {
			return hold(err)
		}
	}
	if v.shared, err = values.With(v.proxy, template); err != nil {
		return hold(err)
	}
	return again, nil
}

func (r *reconciler) readValues(ctx context.Context, namespace string, from addonsv1.ValuesReference) (data []byte, found bool, err error) {
	key := client.ObjectKey{Namespace: namespace, Name: from.Name}
	name := from.Key
	if name == "" {
		name = plan.ValuesKey
	}
	if from.Kind == plan.SecretKind {
		var secret corev1.Secret
		if err = r.readSecret(ctx, key, &secret); err == nil {
			data, found = secret.Data[name]
		}
	} else {
		var configMap corev1.ConfigMap
		if err = r.live.Get(ctx, key, &configMap); err == nil {
			var text string
			text, found = configMap.Data[name]
			data = []byte(text)
		}
	}
	switch {
	case client.IgnoreNotFound(err) != nil:
		return nil, false, fmt.Errorf("reading %s %q: %w", from.Kind, from.Name, err)
	case !found && !from.Optional:
		return nil, false, fmt.Errorf("there is no %s %q with the key %q", from.Kind, from.Name, name)
	case !found:
		return nil, false, nil
	}
	return data, true, nil
}

// download finds out which version of the chart is meant, and downloads it if a Bundle
// lacks it.
func (r *reconciler) download(ctx context.Context, v *visit) (again time.Duration) {
	if !v.deploys() {
		return 0
	}
	request := fetch.Request{RepoURL: v.proxy.Spec.RepoURL, Chart: v.proxy.Spec.ChartName, Version: v.proxy.Spec.Version}
	lack := func(err error) {
		v.lacks = err
		v.fail(addonsv1.HelmReleaseProxyCreationFailedReason, err.Error())
	}
	version, again, err := r.version(ctx, v, &request)
	if err != nil {
		lack(err)
	}
	if version == "" {
		return pollInterval
	}
	v.chart = &plan.Chart{Source: plan.SourceOf(v.proxy), Version: version}
	if v.proxy.Spec.Download == "" && v.proxy.Spec.Credentials == nil {
		v.aside = r.large.says(v.key, v.chart)
	}
	if v.chart.Agent = v.proxy.Spec.Download == addonsv1.DownloadAgent || v.aside != ""; v.chart.Agent {
		again = sooner(again, r.grant(ctx, v))
	}
	if v.isCarried(v.chart) {
		return again
	}
	if err = r.access(ctx, v.proxy, &request); err == nil {
		err = r.obtain(ctx, v, request)
	}
	if err != nil {
		lack(err)
		return pollInterval
	}
	return again
}

// obtain downloads the chart, or, if the agents do, sees that it is there: what leads where nobody is
// to connect to is not handed to Fleet.
func (r *reconciler) obtain(ctx context.Context, v *visit, request fetch.Request) error {
	spec, version := &v.proxy.Spec, v.chart.Version
	if v.chart.Agent {
		if err := plan.CheckAgent(spec.RepoURL, spec.ChartName, version); err != nil {
			return err
		}
		return r.charts.Has(ctx, request, version)
	}
	chart, err := r.charts.Chart(ctx, request, version)
	if err == nil {
		v.chart.Resources = chart.Resources
		return nil
	}
	var size *fetch.TooLargeError
	if !errors.As(err, &size) && v.isByAgents() {
		// It was too large when it was last downloaded: whoever cannot download it now does not know better.
		v.aside, v.chart.Agent = "the chart is too large for a Bundle; the agents of the Clusters download it", true
		v.again = pollInterval
		r.grant(ctx, v)
		return nil
	}
	if spec.Download != "" || !errors.As(err, &size) || plan.CheckAgent(spec.RepoURL, spec.ChartName, version) != nil {
		return err
	}
	if spec.Credentials != nil { // Only the author has them handed out: charts grow by themselves.
		return fmt.Errorf("%w; set spec.download: Agent to have the agents of the Clusters download it, with the credentials", err)
	}
	v.aside, v.chart.Agent = err.Error()+"; the agents of the Clusters download it", true
	r.large.put(v.key, v.chart, v.aside)
	r.grant(ctx, v)
	return nil
}

// isByAgents reports whether agents download this very chart, and nobody says who is to. What is not in
// the namespace of the HelmChartProxy is the word of others.
func (v *visit) isByAgents() bool {
	return v.proxy.Spec.Download == "" && v.proxy.Spec.Credentials == nil && slices.ContainsFunc(v.bundles, func(its fleetv1.Bundle) bool {
		return its.Namespace == v.key.Namespace && plan.IsHelmOp(&its) &&
			its.Annotations[plan.ChartAnnotation] == v.chart.Source && its.Annotations[plan.VersionAnnotation] == v.chart.Version
	})
}

// version returns the exact version that is meant. What a range stands for is asked at an
// interval; until there is an answer, it is what it was.
func (r *reconciler) version(ctx context.Context, v *visit, request *fetch.Request) (version string, again time.Duration, err error) {
	if fetch.IsExact(request.Version) {
		return request.Version, 0, nil
	}
	source := plan.SourceOf(v.proxy)
	if known, left := r.versions.get(v.key, source, r.now()); known != "" {
		return known, left, nil
	}
	if err = r.access(ctx, v.proxy, request); err == nil {
		version, err = r.charts.Version(ctx, *request)
	}
	if err == nil {
		r.versions.put(v.key, source, version, r.now().Add(r.ChartInterval))
		return version, r.ChartInterval, nil
	}
	return r.lastVersion(ctx, v), pollInterval, err
}

// lastVersion returns the version that the range stood for when it was last known: a Bundle in the
// namespace of the HelmChartProxy says so, or one of its HelmReleaseProxies. What is elsewhere is
// the word of others.
func (r *reconciler) lastVersion(ctx context.Context, v *visit) string {
	for i := range v.bundles {
		its := &v.bundles[i]
		if its.Namespace == v.key.Namespace && its.Annotations[plan.ChartAnnotation] == plan.SourceOf(v.proxy) {
			return its.Annotations[plan.VersionAnnotation]
		}
	}
	mirrors, err := r.mirrorsOf(ctx, v.key)
	if err != nil {
		return ""
	}
	for i := range mirrors {
		its := &mirrors[i].Spec
		if its.RepoURL == v.proxy.Spec.RepoURL && its.ChartName == v.proxy.Spec.ChartName && fetch.IsExact(its.Version) &&
			isIn(its.Version, v.proxy.Spec.Version) {
			return its.Version
		}
	}
	return ""
}

// isIn reports whether a version is in a range; none stands for all.
func isIn(version, wanted string) bool {
	if wanted == "" {
		return true
	}
	exact, err := semver.NewVersion(version)
	if err != nil {
		return false
	}
	constraint, err := semver.NewConstraint(wanted)
	return err == nil && constraint.Check(exact)
}

// chartIn returns the chart for the Bundles in a namespace. If it could not be downloaded, it is
// that of a Bundle that carries it: of the namespace of the HelmChartProxy, or of the same one;
// elsewhere others may have written it.
func (r *reconciler) chartIn(ctx context.Context, v *visit, input plan.Input) *plan.Chart {
	if v.lacks == nil || v.chart == nil || v.chart.Resources != nil || v.chart.Agent {
		return v.chart
	}
	its := v.chart
	input.Chart = its
	if !slices.ContainsFunc(plan.Make(input).Bundles, func(want *fleetv1.Bundle) bool {
		return !carries(v.bundle(client.ObjectKeyFromObject(want)), its)
	}) {
		return its
	}
	for _, namespace := range []string{v.key.Namespace, input.Namespace} {
		for i := range v.bundles {
			if v.bundles[i].Namespace != namespace || !carries(&v.bundles[i], its) {
				continue
			}
			live := &fleetv1.Bundle{}
			err := r.live.Get(ctx, client.ObjectKeyFromObject(&v.bundles[i]), live)
			if err == nil && carries(live, its) {
				return &plan.Chart{Source: its.Source, Version: its.Version, Resources: live.Spec.Resources}
			}
		}
	}
	return its
}

// held are Bundles that are not written, and the values that only they read, by name.
type held struct{ bundles, values map[string]bool }

// hold holds the Bundles that lack a chart that could not be downloaded, with their values: these
// may be for that chart. What is there stays, and the Clusters say so. So does a HelmOp for
// Clusters that are moved only: nobody has asked which chart is meant.
func (v *visit) hold(bundles []*fleetv1.Bundle, chart *plan.Chart, named map[client.ObjectKey]bool) held {
	result := held{map[string]bool{}, map[string]bool{}}
	lacks := v.lacks != nil && (chart == nil || chart.Resources == nil)
	for _, want := range bundles {
		have := v.bundle(client.ObjectKeyFromObject(want))
		isOthers := chart == nil && have != nil && plan.IsHelmOp(have)
		if !isOthers && (!lacks || chart != nil && carries(have, chart)) {
			continue
		}
		result.bundles[want.Name] = true
		if have != nil {
			v.nameValues(have, named)
		}
		for _, name := range namedByTargets(want) {
			result.values[name] = true
		}
		if v.lacks != nil {
			v.failTargets(want, addonsv1.HelmReleaseProxyCreationFailedReason, v.lacks.Error())
		}
	}
	if len(bundles) > 0 && len(result.bundles) == len(bundles) {
		for _, name := range namesOf(bundles[0].Spec.DownstreamResources) {
			result.values[name] = true
		}
		result.values[plan.AccessName(v.proxy, bundles[0].Namespace)] = true
	}
	return result
}

// access reads credentials and certificate authority.
func (r *reconciler) access(ctx context.Context, proxy *addonsv1.HelmChartProxy, request *fetch.Request) error {
	request.Access = fetch.Access{}
	if tls := proxy.Spec.TLSConfig; tls != nil {
		request.Access.Insecure = tls.InsecureSkipTLSVerify
		if tls.CASecretRef != nil {
			secret, err := r.secret(ctx, proxy, *tls.CASecretRef)
			if err != nil {
				return fmt.Errorf("spec.tlsConfig.caSecret: %w", err)
			}
			request.Access.Authorities = secret.Data["ca.crt"]
			if len(request.Access.Authorities) == 0 {
				return fmt.Errorf("spec.tlsConfig.caSecret: Secret %s/%s has no key ca.crt", secret.Namespace, secret.Name)
			}
		}
	}
	credentials := proxy.Spec.Credentials
	if credentials == nil {
		return nil
	}
	secret, err := r.secret(ctx, proxy, credentials.Secret)
	if err != nil {
		return fmt.Errorf("spec.credentials: %w", err)
	}
	key := credentials.Key
	if key == "" {
		key = "config.json"
	}
	if config, found := secret.Data[key]; found {
		if request.Access.Username, request.Access.Password, err = fetch.Login(config, hostOf(request.RepoURL)); err != nil {
			return fmt.Errorf("spec.credentials: key %q of Secret %s/%s: %w", key, secret.Namespace, secret.Name, err)
		}
		return nil
	}
	request.Access.Username, request.Access.Password = string(secret.Data["username"]), string(secret.Data["password"])
	if request.Access.Username == "" && request.Access.Password == "" {
		return fmt.Errorf("spec.credentials: Secret %s/%s has neither the key %q nor username and password", secret.Namespace, secret.Name, key)
	}
	return nil
}

func hostOf(repository string) string {
	parsed, err := url.Parse(repository)
	if err != nil {
		return ""
	}
	return parsed.Host
}

func (r *reconciler) secret(ctx context.Context, proxy *addonsv1.HelmChartProxy, ref corev1.SecretReference) (*corev1.Secret, error) {
	secret, key := &corev1.Secret{}, client.ObjectKey{Namespace: ref.Namespace, Name: ref.Name}
	if key.Namespace == "" {
		key.Namespace = proxy.Namespace
	}
	if err := r.readSecret(ctx, key, secret); err != nil {
		return nil, fmt.Errorf("reading Secret %s: %w", key, err)
	}
	return secret, nil
}

// versions remembers which version a range stands for.
type versions struct {
	mu  sync.Mutex
	all map[plan.Key]knownVersion
}

type knownVersion struct {
	source, version string
	until           time.Time
}

func newVersions() *versions { return &versions{all: map[plan.Key]knownVersion{}} }

func (k *versions) get(proxy plan.Key, source string, now time.Time) (version string, left time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	known := k.all[proxy]
	if known.source != source || !now.Before(known.until) {
		return "", 0
	}
	return known.version, known.until.Sub(now)
}

func (k *versions) put(proxy plan.Key, source, version string, until time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.all[proxy] = knownVersion{source, version, until}
}

func (k *versions) forget(proxy plan.Key) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.all, proxy)
}

// toJSON returns an object of the API as JSON.
func toJSON(value any) []byte {
	data, err := json.Marshal(value)
	if err != nil { // They are types of the API.
		panic(err)
	}
	return data
}
