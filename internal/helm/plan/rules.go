package plan

import (
	"fmt"
	"math"
	"net/url"
	"strings"

	"github.com/Masterminds/semver/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/bounds"
)

// Default sets the defaults of cluster-api-addon-provider-helm. The CRD has those of single fields, but an older one may be
// installed, and files have none.
func Default(proxy *addonsv1.HelmChartProxy) {
	spec := &proxy.Spec
	spec.ReleaseNamespace = ReleaseNamespace(proxy)
	if spec.Options.Atomic {
		spec.Options.Wait = true
	}
	if spec.Options.Timeout == nil {
		spec.Options.Timeout = &metav1.Duration{Duration: defaultTimeout}
	}
	if namesNoCredentials(spec) {
		spec.Credentials = nil
	}
	if namesNoAuthority(spec) {
		tls := *spec.TLSConfig
		tls.CASecretRef, spec.TLSConfig = nil, &tls
	}
}

// namesNoCredentials reports whether the credentials have a Secret without a name, which counts as none.
func namesNoCredentials(spec *addonsv1.HelmChartProxySpec) bool {
	return spec.Credentials != nil && spec.Credentials.Secret.Name == ""
}

func namesNoAuthority(spec *addonsv1.HelmChartProxySpec) bool {
	return spec.TLSConfig != nil && spec.TLSConfig.CASecretRef != nil && spec.TLSConfig.CASecretRef.Name == ""
}

// StoredOptions returns options as the API server stores them: with the defaults of the CRD.
func StoredOptions(options addonsv1.HelmOptions) addonsv1.HelmOptions {
	if options.Install.CreateNamespace == nil {
		options.Install.CreateNamespace = ptr.To(true)
	}
	if options.Upgrade.MaxHistory == 0 {
		options.Upgrade.MaxHistory = defaultHistory
	}
	return options
}

// Validate returns all errors in a HelmChartProxy but that of its values template, which Examine returns.
func Validate(proxy *addonsv1.HelmChartProxy) field.ErrorList {
	spec, path := &proxy.Spec, field.NewPath("spec")
	var errs field.ErrorList
	if parsed, err := url.Parse(spec.RepoURL); err == nil && parsed.User != nil {
		errs = append(errs, field.Forbidden(path.Child("repoURL"), "must not contain a user or a password; put them into a Secret, and name it in spec.credentials"))
	} else if err := CheckURL(spec.RepoURL); err != nil {
		errs = append(errs, field.Invalid(path.Child("repoURL"), spec.RepoURL, err.Error()))
	}
	if spec.ChartName == "" {
		errs = append(errs, field.Required(path.Child("chartName"), "name the chart in the repository"))
	}
	errs = append(errs, bounds.Selector(&spec.ClusterSelector, path.Child("clusterSelector"))...)
	errs = append(errs, bounds.Selector(spec.NamespaceSelector, path.Child("namespaceSelector"))...)
	errs = append(errs, validateRelease(path, spec)...)
	if spec.Version != "" {
		if _, err := semver.NewConstraint(spec.Version); err != nil {
			errs = append(errs, field.Invalid(path.Child("version"), spec.Version, "must be a version such as 1.2.3, or a range such as 1.2.x"))
		}
	}
	if spec.Download == addonsv1.DownloadAgent {
		if err := CheckAgent(spec.RepoURL, spec.ChartName, spec.Version); err != nil {
			errs = append(errs, field.Forbidden(path.Child("download"), err.Error()+"; remove the field, and Muster downloads the chart"))
		}
	}
	errs = append(errs, validateOptions(path.Child("options"), &spec.Options)...)
	errs = append(errs, validateRollout(path.Child("rollout"), ptr.Deref(spec.Rollout, addonsv1.RolloutStrategy{}))...)
	return errs
}

// validateRollout returns all errors in spec.rollout that the rules of the CRD do not find.
func validateRollout(path *field.Path, strategy addonsv1.RolloutStrategy) field.ErrorList {
	errs := validateLimit(path.Child("maxUnavailable"), strategy.MaxUnavailable)
	for i, stage := range strategy.Stages {
		path := path.Child("stages").Index(i)
		errs = append(errs, validateLimit(path.Child("maxUnavailable"), stage.MaxUnavailable)...)
		errs = append(errs, bounds.Selector(stage.ClusterSelector, path.Child("clusterSelector"))...)
	}
	return errs
}

func validateLimit(path *field.Path, its *intstr.IntOrString) field.ErrorList {
	if most, err := intstr.GetScaledValueFromIntOrPercent(its, 100, true); its == nil || err == nil && most > 0 {
		return nil
	}
	return field.ErrorList{field.Invalid(path, its.String(), "must be a number of at least 1, or a percentage such as 25%")}
}

func validateRelease(path *field.Path, spec *addonsv1.HelmChartProxySpec) field.ErrorList {
	var errs field.ErrorList
	if name := spec.ReleaseName; name != "" && (len(name) > longestName || len(validation.IsDNS1123Subdomain(name)) > 0) {
		errs = append(errs, field.Invalid(path.Child("releaseName"), name,
			fmt.Sprintf("must be a valid name of a Helm release: at most %d lower-case letters, digits, '-' and '.'", longestName)))
	}
	if namespace := spec.ReleaseNamespace; namespace != "" && len(validation.IsDNS1123Label(namespace)) > 0 {
		errs = append(errs, field.Invalid(path.Child("namespace"), namespace, "must be the name of a namespace"))
	}
	return errs
}

