package inputs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/helm/plan"
	"github.com/muster-fleet/muster/internal/helm/repository"
	"github.com/muster-fleet/muster/internal/helm/worker"
)

// readChart finds the wanted version of the chart, and checks that the chart is available.
func (r *Reader) readChart(ctx context.Context, proxy *addonsv1.HelmChartProxy, in *Inputs) error {
	spec := &proxy.Spec
	in.request = repository.Request{RepoURL: spec.RepoURL, Chart: spec.ChartName, Version: spec.Version, Namespace: proxy.Namespace}
	carried, err := r.carried(ctx, proxy)
	if err != nil {
		return err
	}
	isCarried := carried.Version != ""
	if plan.NeedsCredentials(proxy) {
		in.again = PollInterval // Changes of Secrets trigger no event.
	}
	var denied error
	if in.request.Access, denied = r.access(ctx, proxy); denied != nil && (!isCarried || carried.Agent) {
		return denied // The credentials for the agents are unknown.
	}
	version, trouble := r.version(ctx, in, denied) // This error is not fatal if a Bundle carries the chart.
	if version == "" {
		if !isCarried {
			return trouble
		}
		version = carried.Version // The range keeps its last version.
	}
	switch {
	case isCarried && carried.Version == version && (carried.Agent == (spec.Download == addonsv1.DownloadAgent) || carried.Large && spec.Download == ""):
		in.Chart = carried
	case trouble != nil:
		return trouble
	default:
		if in.Chart, err = r.obtain(ctx, proxy, in.request, version); err != nil {
			return err
		}
	}
	if in.Chart.Agent && plan.NeedsCredentials(proxy) {
		in.Credentials = credentials(in.request.Access)
		if in.CredentialsDigest, err = r.Digest(ctx, in.Credentials); err != nil {
			return err
		}
	}
	in.Notice = notice(proxy, in.Chart)
	if trouble != nil {
		in.again, in.lacksChart = PollInterval, true
		in.Trouble = plan.Trouble{Reason: addonsv1.HelmReleaseProxyCreationFailedReason, Message: trouble.Error()}
	}
	return nil
}

// version returns the wanted exact version; empty if it is unknown. It keeps an earlier error.
func (r *Reader) version(ctx context.Context, in *Inputs, trouble error) (string, error) {
	if repository.IsExact(in.request.Version) {
		return in.request.Version, trouble
	}
	if next := r.Charts.Interval; in.again == 0 || next > 0 && next < in.again {
		in.again = next
	}
	if trouble != nil {
		return "", trouble
	}
	return r.Charts.Version(ctx, in.request)
}

// carried returns the newest chart from the same source that a Bundle in the namespace of the HelmChartProxy
// carries, if there is one. Bundles in other namespaces do not count: other users may have written them.
func (r *Reader) carried(ctx context.Context, proxy *addonsv1.HelmChartProxy) (plan.Chart, error) {
	var bundles fleetv1.BundleList
	key := client.ObjectKeyFromObject(proxy)
	if err := r.Cached.List(ctx, &bundles, client.InNamespace(key.Namespace), client.MatchingLabels(plan.Labels(key)), client.UnsafeDisableDeepCopy); err != nil {
		return plan.Chart{}, fmt.Errorf("listing Bundles: %w", err)
	}
	var last plan.Chart // Bundles may be half-way through an upgrade.
	for i := range bundles.Items {
		chart, found := plan.ChartOf(&bundles.Items[i])
		of, is := plan.ProxyOf(&bundles.Items[i])
		if found && is && of == key && chart.Source == plan.SourceOf(proxy) && (last.Version == "" || repository.IsNewer(chart.Version, last.Version)) {
			last = chart
		}
	}
	return last, nil
}

