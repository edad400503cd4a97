package plan

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/helm/templates"
)

// The table of the reference lists which fields Muster refuses, and which get a warning. Messages about repoURL
// are the same as in cluster-api-addon-provider-helm.
func TestRules(t *testing.T) {
	type spec = *addonsv1.HelmChartProxySpec
	for name, test := range map[string]struct {
		change   func(spec)
		refused  string
		warned   string
		accepted bool
	}{
		"nothing":                      {change: func(spec) {}, accepted: true},
		"http":                         {change: func(s spec) { s.RepoURL = "http://a" }, refused: `spec.repoURL: Invalid value: "http://a": specified repoURL http://a uses unsupported scheme "http"; supported schemes are https and oci`},
		"upper-case https":             {change: func(s spec) { s.RepoURL = "HTTPS://a" }, accepted: true},
		"oci":                          {change: func(s spec) { s.RepoURL = "oci://a/b" }, accepted: true},
		"upper-case oci":               {change: func(s spec) { s.RepoURL = "OCI://a" }, refused: "specified repoURL OCI://a must use the lowercase oci scheme"},
		"no host":                      {change: func(s spec) { s.RepoURL = "https:///a" }, refused: "specified repoURL https:///a must include a host"},
		"a path":                       {change: func(s spec) { s.RepoURL = "charts" }, refused: `specified repoURL charts is not valid: parse "charts": invalid URI for request`},
		"a file":                       {change: func(s spec) { s.RepoURL = "file:///etc" }, refused: `uses unsupported scheme "file"`},
		"a password":                   {change: func(s spec) { s.RepoURL = "https://user:sesame@a" }, refused: "spec.repoURL: Forbidden: must not contain a user or a password"},
		"no chart":                     {change: func(s spec) { s.ChartName = "" }, refused: "spec.chartName: Required value"},
		"a range":                      {change: func(s spec) { s.Version = ">=1.0.0 <2" }, accepted: true},
		"v in front":                   {change: func(s spec) { s.Version = "v1.0.0" }, accepted: true},
		"no version":                   {change: func(s spec) { s.Version = "newest" }, refused: `spec.version: Invalid value: "newest"`},
		"a template that does not end": {change: func(s spec) { s.ValuesTemplate = "{{ if" }, refused: "spec.valuesTemplate: Invalid value: \"{{ if\": cannot be parsed: valuesTemplate:1: unclosed action"},
		"a function that is not there": {change: func(s spec) { s.ValuesTemplate = "{{ lookup 1 }}" }, refused: `function "lookup" not defined`},
		"an unsteady template":         {change: func(s spec) { s.ValuesTemplate = "a: {{ uuidv4 }}" }, warned: "spec.valuesTemplate: uuidv4 returns a different result"},
		"a selector": {change: func(s spec) {
			s.ClusterSelector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Is"}}
		}, refused: "spec.clusterSelector.matchExpressions[0].operator"},
		"another selector":          {change: func(s spec) { s.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"a b": ""}} }, refused: "spec.namespaceSelector.matchLabels"},
		"a long releaseName":        {change: func(s spec) { s.ReleaseName = strings.Repeat("a", 54) }, refused: "spec.releaseName: Invalid value"},
		"releaseName":               {change: func(s spec) { s.ReleaseName = strings.Repeat("a", 53) }, accepted: true},
		"namespace":                 {change: func(s spec) { s.ReleaseNamespace = "a.b" }, refused: "spec.namespace: Invalid value"},
		"disableHooks":              {change: func(s spec) { s.Options.DisableHooks = true }, refused: "spec.options.disableHooks: Forbidden"},
		"createNamespace: false":    {change: func(s spec) { s.Options.Install.CreateNamespace = ptr.To(false) }, warned: "spec.options.install.createNamespace has no effect"},
		"InstallOnce, correctDrift": {change: func(s spec) { s.ReconcileStrategy, s.CorrectDrift = "InstallOnce", ptr.To(true) }, warned: "spec.correctDrift has no effect: with InstallOnce, drift is not corrected"},
		"InstallOnce, rollout": {change: func(s spec) {
			s.ReconcileStrategy, s.Rollout = "InstallOnce", &addonsv1.RolloutStrategy{MaxUnavailable: ptr.To(intstr.FromInt32(1))}
		}, warned: "spec.rollout has no effect: with InstallOnce"},
		"the status of what a Cluster refers to": {change: func(s spec) { s.ValuesTemplate = "a: {{ if true }}{{ .InfraCluster.status.ready }}{{ end }}" }, warned: "spec.valuesTemplate: .InfraCluster.status is not available"},
		"another status":                         {change: func(s spec) { s.ValuesTemplate = "a: .Cluster.status {{ .Cluster.spec.statuses }}" }, accepted: true},
		"createNamespace: true":                  {change: func(s spec) { s.Options.Install.CreateNamespace = ptr.To(true) }, accepted: true},
		"keepHistory":                            {change: func(s spec) { s.Options.Uninstall = &addonsv1.HelmUninstallOptions{KeepHistory: true} }, refused: "spec.options.uninstall.keepHistory: Forbidden"},
		"uninstall.description":                  {change: func(s spec) { s.Options.Uninstall = &addonsv1.HelmUninstallOptions{Description: "a"} }, warned: "spec.options.uninstall.description has no effect"},
		"skipCRDs":                               {change: func(s spec) { s.Options.SkipCRDs = true }, warned: "spec.options.skipCRDs has no effect"},
		"disableOpenAPIValidation":               {change: func(s spec) { s.Options.DisableOpenAPIValidation = true }, warned: "spec.options.disableOpenAPIValidation has no effect"},
		"cleanupOnFail":                          {change: func(s spec) { s.Options.Upgrade.CleanupOnFail = true }, warned: "spec.options.upgrade.cleanupOnFail has no effect"},
		"reuseValues":                            {change: func(s spec) { s.Options.Upgrade.ReuseValues = true }, warned: "spec.options.upgrade.reuseValues has no effect"},
		"resetThenReuseValues":                   {change: func(s spec) { s.Options.Upgrade.ResetThenReuseValues = true }, warned: "spec.options.upgrade.resetThenReuseValues has no effect"},
		"timeout without wait":                   {change: func(s spec) { s.Options.Timeout = &metav1.Duration{Duration: time.Minute} }, warned: "spec.options.timeout has no effect"},
		"the default timeout":                    {change: func(s spec) { s.Options.Timeout = &metav1.Duration{Duration: 10 * time.Minute} }, accepted: true},
		"a negative timeout":                     {change: func(s spec) { s.Options.Wait, s.Options.Timeout = true, &metav1.Duration{Duration: -time.Second} }, refused: "spec.options.timeout: Invalid value"},
		"waitForJobs without wait":               {change: func(s spec) { s.Options.WaitForJobs = true }, warned: "spec.options.waitForJobs has no effect"},
		"waitForJobs":                            {change: func(s spec) { s.Options.WaitForJobs, s.Options.Wait = true, true }, accepted: true},
		"a negative maxHistory":                  {change: func(s spec) { s.Options.Upgrade.MaxHistory = -1 }, refused: "spec.options.upgrade.maxHistory: Invalid value"},
		"download: Agent":                        {change: func(s spec) { s.Download = addonsv1.DownloadAgent }, accepted: true},
		"download: Agent, archive":               {change: func(s spec) { s.Download, s.ChartName = addonsv1.DownloadAgent, "nginx-1.0.0.TGZ" }, refused: "spec.download: Forbidden: a name that ends in .tgz is treated as a URL by Fleet"},
		"download: Agent, OCI, build metadata": {change: func(s spec) {
			s.Download, s.RepoURL, s.Version = addonsv1.DownloadAgent, "oci://registry.example.com", "1.0.0+a"
		}, refused: "spec.download: Forbidden: version 1.0.0+a has build metadata, and Fleet does not find such versions in an OCI registry"},
		"download: Agent, credentials": {change: func(s spec) {
			s.Download, s.Credentials = addonsv1.DownloadAgent, &addonsv1.Credentials{}
		}, warned: "spec.credentials: with spec.download Agent, the credentials are copied to the namespaces of the selected Clusters"},
		"download: Manager":      {change: func(s spec) { s.Download = addonsv1.DownloadManager }, accepted: true},
		"maxUnavailable":         {change: func(s spec) { s.Rollout = &addonsv1.RolloutStrategy{MaxUnavailable: ptr.To(intstr.FromString("25%"))} }, accepted: true},
		"no maxUnavailable":      {change: func(s spec) { s.Rollout = &addonsv1.RolloutStrategy{MaxUnavailable: ptr.To(intstr.FromString("some"))} }, refused: "spec.rollout.maxUnavailable: Invalid value"},
		"maxUnavailable as text": {change: func(s spec) { s.Rollout = &addonsv1.RolloutStrategy{MaxUnavailable: ptr.To(intstr.FromString("5"))} }, refused: "spec.rollout.maxUnavailable: Invalid value"},
		"maxUnavailable 0":       {change: func(s spec) { s.Rollout = &addonsv1.RolloutStrategy{MaxUnavailable: ptr.To(intstr.FromInt32(0))} }, refused: "spec.rollout.maxUnavailable: Invalid value"},
		"what has no effect there": {change: func(s spec) {
			s.Options.DependencyUpdate, s.Options.SubNotes, s.Options.EnableClientCache, s.Options.Install.IncludeCRDs = true, true, true, true
			s.Options.Upgrade.ResetValues, s.Options.Upgrade.Recreate = true, true
		}, accepted: true},
	} {
		t.Run(name, func(t *testing.T) {
			its := proxy(test.change)
			template, errs, err := templates.Examine(t.Context(), its)
			if err != nil {
				t.Fatal(err)
			}
			var refused []string
			for _, err := range append(Validate(its), errs...) {
				refused = append(refused, err.Error())
			}
			check := func(what string, got []string, want string) {
				if all := strings.Join(got, "\n"); want == "" && all != "" || !strings.Contains(all, want) {
					t.Errorf("%s: %q, want %q", what, all, want)
				}
			}
			check("refused", refused, test.refused)
			check("warned", append(Warnings(its), template.Warnings...), test.warned)
			if (test.refused == "" && test.warned == "") != test.accepted {
				t.Error("the case says nothing")
			}
		})
	}
}

