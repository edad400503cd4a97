package admission

import (
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/Masterminds/semver/v3"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/bounds"
	"github.com/muster-fleet/muster/internal/defects"
	"github.com/muster-fleet/muster/internal/message"
)

// validateConfig returns the errors of a FleetAddonConfig that the schema and the rules of its CRD do not refuse: for each
// the field, and a sentence that says how to fix it.
func validateConfig(config *addonsv1.FleetAddonConfig) field.ErrorList {
	var errs field.ErrorList
	spec := field.NewPath("spec")
	if config.Spec.Cluster != nil {
		errs = append(errs, validateCluster(spec.Child("cluster"), config.Spec.Cluster)...)
	}
	if config.Spec.Config != nil {
		errs = append(errs, validateFleetConfig(spec.Child("config"), config.Spec.Config, config.Spec.Install != nil)...)
	}
	if config.Spec.Install != nil {
		errs = append(errs, validateInstall(spec.Child("install"), config.Spec.Install)...)
	}
	return errs
}

func validateCluster(path *field.Path, cluster *addonsv1.ClusterConfig) field.ErrorList {
	var errs field.ErrorList
	errs = append(errs, bounds.Selector(cluster.Selector, path.Child("selector"))...)
	errs = append(errs, bounds.Selector(cluster.NamespaceSelector, path.Child("namespaceSelector"))...)
	errs = append(errs, bounds.Selector(cluster.AgentInitiatedSelector, path.Child("agentInitiatedSelector"))...)
	if naming := ptr.Deref(cluster.Naming, addonsv1.NamingStrategy{}); len(naming.Prefix)+len(naming.Suffix) >= validation.DNS1123LabelMaxLength {
		errs = append(errs, field.Invalid(path.Child("naming"), naming.Prefix+"…"+naming.Suffix,
			"prefix and suffix together leave no room for a name in the 63 characters that Fleet allows; shorten them"))
	}
	for i, toleration := range ptr.Deref(cluster.AgentTolerations, nil) {
		errs = append(errs, validateToleration(path.Child("agentTolerations").Index(i), toleration)...)
	}
	errs = append(errs, validateEnvVars(path.Child("agentEnvVars"), cluster.AgentEnvVars)...)
	return errs
}

// validateToleration applies the rules of core/v1. The imported cluster applies them to the Fleet agent's
// Deployment, too, but its error appears nowhere in the management cluster.
func validateToleration(path *field.Path, toleration corev1.Toleration) field.ErrorList {
	var errs field.ErrorList
	if toleration.Key != "" {
		for _, message := range validation.IsQualifiedName(toleration.Key) {
			errs = append(errs, field.Invalid(path.Child("key"), toleration.Key, message))
		}
	}
	if toleration.Key == "" && toleration.Operator != corev1.TolerationOpExists {
		errs = append(errs, field.Invalid(path.Child("operator"), toleration.Operator, "must be Exists when key is empty, which means all taints"))
	}
	switch toleration.Operator {
	case corev1.TolerationOpEqual, "":
		for _, message := range validation.IsValidLabelValue(toleration.Value) {
			errs = append(errs, field.Invalid(path.Child("value"), toleration.Value, message))
		}
	case corev1.TolerationOpExists:
		if toleration.Value != "" {
			errs = append(errs, field.Invalid(path.Child("value"), toleration.Value, "must be empty when operator is Exists; remove it, or use operator Equal"))
		}
	case corev1.TolerationOpLt, corev1.TolerationOpGt: // These operators need a feature gate: see warnings.
		if problems := content.IsDecimalInteger(toleration.Value); len(problems) > 0 {
			errs = append(errs, field.Invalid(path.Child("value"), toleration.Value, problems[0]))
		} else if _, err := strconv.ParseInt(toleration.Value, 10, 64); err != nil {
			errs = append(errs, field.Invalid(path.Child("value"), toleration.Value, "must be a signed 64-bit integer"))
		}
	default:
		errs = append(errs, field.NotSupported(path.Child("operator"), toleration.Operator,
			[]corev1.TolerationOperator{corev1.TolerationOpEqual, corev1.TolerationOpExists}))
	}
	switch toleration.Effect {
	case "", corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute:
	default:
		errs = append(errs, field.NotSupported(path.Child("effect"), toleration.Effect,
			[]corev1.TaintEffect{corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute}))
	}
	if toleration.TolerationSeconds != nil && toleration.Effect != corev1.TaintEffectNoExecute {
		errs = append(errs, field.Invalid(path.Child("effect"), toleration.Effect, "must be NoExecute when tolerationSeconds is set; change it, or remove tolerationSeconds"))
	}
	return errs
}

