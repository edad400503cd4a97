package trace

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/muster-fleet/muster/internal/fleetpolicy"
	"github.com/muster-fleet/muster/internal/view"
	"github.com/muster-fleet/muster/internal/view/targets"
)

// Explain returns the trace for a Bundle and a Cluster.
func Explain(in *Input) *Trace {
	e := &explainer{Input: in, trace: &Trace{Bundle: in.Bundle.String(), Cluster: in.Cluster.String(), Verdict: Targeted}}
	if in.Proxy.Name != "" {
		e.trace.HelmChartProxy = in.Proxy.String()
	}
	for _, step := range []func() (more bool){e.bundle, e.cluster, e.namespace, e.target, e.allowed, e.policy, e.reported, e.fleetNamespace} {
		if !step() {
			break
		}
	}
	e.deployment()
	e.conclude()
	e.clean()
	return e.trace
}

type explainer struct {
	*Input
	trace *Trace
	match *targets.Match
	// takenBy is the Bundle that has this one's BundleDeployment.
	takenBy string
}

func (e *explainer) add(name string, result Result, details []string, format string, args ...any) {
	e.trace.Steps = append(e.trace.Steps, Step{name, result, fmt.Sprintf(format, args...), details})
	if result == Failed && e.trace.FailedStep == "" {
		e.trace.FailedStep = name
	}
}

func (e *explainer) passed(name string, details []string, format string, args ...any) bool {
	e.add(name, Passed, details, format, args...)
	return true
}

func (e *explainer) failed(name string, details []string, format string, args ...any) bool {
	e.add(name, Failed, details, format, args...)
	e.trace.Verdict = NotTargeted
	return false
}

func (e *explainer) unknown(name string, kind view.Kind) bool {
	e.add(name, Unknown, nil, "%s: %s", kind.Plural(), e.Unread[kind])
	e.trace.Verdict = Undecided
	return false
}

func (e *explainer) bundle() bool {
	switch {
	case e.Found == nil && e.Unread[view.Bundle] != "":
		return e.unknown(StepBundle, view.Bundle)
	case e.Found == nil && e.Proxy.Name != "":
		e.trace.Do = e.adviseProxy()
		return e.failed(StepBundle, nil, "HelmChartProxy %s has no Bundle for the Cluster", e.Proxy)
	case e.Found == nil:
		e.trace.Do = "look up its name: kubectl get bundles.fleet.cattle.io -A; a HelmOp or GitRepo creates it only when its chart or repository can be read"
		return e.failed(StepBundle, nil, "there is no Bundle %s", e.Bundle)
	case !e.Found.DeletionTimestamp.IsZero():
		return e.failed(StepBundle, nil, "Bundle %s is being deleted", e.Bundle)
	}
	source := ""
	if made := view.SourceOf(e.Found.Labels); made != "" {
		source = ", which " + made + " made"
	}
	return e.passed(StepBundle, nil, "Bundle %s exists%s", e.Bundle, source)
}

func (e *explainer) adviseProxy() string {
	return fmt.Sprintf("its conditions, and those of the HelmReleaseProxy for the Cluster, say whether it selects the Cluster, and what it waits for: kubectl describe helmchartproxies -n %s %s", e.Proxy.Namespace, e.Proxy.Name)
}

