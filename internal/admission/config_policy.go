package admission

import (
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/Masterminds/semver/v3"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/bounds"
	"github.com/muster-fleet/muster/internal/defects"
)

// validateConfig returns all errors of a FleetAddonConfig: for each the field, and a sentence that says how to fix
// it. The CRD refuses some of these, too, so that its rules hold while the webhook is down; the webhook lists all
// problems in one answer.
func validateConfig(config *addonsv1.FleetAddonConfig) field.ErrorList {
	var errs field.ErrorList
	if config.Name != addonsv1.FleetAddonConfigName {
		errs = append(errs, field.Invalid(field.NewPath("metadata", "name"), config.Name,
			"the only FleetAddonConfig is named "+addonsv1.FleetAddonConfigName+"; rename this one"))
	}
	spec := field.NewPath("spec")
	if config.Spec.Cluster != nil {
		errs = append(errs, validateCluster(spec.Child("cluster"), config.Spec.Cluster)...)
	}
	if policy := config.Spec.Policy; policy != nil {
		errs = append(errs, validateOneOf(spec.Child("policy", "crossNamespaceClass"), policy.CrossNamespaceClass,
			addonsv1.CrossNamespaceClassEnforce, addonsv1.CrossNamespaceClassWarn, addonsv1.CrossNamespaceClassOff)...)
		errs = append(errs, validateOneOf(spec.Child("policy", "crossNamespaceClassVerb"), policy.CrossNamespaceClassVerb,
			addonsv1.CrossNamespaceClassVerbGet, addonsv1.CrossNamespaceClassVerbUse)...)
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
	if naming := cluster.Naming; naming != nil {
		// A letter in place of the name shows whether the prefix is a valid start, and the suffix a valid end.
		if len(validation.IsDNS1123Label(naming.Prefix+"x")) > 0 {
			errs = append(errs, field.Invalid(path.Child("naming", "prefix"), naming.Prefix,
				"a name that starts with it is not a DNS label, which a Fleet Cluster's name must be; use lower-case letters, digits and '-', starting with a letter or digit, for example capi-"))
		}
		if len(validation.IsDNS1123Label("x"+naming.Suffix)) > 0 {
			errs = append(errs, field.Invalid(path.Child("naming", "suffix"), naming.Suffix,
				"a name that ends with it is not a DNS label, which a Fleet Cluster's name must be; use lower-case letters, digits and '-', ending with a letter or digit, for example -fleet"))
		}
		if len(naming.Prefix)+len(naming.Suffix) >= validation.DNS1123LabelMaxLength {
			errs = append(errs, field.Invalid(path.Child("naming"), naming.Prefix+"…"+naming.Suffix,
				"prefix and suffix together leave no room for a name in the 63 characters that Fleet allows; shorten them"))
		}
	}
	if namespace := ptr.Deref(cluster.AgentNamespace, ""); namespace != "" && len(validation.IsDNS1123Label(namespace)) > 0 {
		errs = append(errs, field.Invalid(path.Child("agentNamespace"), namespace,
			"must be a namespace name: lower-case letters, digits and '-', starting and ending with a letter or digit, for example fleet-addon-agent"))
	}
	for i, toleration := range ptr.Deref(cluster.AgentTolerations, nil) {
		errs = append(errs, validateToleration(path.Child("agentTolerations").Index(i), toleration)...)
	}
	errs = append(errs, validateEnvVars(path.Child("agentEnvVars"), cluster.AgentEnvVars)...)
	errs = append(errs, validateOneOf(path.Child("onDeselect"), cluster.OnDeselect, addonsv1.DeselectKeep, addonsv1.DeselectDelete)...)
	if values := cluster.TemplateValues; values != nil {
		for i, pointer := range ptr.Deref(values.Exclude, nil) {
			if !isJSONPointer(pointer) {
				errs = append(errs, field.Invalid(path.Child("templateValues", "exclude").Index(i), pointer,
					"must be a JSON pointer that starts with '/', with ~0 for ~ and ~1 for /, for example /ControlPlane/spec/kubeadmConfigSpec/files"))
			}
		}
	}
	return errs
}

// validateOneOf refuses a value that is not allowed; an empty value stands for the default.
func validateOneOf[T ~string](path *field.Path, value T, allowed ...T) field.ErrorList {
	if value == "" || slices.Contains(allowed, value) {
		return nil
	}
	return field.ErrorList{field.NotSupported(path, value, allowed)}
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
		shorthand := server.APIServerURL != nil || server.APIServerCAConfigRef != nil
		if (server.InferLocal != nil) == (server.Custom != nil || shorthand) {
			errs = append(errs, field.Invalid(path, "", "set exactly one of inferLocal and custom: inferLocal takes the management cluster's own address, custom takes yours; remove the other"))
		}
		if server.Custom != nil && shorthand {
			errs = append(errs, field.Invalid(path, "", "move apiServerUrl and apiServerCaConfigRef into custom"))
		}
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
	if server.APIServerURL != nil {
		parsed, err := url.Parse(*server.APIServerURL)
		if err != nil || !strings.HasPrefix(*server.APIServerURL, "https://") || parsed.Hostname() == "" || strings.ContainsAny(*server.APIServerURL, "@?#") {
			errs = append(errs, field.Invalid(path.Child("apiServerUrl"), *server.APIServerURL,
				"must be an absolute https URL with a host and without user, query or fragment, for example https://rancher.example.com:6443"))
		}
	}
	if ref := server.APIServerCAConfigRef; ref != nil {
		path := path.Child("apiServerCaConfigRef")
		if ref.Kind != "" && ref.Kind != "ConfigMap" && ref.Kind != "Secret" {
			errs = append(errs, field.NotSupported(path.Child("kind"), ref.Kind, []string{"ConfigMap", "Secret"}))
		}
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
	if (install.FollowLatest != nil) == (install.Version != nil) {
		errs = append(errs, field.Invalid(path, "", "set exactly one of followLatest and version: followLatest installs the newest release, version the one you name"))
	}
	if install.Version != nil {
		errs = append(errs, validateVersion(path.Child("version"), *install.Version)...)
	}
	if repository := install.Repository; repository != nil {
		parsed, err := url.Parse(*repository)
		if err != nil || !slices.Contains([]string{"https", "http", "oci"}, parsed.Scheme) || parsed.Hostname() == "" {
			errs = append(errs, field.Invalid(path.Child("repository"), *repository, "must be a URL that starts with https://, http:// or oci://, for example https://rancher.github.io/fleet-helm-charts"))
		}
	}
	if ref := install.RepositorySecretRef; ref != nil {
		path := path.Child("repositorySecretRef")
		if ref.Name == "" {
			errs = append(errs, field.Required(path.Child("name"), "name of the Secret with username and password, token, or ca.crt"))
		}
		if ref.Namespace != "" && len(validation.IsDNS1123Label(ref.Namespace)) > 0 {
			errs = append(errs, field.Invalid(path.Child("namespace"), ref.Namespace, "must be a namespace name, for example cattle-fleet-system"))
		}
	}
	errs = append(errs, validateOneOf(path.Child("mode"), install.Mode, addonsv1.InstallApply, addonsv1.InstallPlan)...)
	return errs
}

// isJSONPointer reports whether a string is a JSON pointer (RFC 6901) to something
// below the root.
func isJSONPointer(pointer string) bool {
	rest := strings.NewReplacer("~0", "", "~1", "").Replace(pointer)
	return strings.HasPrefix(pointer, "/") && !strings.Contains(rest, "~")
}

// warnings returns warnings about fields that are allowed but have no effect, or may surprise the author.
func warnings(config *addonsv1.FleetAddonConfig) []string {
	var result []string
	fleet := ptr.Deref(config.Spec.Config, addonsv1.FleetConfig{})
	for i, toleration := range ptr.Deref(ptr.Deref(config.Spec.Cluster, addonsv1.ClusterConfig{}).AgentTolerations, nil) {
		if toleration.Operator == corev1.TolerationOpLt || toleration.Operator == corev1.TolerationOpGt {
			result = append(result, fmt.Sprintf("spec.cluster.agentTolerations[%d].operator: %s is known only to Kubernetes 1.35 and later with the feature gate TaintTolerationComparisonOperators; other clusters refuse a Fleet agent that has it", i, toleration.Operator))
		}
	}
	if cluster := config.Spec.Cluster; cluster != nil && cluster.AgentInitiatedSelector != nil && !ptr.Deref(cluster.AgentInitiated, false) {
		result = append(result, "spec.cluster.agentInitiatedSelector has no effect without spec.cluster.agentInitiated: true")
	}
	if install := config.Spec.Install; install != nil && strings.HasPrefix(ptr.Deref(install.Repository, ""), "http://") {
		result = append(result, "spec.install.repository: http is neither encrypted nor authenticated, and its charts run with Fleet's rights; use https or oci")
	}
	if install := config.Spec.Install; install != nil {
		exact, _ := semver.StrictNewVersion(strings.TrimPrefix(ptr.Deref(install.Version, ""), "v")) // nil for a range
		if text := defects.Message(exact); text != "" {
			result = append(result, "spec.install.version: "+text+"; a range or followLatest avoids such versions")
		}
	}
	if install := config.Spec.Install; install != nil && install.FollowLatest != nil && !*install.FollowLatest {
		result = append(result, "spec.install.followLatest: false installs nothing; remove install, or set version")
	}
	if ptr.Deref(fleet.BootstrapLocalCluster, false) && config.Spec.Install == nil {
		result = append(result, "spec.config.bootstrapLocalCluster has no effect without spec.install")
	}
	if ptr.Deref(fleet.BootstrapLocalCluster, false) && config.Spec.Install != nil {
		result = append(result, "spec.config.bootstrapLocalCluster gives Fleet all rights on this cluster")
	}
	return result
}