func TestImmutable(t *testing.T) {
	for _, change := range [][2]string{{"", "Continuous"}, {"Continuous", "InstallOnce"}, {"InstallOnce", ""}} {
		old := proxy(func(s *addonsv1.HelmChartProxySpec) { s.ReconcileStrategy = change[0] })
		its := proxy(func(s *addonsv1.HelmChartProxySpec) { s.ReconcileStrategy = change[1] })
		if errs := ValidateUpdate(old, its); len(errs) != 1 || errs[0].Detail != "field is immutable" {
			t.Errorf("%q to %q: %v", change[0], change[1], errs)
		}
		if errs := ValidateUpdate(its, its); len(errs) > 0 {
			t.Errorf("%q stays: %v", change[1], errs)
		}
	}
}

func TestDefault(t *testing.T) {
	its := proxy(func(s *addonsv1.HelmChartProxySpec) { s.Options.Atomic = true })
	Default(its)
	if its.Spec.ReleaseNamespace != "default" || !its.Spec.Options.Wait || its.Spec.Options.Timeout.Duration != 10*time.Minute {
		t.Errorf("%+v", its.Spec)
	}
	its.Spec.Credentials, its.Spec.TLSConfig = &addonsv1.Credentials{Key: "a"}, &addonsv1.TLSConfig{CASecretRef: &corev1.SecretReference{}, InsecureSkipTLSVerify: true}
	Default(its)
	if its.Spec.Credentials != nil || its.Spec.TLSConfig.CASecretRef != nil || !its.Spec.TLSConfig.InsecureSkipTLSVerify {
		t.Errorf("%+v and %+v, of Secrets without a name", its.Spec.Credentials, its.Spec.TLSConfig)
	}
	again := its.DeepCopy()
	Default(again)
	if again.Spec.Options.Timeout.Duration != its.Spec.Options.Timeout.Duration || again.Spec.ReleaseNamespace != its.Spec.ReleaseNamespace {
		t.Error("defaulting twice gives something else")
	}
}

func proxy(change func(*addonsv1.HelmChartProxySpec)) *addonsv1.HelmChartProxy {
	its := &addonsv1.HelmChartProxy{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "nginx", UID: "u"}}
	its.Spec.RepoURL, its.Spec.ChartName, its.Spec.Version = "https://charts.example.com", "nginx", "1.0.0"
	if change != nil {
		change(&its.Spec)
	}
	return its
}