func (e *explainer) cluster() bool {
	fleetName := ""
	if e.Fleet != nil && e.Fleet.Name != e.Cluster.Name {
		fleetName = fmt.Sprintf(" as %q", e.Fleet.Name)
	}
	switch {
	case e.Fleet != nil:
		var details []string
		if e.Judged != nil && e.Judged.State != view.Ready {
			details = append(details, strings.TrimSuffix(fmt.Sprintf("its state is %s: %s", e.Judged.Reason, e.Judged.Message), ": "))
		}
		return e.passed(StepCluster, details, "Cluster %s is in Fleet%s", e.Cluster, fleetName)
	case e.Unread[view.FleetCluster] != "" && !e.isReportedMissing():
		return e.unknown(StepCluster, view.FleetCluster)
	case e.CAPI == nil && e.Unread[view.Cluster] != "":
		return e.unknown(StepCluster, view.Cluster)
	case e.CAPI == nil:
		e.trace.Do = "look up its name: kubectl muster tree"
		return e.failed(StepCluster, nil, "there is no Cluster %s, neither in Cluster API nor in Fleet", e.Cluster)
	}
	why := "it has no Fleet Cluster"
	if e.Judged != nil {
		e.trace.Do = view.TurnOf(e.Judged.Turn, e.Judged.Do)
		why = strings.TrimSuffix(e.Judged.Reason+": "+e.Judged.Message, ": ")
	}
	return e.failed(StepCluster, nil, "Cluster %s is not in Fleet: %s", e.Cluster, why)
}

// isReportedMissing reports whether the Cluster's own condition says that it is not in Fleet.
func (e *explainer) isReportedMissing() bool {
	return e.CAPI != nil && e.CAPI.Imported != nil && e.CAPI.Imported.Status == "False"
}

func (e *explainer) namespace() bool {
	namespace := e.Fleet.Namespace
	reach := targets.ReachOf(e.Found, namespace, e.namespaceLabels(namespace), e.Mappings)
	switch {
	case reach.Own:
		return e.passed(StepNamespace, nil, "both are in namespace %s", namespace)
	case reach.Reaches():
		return e.passed(StepNamespace, nil, "BundleNamespaceMapping %s of namespace %s leads to namespace %s", strings.Join(reach.Through, ", "), e.Bundle.Namespace, namespace)
	case e.Unread[view.Mapping] != "":
		return e.unknown(StepNamespace, view.Mapping)
	case e.Unread[view.Namespace] != "" && len(reach.Others) > 0:
		return e.unknown(StepNamespace, view.Namespace)
	}
	details := refusals("mapping", reach.Others)
	if len(details) == 0 {
		details = []string{fmt.Sprintf("namespace %s has no BundleNamespaceMapping", e.Bundle.Namespace)}
	}
	e.trace.Do = e.adviseMapping()
	return e.failed(StepNamespace, details, "no BundleNamespaceMapping leads Bundle %s from namespace %s to namespace %s", e.Bundle.Name, e.Bundle.Namespace, namespace)
}

// namespaceLabels returns the labels of a Namespace; if they are unknown, the label that every Namespace has.
func (e *explainer) namespaceLabels(name string) map[string]string {
	if known := e.Namespaces[name]; known != nil {
		return known
	}
	return map[string]string{"kubernetes.io/metadata.name": name}
}

// adviseMapping returns what makes Muster create a mapping.
func (e *explainer) adviseMapping() string {
	if e.CAPI != nil && e.CAPI.Class.Namespace == e.Bundle.Namespace {
		return "Muster creates that mapping while a selected, unpaused Cluster of the namespace uses a class of the other: if this Cluster does, the syncer's log says what prevents it"
	}
	class := "no class"
	if e.CAPI != nil && e.CAPI.Class.Name != "" {
		class = "class " + e.CAPI.Class.String()
	}
	return fmt.Sprintf("Bundles reach a Cluster from its own namespace and from that of its class; this Cluster uses %s: put the Bundle there, or create a mapping by hand", class)
}

func refusals(what string, all []targets.Refusal) []string {
	var result []string
	for _, one := range all {
		result = append(result, strings.TrimSpace(fmt.Sprintf("%s %s: %s", what, one.Name, one.Why)))
	}
	return result
}