// ValidateUpdate returns an error for each change that an update may not make.
func ValidateUpdate(old, proxy *addonsv1.HelmChartProxy) field.ErrorList {
	if proxy.Spec.ReconcileStrategy == old.Spec.ReconcileStrategy {
		return nil
	}
	return field.ErrorList{field.Invalid(field.NewPath("spec", "reconcileStrategy"), proxy.Spec.ReconcileStrategy, "field is immutable")}
}

// validateOptions refuses options that would change the result on a cluster, but that Fleet does not support.
func validateOptions(path *field.Path, options *addonsv1.HelmOptions) field.ErrorList {
	var errs field.ErrorList
	refuse := func(holds bool, why string, names ...string) {
		if holds {
			errs = append(errs, field.Forbidden(path.Child(names[0], names[1:]...), why))
		}
	}
	refuse(options.DisableHooks, "Fleet always runs the hooks of a chart; remove this field", "disableHooks")
	refuse(options.Uninstall != nil && options.Uninstall.KeepHistory, "Fleet never keeps the history of an uninstalled release; remove this field", "uninstall", "keepHistory")
	if options.Timeout != nil && options.Timeout.Duration < 0 {
		errs = append(errs, field.Invalid(path.Child("timeout"), options.Timeout.Duration.String(), "must not be negative"))
	}
	if options.Upgrade.MaxHistory < 0 {
		errs = append(errs, field.Invalid(path.Child("upgrade", "maxHistory"), options.Upgrade.MaxHistory, "must not be negative"))
	}
	return errs
}

// Warnings returns warnings, such as for fields without effect, but not those about the values template.
func Warnings(proxy *addonsv1.HelmChartProxy) []string {
	options := &proxy.Spec.Options
	var warnings []string
	warn := func(holds bool, name, why string) {
		if holds {
			warnings = append(warnings, "spec."+name+" has no effect: "+why)
		}
	}
	// cluster-api-addon-provider-helm creates the namespace, too: its own client drops fields that are false.
	warn(!ptr.Deref(options.Install.CreateNamespace, true), "options.install.createNamespace", "Fleet always creates the namespace of a release")
	warn(options.SkipCRDs, "options.skipCRDs", "Fleet always installs the CRDs of a chart")
	warn(options.DisableOpenAPIValidation, "options.disableOpenAPIValidation", "Fleet always validates")
	warn(options.Upgrade.CleanupOnFail, "options.upgrade.cleanupOnFail", "Fleet keeps the resources that a failed upgrade has created, and retries")
	warn(options.Upgrade.ReuseValues, "options.upgrade.reuseValues", "values are never taken over from the last release")
	warn(options.Upgrade.ResetThenReuseValues, "options.upgrade.resetThenReuseValues", "values are never taken over from the last release")
	warn(options.Uninstall != nil && options.Uninstall.Description != "", "options.uninstall.description", "Fleet sets no description")
	warn(options.WaitForJobs && !Waits(proxy), "options.waitForJobs", "it needs options.wait")
	warn(options.Timeout != nil && options.Timeout.Duration != defaultTimeout && !Waits(proxy), "options.timeout", "it needs options.wait, or a chart with hooks")
	warn(options.Timeout != nil && Waits(proxy) && math.Trunc(options.Timeout.Seconds()) != options.Timeout.Seconds(), "options.timeout: its fraction of a second", "Fleet counts whole seconds")
	warn(namesNoCredentials(&proxy.Spec), "credentials", "it names no Secret")
	warn(namesNoAuthority(&proxy.Spec), "tlsConfig.caSecret", "it names no Secret")
	warn(IsInstallOnce(proxy) && ptr.Deref(proxy.Spec.CorrectDrift, false), "correctDrift", "with InstallOnce, drift is not corrected")
	if IsStaged(proxy) && OfflineAfter(proxy) < CheckInInterval {
		warnings = append(warnings, "spec.rollout.offlineAfter is shorter than 15 minutes, the default interval at which Fleet's agents check in: Clusters may count as offline although they are not")
	}
	warn(IsInstallOnce(proxy) && proxy.Spec.Rollout != nil, "rollout", "with InstallOnce, no change is rolled out")
	if proxy.Spec.Download == addonsv1.DownloadAgent && proxy.Spec.Credentials != nil {
		warnings = append(warnings, "spec.credentials: with spec.download Agent, the credentials are copied to the namespaces of the selected Clusters, and the Clusters' agents get them")
	}
	return warnings
}

// CheckURL returns an error unless a URL of a repository is absolute and https or oci. It uses the messages of
// cluster-api-addon-provider-helm.
func CheckURL(repoURL string) error {
	parsed, err := url.ParseRequestURI(repoURL)
	if err != nil {
		return fmt.Errorf("specified repoURL %s is not valid: %w", repoURL, err)
	}
	switch strings.ToLower(parsed.Scheme) {
	case "https":
	case "oci":
		if !strings.HasPrefix(repoURL, "oci://") {
			return fmt.Errorf("specified repoURL %s must use the lowercase oci scheme", repoURL)
		}
	default:
		return fmt.Errorf("specified repoURL %s uses unsupported scheme %q; supported schemes are https and oci", repoURL, parsed.Scheme)
	}
	if parsed.Hostname() == "" {
		return fmt.Errorf("specified repoURL %s must include a host", repoURL)
	}
	return nil
}