// obtain downloads a chart. If agents download it, obtain only checks that the repository has it, so that Fleet
// gets no URL that leads into a denied network.
func (r *Reader) obtain(ctx context.Context, proxy *addonsv1.HelmChartProxy, request repository.Request, version string) (plan.Chart, error) {
	spec := &proxy.Spec
	made := plan.Chart{Source: plan.SourceOf(proxy), Version: version, Agent: spec.Download == addonsv1.DownloadAgent}
	if !made.Agent {
		files, err := r.Charts.Chart(ctx, request, version)
		if err == nil {
			made.Digest, made.Hooks, made.DeleteHooks = plan.DigestOfFiles(plan.WithEmptyChart(files.Resources)), files.HasHooks, files.HasDeleteHooks
			return made, nil
		}
		if spec.Download != "" || !errors.As(err, new(*worker.TooLargeError)) {
			return made, err
		}
		if spec.Credentials != nil { // Only the author may decide to pass the credentials to agents, and a chart may grow unnoticed.
			return made, fmt.Errorf("%w; set spec.download: Agent to have the agents of the Clusters download it, with the credentials", err)
		}
		made.Agent, made.Large = true, true
	}
	if err := plan.CheckAgent(spec.RepoURL, spec.ChartName, version); err != nil {
		return made, err
	}
	return made, r.Charts.Has(ctx, request, version)
}

// notice returns a message about the chart for the author of a HelmChartProxy.
func notice(proxy *addonsv1.HelmChartProxy, chart plan.Chart) string {
	switch {
	case chart.Large:
		return "the chart is too large for a Bundle; the agents of the Clusters download it"
	case chart.Agent && !plan.Waits(proxy):
		return "the agents download the chart, so it is unknown whether it has hooks; without spec.options.wait, Fleet gives each hook 30 s"
	case chart.DeleteHooks:
		return "the chart has hooks that run at the uninstallation; Fleet gives each of them 30 s"
	case chart.Hooks && !plan.Waits(proxy):
		return "the chart has hooks; Helm waits for all resources, for spec.options.timeout at most"
	}
	return ""
}

// credentials returns the data that Fleet reads from the Secret that a Bundle names.
func credentials(access repository.Access) map[string][]byte {
	data := map[string][]byte{}
	if access.Username != "" || access.Password != "" { // Fleet requires both or none.
		data["username"], data["password"] = []byte(access.Username), []byte(access.Password)
	}
	if len(access.Authorities) > 0 {
		data["cacerts"] = access.Authorities
	}
	return data
}

// access reads the credentials and the certificate authority.
func (r *Reader) access(ctx context.Context, proxy *addonsv1.HelmChartProxy) (access repository.Access, err error) {
	read := func(field string, ref corev1.SecretReference) (*corev1.Secret, error) {
		key := client.ObjectKey{Namespace: cmp.Or(ref.Namespace, proxy.Namespace), Name: ref.Name}
		secret, err := r.secret(ctx, key)
		if err != nil {
			err = fmt.Errorf("spec.%s: reading Secret %s: %w", field, key, err)
		}
		return secret, err
	}
	if tls := proxy.Spec.TLSConfig; tls != nil {
		access.Insecure = tls.InsecureSkipTLSVerify
		if tls.CASecretRef != nil {
			secret, err := read("tlsConfig.caSecret", *tls.CASecretRef)
			if err != nil {
				return access, err
			}
			access.Authorities = secret.Data["ca.crt"]
			if len(access.Authorities) == 0 {
				return access, fmt.Errorf("spec.tlsConfig.caSecret: Secret %s/%s has no key ca.crt", secret.Namespace, secret.Name)
			}
		}
	}
	credentials := proxy.Spec.Credentials
	if credentials == nil {
		return access, nil
	}
	secret, err := read("credentials", credentials.Secret)
	if err != nil {
		return access, err
	}
	key := cmp.Or(credentials.Key, "config.json")
	if config, found := secret.Data[key]; found {
		at, err := url.Parse(proxy.Spec.RepoURL)
		if err == nil {
			access.Credential, err = repository.Login(config, at.Host)
		}
		if err != nil {
			return access, fmt.Errorf("spec.credentials: key %q of Secret %s/%s: %w", key, secret.Namespace, secret.Name, err)
		}
		return access, nil
	}
	access.Username, access.Password = string(secret.Data["username"]), string(secret.Data["password"])
	if access.Username == "" && access.Password == "" {
		return access, fmt.Errorf("spec.credentials: Secret %s/%s has neither the key %q nor username and password", secret.Namespace, secret.Name, key)
	}
	return access, nil
}