func validateEnvVars(path *field.Path, variables []corev1.EnvVar) field.ErrorList {
	var errs field.ErrorList
	seen := map[string]bool{}
	for i, variable := range variables {
		path := path.Index(i)
		if variable.Name == "" {
			errs = append(errs, field.Required(path.Child("name"), "name the environment variable"))
		} else {
			for _, message := range validation.IsEnvVarName(variable.Name) {
				errs = append(errs, field.Invalid(path.Child("name"), variable.Name, message))
			}
			if seen[variable.Name] {
				errs = append(errs, field.Duplicate(path.Child("name"), variable.Name))
			}
			seen[variable.Name] = true
		}
		if variable.ValueFrom == nil {
			continue
		}
		if variable.Value != "" {
			errs = append(errs, field.Invalid(path.Child("valueFrom"), "", "may not be set together with value; remove one of them"))
		}
		if sourcesOf(variable.ValueFrom) != 1 {
			errs = append(errs, field.Invalid(path.Child("valueFrom"), "", "must name exactly one source, for example secretKeyRef"))
		}
	}
	return errs
}

func sourcesOf(from *corev1.EnvVarSource) int {
	count := 0
	for _, isSet := range []bool{from.FieldRef != nil, from.ResourceFieldRef != nil, from.ConfigMapKeyRef != nil, from.SecretKeyRef != nil, from.FileKeyRef != nil} {
		if isSet {
			count++
		}
	}
	return count
}

func validateFleetConfig(path *field.Path, config *addonsv1.FleetConfig, install bool) field.ErrorList {
	var errs field.ErrorList
	if server := config.Server; server != nil {
		path := path.Child("server")
		errs = append(errs, validateServer(path, &server.CustomServer)...)
		if server.Custom != nil {
			errs = append(errs, validateServer(path.Child("custom"), server.Custom)...)
		}
	}
	if gates := config.FeatureGates; gates != nil && gates.ConfigMap != nil {
		path := path.Child("featureGates", "configMap", "ref")
		if ref := gates.ConfigMap.Ref; ref == nil || ref.Name == "" || ref.Namespace == "" {
			errs = append(errs, field.Required(path, "name and namespace of the ConfigMap that Fleet's values come from"))
		}
		if install {
			errs = append(errs, field.Forbidden(path, "with install, the feature gates go into the chart's values; remove configMap, or, if Rancher manages Fleet, install"))
		}
	}
	return errs
}

func validateServer(path *field.Path, server *addonsv1.CustomServer) field.ErrorList {
	var errs field.ErrorList
	if ref := server.APIServerCAConfigRef; ref != nil {
		path := path.Child("apiServerCaConfigRef")
		if ref.Name == "" {
			errs = append(errs, field.Required(path.Child("name"), "name of the ConfigMap or Secret whose key ca.crt holds the CA"))
		}
		if ref.Namespace == "" {
			errs = append(errs, field.Required(path.Child("namespace"), "namespace of the ConfigMap or Secret whose key ca.crt holds the CA"))
		}
	}
	return errs
}

func validateInstall(path *field.Path, install *addonsv1.FleetInstall) field.ErrorList {
	var errs field.ErrorList
	if install.Version != nil {
		errs = append(errs, validateVersion(path.Child("version"), *install.Version)...)
	}
	if repository := install.Repository; repository != nil {
		parsed, err := url.Parse(*repository)
		if err != nil || parsed.Hostname() == "" {
			errs = append(errs, field.Invalid(path.Child("repository"), *repository, "must be a URL that starts with https://, http:// or oci://, for example https://rancher.github.io/fleet-helm-charts"))
		}
	}
	if ref := install.RepositorySecretRef; ref != nil && ref.Namespace != "" && len(validation.IsDNS1123Label(ref.Namespace)) > 0 {
		errs = append(errs, field.Invalid(path.Child("repositorySecretRef", "namespace"), ref.Namespace, "must be a namespace name, for example cattle-fleet-system"))
	}
	return errs
}