func (e *explainer) target() bool {
	in, others := targets.GroupsOf(e.Fleet, e.Groups)
	if e.Unread[view.ClusterGroup] != "" {
		e.add(StepGroups, Unknown, nil, "%s: %s", view.ClusterGroup.Plural(), e.Unread[view.ClusterGroup])
	} else {
		var names []string
		for _, group := range in {
			names = append(names, group.Name)
		}
		message := "the Fleet Cluster is in no group"
		if len(names) > 0 {
			message = "the Fleet Cluster is in " + strings.Join(names, ", ")
		}
		e.add(StepGroups, Note, refusals("group", wanted(e.Found, others)), "%s", message)
	}
	e.match = targets.MatchOf(e.Found, e.Fleet, in)
	switch {
	case e.match.Invalid != nil:
		e.trace.Do = "correct the Bundle; until then Fleet does not update it"
		return e.failed(StepTarget, nil, "a target of the Bundle is invalid: %s", e.match.Invalid)
	case e.match.Target != nil:
		details := []string{}
		for _, customization := range e.match.Customizations {
			details = append(details, fmt.Sprintf("customized by target customization %q", customization.Name))
		}
		return e.passed(StepTarget, details, "%s matches", e.match.Name)
	case e.Unread[view.ClusterGroup] != "":
		e.trace.Verdict = Undecided
		e.add(StepTarget, Unknown, refusals("", e.match.Tried), "without the groups, it is unknown whether a target matches")
		return false
	}
	if e.Proxy.Name != "" {
		e.trace.Do = e.adviseProxy()
		return e.failed(StepTarget, nil, "the Bundle of HelmChartProxy %s has no target for the Cluster", e.Proxy)
	}
	details := refusals("", e.match.Tried)
	if len(details) == 0 {
		details = []string{"the Bundle has no targets"}
	}
	e.trace.Do = "change the Bundle's targets, or the labels of the Cluster or its ClusterClass, which Muster copies to the Fleet Cluster"
	return e.failed(StepTarget, details, "no target of the Bundle matches the Cluster")
}

// wanted returns the groups that the Bundle names and the Cluster is not in.
func wanted(bundle *fleetv1.Bundle, others []targets.Refusal) []targets.Refusal {
	return slices.DeleteFunc(slices.Clone(others), func(group targets.Refusal) bool {
		return !slices.ContainsFunc(bundle.Spec.Targets, func(target fleetv1.BundleTarget) bool { return target.ClusterGroup == group.Name })
	})
}

func (e *explainer) allowed() bool {
	if e.match.DoNotDeploy == "" {
		return true // There is nothing to report.
	}
	e.trace.Do = "if the Bundle should be deployed, remove doNotDeploy"
	return e.failed(StepAllowed, nil, "%s says doNotDeploy", e.match.DoNotDeploy)
}

// policy checks what Fleet does before it works on the targets. What is deployed stays.
func (e *explainer) policy() bool {
	if why := e.Unread[view.Policy]; why != "" {
		e.add(StepPolicy, Unknown, nil, "it is unknown whether a Policy refuses the Bundle: %s: %s", view.Policy.Plural(), why)
		return true // Most namespaces have none.
	}
	refusal := fleetpolicy.Of(e.Policies, &e.Found.Spec)
	if refusal == nil {
		return true // There is nothing to report.
	}
	of := cmp.Or(view.SourceOf(e.Found.Labels), "the Bundle, or of the HelmChartProxy that makes it,")
	e.trace.Do = refusal.Do("spec.serviceAccount of "+of) + "; until then Fleet does not update the Bundle on any Cluster, and uninstalls it from none"
	e.add(StepPolicy, Failed, nil, "%s", refusal.Why(e.Bundle.Namespace))
	e.trace.Verdict = Blocked
	return false
}

// reported checks what Fleet reports: if the values cannot be rendered for one Cluster, it updates the Bundle on none.
func (e *explainer) reported() bool {
	why := view.BundleError(e.Found)
	if why == "" {
		return true // There is nothing to report.
	}
	e.trace.Do = "correct the Bundle, or give the Cluster in the message the values or labels that the Bundle refers to; until then Fleet changes nothing about the Bundle on any Cluster"
	e.add(StepError, Failed, nil, "Fleet reports about the Bundle: %s", why)
	e.trace.Verdict = Blocked
	return false
}