// electionWarning warns of variables with which Fleet's agents end at start, on every cluster: the rules are those of client-go's
// leader election. Fleet sets all three itself; those here win. Empty for no warning.
func electionWarning(variables []corev1.EnvVar) string {
	names := []string{"CATTLE_ELECTION_LEASE_DURATION", "CATTLE_ELECTION_RENEW_DEADLINE", "CATTLE_ELECTION_RETRY_PERIOD"}
	var set []time.Duration
	isKnown := true
	for _, name := range names {
		i := slices.IndexFunc(variables, func(its corev1.EnvVar) bool { return its.Name == name })
		if i < 0 {
			continue
		}
		value, err := time.ParseDuration(variables[i].Value)
		switch {
		case variables[i].ValueFrom != nil:
			isKnown = false
		case err != nil:
			return fmt.Sprintf("%s must be a duration such as 30s; with %q, Fleet's agents end at start", name, message.Short(variables[i].Value, 80))
		}
		set = append(set, value)
	}
	const jitter = 1.2 // leaderelection.JitterFactor
	switch {
	case len(set) == 0, len(set) == len(names) && !isKnown:
		return ""
	case len(set) < len(names):
		return "set all of " + strings.Join(names, ", ") + ", or none: with others than Fleet's own, its agents may end at start"
	case set[2] > 0 && set[0] > set[1] && set[1] > time.Duration(jitter*float64(set[2])):
		return ""
	}
	return fmt.Sprintf("Fleet's agents end at start unless %s is longer than %s, and that longer than %g times %s", names[0], names[1], jitter, names[2])
}

// warnings returns warnings about fields that are allowed but have no effect, or may surprise the author.
func warnings(config *addonsv1.FleetAddonConfig) []string {
	var result []string
	for i, toleration := range ptr.Deref(ptr.Deref(config.Spec.Cluster, addonsv1.ClusterConfig{}).AgentTolerations, nil) {
		if toleration.Operator == corev1.TolerationOpLt || toleration.Operator == corev1.TolerationOpGt {
			result = append(result, fmt.Sprintf("spec.cluster.agentTolerations[%d].operator: %s is known only to Kubernetes 1.35 and later with the feature gate TaintTolerationComparisonOperators; other clusters refuse a Fleet agent that has it", i, toleration.Operator))
		}
	}
	if text := electionWarning(ptr.Deref(config.Spec.Cluster, addonsv1.ClusterConfig{}).AgentEnvVars); text != "" {
		result = append(result, "spec.cluster.agentEnvVars: "+text)
	}
	if cluster := config.Spec.Cluster; cluster != nil && cluster.AgentInitiatedSelector != nil && !ptr.Deref(cluster.AgentInitiated, false) {
		result = append(result, "spec.cluster.agentInitiatedSelector has no effect without spec.cluster.agentInitiated: true")
	}
	isBootstrapped := ptr.Deref(ptr.Deref(config.Spec.Config, addonsv1.FleetConfig{}).BootstrapLocalCluster, false)
	if install := config.Spec.Install; install != nil {
		if strings.HasPrefix(ptr.Deref(install.Repository, ""), "http://") {
			result = append(result, "spec.install.repository: http is neither encrypted nor authenticated, and its charts run with Fleet's rights; use https or oci")
		}
		exact, _ := semver.StrictNewVersion(strings.TrimPrefix(ptr.Deref(install.Version, ""), "v")) // nil for a range
		if text := defects.Message(exact); text != "" {
			result = append(result, "spec.install.version: "+text+"; a range or followLatest avoids such versions")
		}
		if !ptr.Deref(install.FollowLatest, true) {
			result = append(result, "spec.install.followLatest: false installs nothing; remove install, or set version")
		}
		if isBootstrapped {
			result = append(result, "spec.config.bootstrapLocalCluster gives Fleet all rights on this cluster")
		}
	} else if isBootstrapped {
		result = append(result, "spec.config.bootstrapLocalCluster has no effect without spec.install")
	}
	return result
}