func (e *explainer) fleetNamespace() bool {
	if e.Fleet.Status.Namespace == "" {
		e.trace.Do = "needs action from Fleet: its agent management gives each Fleet Cluster a namespace; does it run?"
		return e.failed(StepReady, nil, "Fleet has given the Fleet Cluster no namespace yet, so it cannot deploy to the cluster")
	}
	return true
}

// deployment finds the BundleDeployment that Fleet has created.
func (e *explainer) deployment() {
	if e.Fleet == nil || e.Fleet.Status.Namespace == "" {
		return
	}
	if e.Unread[view.Deployment] != "" {
		e.add(StepDeployment, Unknown, nil, "%s: %s", view.Deployment.Plural(), e.Unread[view.Deployment])
		return
	}
	e.name()
	for _, deployment := range e.Deployments {
		if deployment.Namespace != e.Fleet.Status.Namespace || bundleOf(deployment) != e.Bundle {
			continue
		}
		cut := view.CutDeployment(deployment)
		e.trace.Deployed = &Deployed{Namespace: deployment.Namespace, Name: deployment.Name, State: string(cut.State), Message: cut.Message}
		if cut.Desired > 0 {
			e.trace.Deployed.Resources = fmt.Sprintf("%d/%d", cut.Ready, cut.Desired)
		}
		var details []string
		for _, trouble := range cut.Troubled {
			details = append(details, fmt.Sprintf("%s %s: %s", trouble.Kind, strings.TrimPrefix(trouble.Namespace+"/"+trouble.Name, "/"), trouble.Why))
		}
		e.add(StepDeployment, Note, details, "%s", strings.TrimSuffix(fmt.Sprintf("Fleet has BundleDeployment %s/%s: %s: %s", deployment.Namespace, deployment.Name, cut.State, cut.Message), ": "))
		return
	}
	e.add(StepDeployment, Note, nil, "Fleet has no BundleDeployment of it in namespace %s", e.Fleet.Status.Namespace)
}

func bundleOf(deployment *fleetv1.BundleDeployment) types.NamespacedName {
	return types.NamespacedName{Namespace: deployment.Labels[fleetv1.BundleNamespaceLabel], Name: deployment.Labels[fleetv1.BundleLabel]}
}

// name looks for Bundles of the same name that target the Cluster, too: Fleet names a BundleDeployment after its Bundle
// only.
func (e *explainer) name() {
	if e.trace.Verdict != Targeted && e.trace.Verdict != Blocked {
		return
	}
	advice := "rename one of the two, or the GitRepo or HelmOp that makes it; on this Cluster they replace each other"
	for _, deployment := range e.Deployments {
		if owner := bundleOf(deployment); deployment.Namespace == e.Fleet.Status.Namespace && deployment.Name == e.Bundle.Name && owner != e.Bundle {
			e.trace.Verdict, e.trace.Do = Blocked, advice
			e.takenBy = owner.String()
			e.add(StepName, Failed, nil, "Bundle %s has the same name, and BundleDeployment %s/%s belongs to it", owner, deployment.Namespace, deployment.Name)
			return
		}
	}
	in, _ := targets.GroupsOf(e.Fleet, e.Groups)
	for _, other := range e.Namesakes {
		reaches := targets.ReachOf(other, e.Fleet.Namespace, e.namespaceLabels(e.Fleet.Namespace), e.Mappings).Reaches()
		if reaches && other.DeletionTimestamp.IsZero() && targets.MatchOf(other, e.Fleet, in).Deploys() {
			if e.trace.Do == "" {
				e.trace.Do = advice
			}
			e.add(StepName, Note, nil, "Bundle %s/%s has the same name and targets the Cluster, too: they replace each other there, because Fleet names a BundleDeployment after its Bundle only", other.Namespace, other.Name)
		}
	}
}
