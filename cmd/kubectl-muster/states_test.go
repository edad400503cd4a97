package main

import (
	"fmt"
	"maps"
	"time"

	fleetv1 "github.com/rancher/fleet/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/rancher/wrangler/v3/pkg/genericcondition"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/helm/plan"
	"github.com/muster-fleet/muster/internal/hold"
	"github.com/muster-fleet/muster/internal/settings"
	"github.com/muster-fleet/muster/internal/stamp"
	"github.com/muster-fleet/muster/internal/stamp/desired"
)

// noon is the latest time in the states, and the current time for the commands.
var noon = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

func ago(d time.Duration) metav1.Time { return metav1.NewTime(noon.Add(-d)) }

// world is a healthy management cluster. It has the groups, mappings and Fleet Clusters that the syncer
// creates.
type world struct {
	objects []client.Object
	config  *addonsv1.FleetAddonConfig
}

var standard = types.NamespacedName{Namespace: "classes", Name: "standard"}

func newWorld() *world {
	w := &world{config: &addonsv1.FleetAddonConfig{}}
	w.config.Name = addonsv1.FleetAddonConfigName
	w.config.CreationTimestamp = metav1.NewTime(noon)
	for _, name := range []string{"classes", "team-a", "team-b"} {
		namespace := &corev1.Namespace{}
		namespace.Name, namespace.Labels = name, map[string]string{corev1.LabelMetadataName: name}
		w.objects = append(w.objects, namespace)
	}
	class := &clusterv1.ClusterClass{}
	class.Namespace, class.Name, class.UID = standard.Namespace, standard.Name, "class-uid"
	w.objects = append(w.objects, w.config, class)
	w.add(desired.ClassGroup(settings.Default(), desiredClass(class)))
	return w
}

func desiredClass(class *clusterv1.ClusterClass) *desired.Class {
	return &desired.Class{ObjectMeta: class.ObjectMeta}
}

func (w *world) add(objects ...client.Object) { w.objects = append(w.objects, objects...) }

// drop removes all objects of a kind.
func drop[T client.Object](w *world) {
	var left []client.Object
	for _, object := range w.objects {
		if _, is := object.(T); !is {
			left = append(left, object)
		}
	}
	w.objects = left
}

// find returns an object by its kind and name.
func find[T client.Object](w *world, name string) T {
	for _, object := range w.objects {
		if found, is := object.(T); is && found.GetName() == name {
			return found
		}
	}
	panic("no " + name)
}

// cluster adds a Cluster and the objects that Muster creates for it.
func (w *world) cluster(namespace, name string, class types.NamespacedName) (*clusterv1.Cluster, *fleetv1.Cluster) {
	cluster := &clusterv1.Cluster{}
	cluster.Namespace, cluster.Name, cluster.UID = namespace, name, types.UID(namespace+"-"+name)
	cluster.Labels = map[string]string{"env": name}
	if class.Name != "" {
		cluster.Spec.Topology.ClassRef = clusterv1.ClusterClassRef{Namespace: class.Namespace, Name: class.Name}
		cluster.Labels = stamp.Merge(cluster.Labels, stamp.Labels(class))
	}
	cluster.Annotations = map[string]string{stamp.OwnedByAnnotation: addonsv1.FleetAddonConfigName, stamp.ClusterNameAnnotation: name}
	told(cluster, metav1.ConditionTrue, "Imported", fmt.Sprintf("in Fleet as Cluster %q", name))

	fleet := desired.FleetCluster(settings.Default(), cluster, nil, map[string]any{"Cluster": map[string]any{"metadata": map[string]any{"name": name}}}, desired.Targets{}, "")
	fleet.Status.Namespace = stamp.FleetNamespace(namespace, name)
	fleet.Status.Agent.LastSeen = ago(40 * time.Second)
	fleet.Status.Display.ReadyBundles = "2/2"
	fleet.Status.ResourceCounts = fleetv1.ResourceCounts{Ready: 12, DesiredReady: 12}
	w.add(cluster, fleet)
	if class.Name != "" && class.Namespace != namespace {
		w.add(desired.CrossNamespaceGroup(settings.Default(), namespace, class, nil), desired.Mapping(class.Namespace, namespace))
	}
	return cluster, fleet
}

func told(cluster *clusterv1.Cluster, status metav1.ConditionStatus, reason, message string) {
	cluster.Status.Conditions = []metav1.Condition{{Type: "FleetImported", Status: status, Reason: reason, Message: message, LastTransitionTime: ago(3 * time.Hour)}}
	if status == metav1.ConditionTrue {
		cluster.Status.Conditions = append(cluster.Status.Conditions, metav1.Condition{Type: "FleetBundlesReady", Status: metav1.ConditionTrue, Reason: "BundlesReady", LastTransitionTime: ago(2 * time.Hour)})
	}
}

// notImported removes the Fleet Cluster of a Cluster.
func (w *world) notImported(cluster *clusterv1.Cluster, reason, message string) {
	told(cluster, metav1.ConditionFalse, reason, message)
	var left []client.Object
	for _, object := range w.objects {
		if fleet, is := object.(*fleetv1.Cluster); !is || fleet.Name != cluster.Name || fleet.Namespace != cluster.Namespace {
			left = append(left, object)
		}
	}
	w.objects = left
}

// bundle adds a Bundle of the class's namespace for all Clusters of the class, and its
// BundleDeployment on these Clusters.
func (w *world) bundle(name string, on ...*fleetv1.Cluster) *fleetv1.Bundle {
	bundle := &fleetv1.Bundle{}
	bundle.Namespace, bundle.Name = standard.Namespace, name
	bundle.Labels = map[string]string{fleetv1.HelmOpLabel: name}
	bundle.Spec.Targets = []fleetv1.BundleTarget{{ClusterSelector: &metav1.LabelSelector{MatchLabels: stamp.Labels(standard)}}}
	w.add(bundle)
	for _, fleet := range on {
		w.deploy(bundle, fleet)
	}
	return bundle
}

// proxy adds a HelmChartProxy with its Bundle for these Clusters of its namespace, which it returns.
func (w *world) proxy(namespace, name string, on ...*fleetv1.Cluster) *fleetv1.Bundle {
	proxy := &addonsv1.HelmChartProxy{}
	proxy.Namespace, proxy.Name = namespace, name
	proxy.Spec.ChartName, proxy.Spec.RepoURL = name, "https://charts.example.com"
	w.add(proxy)
	if len(on) == 0 {
		return nil
	}
	key := types.NamespacedName{Namespace: namespace, Name: on[0].Name}
	bundle := plan.NewBundle(proxy, namespace, plan.BundleName(proxy, key, 0), plan.Chart{Version: "1.0.0"}, "")
	for _, fleet := range on {
		bundle.Spec.Targets = append(bundle.Spec.Targets, fleetv1.BundleTarget{Name: fleet.Name, ClusterName: fleet.Name})
	}
	w.add(bundle)
	return bundle
}

func (w *world) deploy(bundle *fleetv1.Bundle, fleet *fleetv1.Cluster) *fleetv1.BundleDeployment {
	deployment := &fleetv1.BundleDeployment{}
	deployment.Namespace, deployment.Name = fleet.Status.Namespace, bundle.Name
	deployment.Labels = map[string]string{
		fleetv1.BundleLabel: bundle.Name, fleetv1.BundleNamespaceLabel: bundle.Namespace, fleetv1.HelmOpLabel: bundle.Name,
		fleetv1.ClusterLabel: fleet.Name, fleetv1.ClusterNamespaceLabel: fleet.Namespace,
	}
	if bundle.Labels[plan.ProxyLabel] != "" { // Fleet copies the labels that are not its own.
		delete(deployment.Labels, fleetv1.HelmOpLabel)
		maps.Copy(deployment.Labels, bundle.Labels)
	}
	deployment.Spec.DeploymentID, deployment.Spec.StagedDeploymentID, deployment.Status.AppliedDeploymentID = "1", "1", "1"
	deployment.Status.Ready, deployment.Status.NonModified = true, true
	deployment.Status.ResourceCounts = fleetv1.ResourceCounts{Ready: 6, DesiredReady: 6}
	w.add(deployment)
	return deployment
}

func notReady(deployment *fleetv1.BundleDeployment, message string) {
	deployment.Status.Ready = false
	deployment.Status.ResourceCounts.Ready = 4
	resource := fleetv1.NonReadyStatus{Kind: "DaemonSet", APIVersion: "apps/v1", Namespace: "kube-system", Name: "calico-node"}
	resource.Summary.State, resource.Summary.Message = "in-progress", []string{message}
	deployment.Status.NonReadyStatus = []fleetv1.NonReadyStatus{resource}
}

func troubled(fleet *fleetv1.Cluster, state fleetv1.BundleState, message string) {
	fleet.Status.Display.State, fleet.Status.Display.ReadyBundles = string(state), "1/2"
	fleet.Status.Conditions = []genericcondition.GenericCondition{{Type: "Ready", Status: "False", Message: message}}
}

// targetingError is what Fleet reports about a Bundle whose values cannot be rendered for a Cluster.
const targetingError = `targeting error: cluster prod in namespace team-a: failed to process template values: template: values:1:18: executing "values" at <.ClusterLabels.region>: map has no entry for key "region"`

// reported gives a Bundle the condition Ready=False.
func reported(bundle *fleetv1.Bundle, reason, message string) {
	bundle.Status.Conditions = []genericcondition.GenericCondition{{Type: "Ready", Status: "False", Reason: reason, Message: message}}
}

// state is a typical state of a management cluster.
type state struct {
	name string
	make func(*world)
	// trace is the Bundle and the Cluster of which this state is typical.
	trace [2]string
	// verdict is the expected verdict, and step the first step that fails. Both are written by hand.
	verdict, step string
}

// states are the recorded states.
func states() []state {
	healthy := func(w *world) (*clusterv1.Cluster, *fleetv1.Cluster) {
		dev, fleet := w.cluster("classes", "dev", standard)
		w.bundle("cni", fleet)
		w.bundle("monitoring", fleet)
		return dev, fleet
	}
	across := func(w *world) (*clusterv1.Cluster, *fleetv1.Cluster) {
		healthy(w)
		prod, fleet := w.cluster("team-a", "prod", standard)
		w.deploy(find[*fleetv1.Bundle](w, "cni"), fleet)
		w.deploy(find[*fleetv1.Bundle](w, "monitoring"), fleet)
		return prod, fleet
	}
	undeployed := func(w *world, fleet *fleetv1.Cluster) {
		var left []client.Object
		for _, object := range w.objects {
			if deployment, is := object.(*fleetv1.BundleDeployment); !is || deployment.Namespace != fleet.Status.Namespace {
				left = append(left, object)
			}
		}
		w.objects = left
	}
	return []state{
		{"healthy", func(w *world) { healthy(w) }, [2]string{"cni", "classes/dev"}, "Targeted", ""},
		{"waiting", func(w *world) {
			dev, fleet := healthy(w)
			undeployed(w, fleet)
			w.notImported(dev, "WaitingForControlPlane", "the control plane is not initialized yet")
		}, [2]string{"cni", "classes/dev"}, "NotTargeted", "cluster"},
		{"conflict", func(w *world) {
			prod, fleet := across(w)
			undeployed(w, fleet)
			w.notImported(prod, "NameConflict", `Fleet Cluster "prod" was created by someone else; to hand it over with what is deployed there: kubectl annotate clusters.fleet.cattle.io -n team-a prod fleet.addons.cluster.x-k8s.io/adopt=true; delete it only if its cluster is gone`)
			foreign := &fleetv1.Cluster{}
			foreign.Namespace, foreign.Name = "team-a", "prod"
			foreign.Status.Agent.LastSeen = ago(time.Minute)
			foreign.Status.Namespace, foreign.Status.Display.ReadyBundles = "cluster-team-a-prod-0", "1/1"
			w.add(foreign)
		}, [2]string{"cni", "team-a/prod"}, "NotTargeted", "cluster"},
		{"paused", func(w *world) {
			prod, _ := across(w)
			prod.Spec.Paused = ptr.To(true)
			told(prod, metav1.ConditionTrue, "Paused", "the Cluster is paused; nothing is changed in Fleet until it is unpaused")
		}, [2]string{"cni", "team-a/prod"}, "Targeted", ""},
		{"deselected", func(w *world) {
			prod, _ := across(w)
			selector := &metav1.LabelSelector{MatchLabels: map[string]string{"env": "dev"}}
			w.config.Spec.Cluster = &addonsv1.ClusterConfig{Selector: selector}
			told(prod, metav1.ConditionTrue, "Deselected", "what Fleet has of it is kept as it was: its labels do not match spec.cluster.selector of the FleetAddonConfig (env=dev)")
			never, _ := w.cluster("team-b", "never", standard)
			w.notImported(never, "", "")
			never.Status.Conditions, never.Annotations = nil, nil
		}, [2]string{"cni", "team-b/never"}, "NotTargeted", "cluster"},
		{"cross-namespace", func(w *world) { across(w) }, [2]string{"cni", "team-a/prod"}, "Targeted", ""},
		{"no-class", func(w *world) {
			_, fleet := w.cluster("team-a", "legacy", types.NamespacedName{})
			fleet.Labels["env"] = "legacy"
			w.bundle("cni")
			w.add(desired.Mapping("classes", "team-b"))
			local := &fleetv1.Cluster{}
			local.Namespace, local.Name = "fleet-local", "local"
			local.Status.Agent.LastSeen = ago(10 * time.Second)
			local.Status.Namespace, local.Status.Display.ReadyBundles = "cluster-fleet-local-local-1a3d67d0a899", "1/1"
			w.add(local)
		}, [2]string{"cni", "team-a/legacy"}, "NotTargeted", "namespace"},
		{"agent-stale", func(w *world) {
			_, fleet := across(w)
			fleet.Status.Agent.LastSeen = ago(95 * time.Minute)
		}, [2]string{"monitoring", "team-a/prod"}, "Targeted", ""},
		{"bundle-failing", func(w *world) {
			_, fleet := across(w)
			troubled(fleet, fleetv1.NotReady, "NotReady(1) [Bundle cni]; daemonset.apps kube-system/calico-node [progressing] 1/3")
			for _, object := range w.objects {
				if deployment, is := object.(*fleetv1.BundleDeployment); is && deployment.Namespace == fleet.Status.Namespace && deployment.Name == "cni" {
					notReady(deployment, "Available: 1/3")
				}
			}
		}, [2]string{"cni", "team-a/prod"}, "Targeted", ""},
		{"mapping-missing", func(w *world) {
			_, fleet := across(w)
			undeployed(w, fleet)
			fleet.Status.Display.ReadyBundles = "0/0"
			drop[*fleetv1.BundleNamespaceMapping](w)
			other := desired.Mapping("classes", "team-b")
			w.add(other)
		}, [2]string{"cni", "team-a/prod"}, "NotTargeted", "namespace"},
		{"mapping-gone", func(w *world) {
			across(w)
			mapping := find[*fleetv1.BundleNamespaceMapping](w, "team-a")
			mapping.BundleSelector, mapping.NamespaceSelector = nil, nil
		}, [2]string{"cni", "team-a/prod"}, "NotTargeted", "namespace"},
		{"no-target", func(w *world) {
			across(w)
			bundle := w.bundle("gpu")
			bundle.Spec.Targets = []fleetv1.BundleTarget{
				{Name: "by-label", ClusterSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"gpu": "yes"}}},
				{Name: "by-group", ClusterGroup: "standard"},
				{Name: "by-name", ClusterName: "dev"},
			}
		}, [2]string{"gpu", "team-a/prod"}, "NotTargeted", "target"},
		{"do-not-deploy", func(w *world) {
			across(w)
			bundle := w.bundle("gpu")
			bundle.Spec.Targets = append([]fleetv1.BundleTarget{{Name: "not-here", ClusterName: "prod", DoNotDeploy: true}}, bundle.Spec.Targets...)
		}, [2]string{"gpu", "team-a/prod"}, "NotTargeted", "doNotDeploy"},
		{"values-missing", func(w *world) {
			across(w)
			bundle := w.bundle("gpu")
			bundle.Spec.Helm = &fleetv1.HelmOptions{Values: &fleetv1.GenericMap{Data: map[string]any{"zone": "${ .ClusterValues.Variables.zone }"}}}
			dev := find[*fleetv1.Cluster](w, "dev")
			dev.Spec.TemplateValues.Data["Variables"] = map[string]any{"zone": "a"}
			reported(bundle, "Error", targetingError)
		}, [2]string{"gpu", "classes/dev"}, "Blocked", "error"},
		{"blocked", func(w *world) {
			across(w)
			bundle := w.bundle("gpu")
			bundle.Spec.Helm = &fleetv1.HelmOptions{Values: &fleetv1.GenericMap{Data: map[string]any{"region": "${ .ClusterLabels.region }"}}}
			reported(bundle, "Error", targetingError)
		}, [2]string{"gpu", "team-a/prod"}, "Blocked", "error"},
		{"same-name", func(w *world) {
			across(w)
			base := w.bundle("base", find[*fleetv1.Cluster](w, "dev"))
			tenants := base.DeepCopy()
			tenants.Namespace, tenants.Labels = "team-a", map[string]string{fleetv1.RepoLabel: "base"}
			tenants.Spec.Targets = []fleetv1.BundleTarget{{ClusterSelector: &metav1.LabelSelector{}}}
			w.add(tenants)
			w.deploy(tenants, find[*fleetv1.Cluster](w, "prod"))
		}, [2]string{"classes/base", "team-a/prod"}, "Blocked", "name"},
		{"no-bundle", func(w *world) { across(w) }, [2]string{"classes/typo", "team-a/prod"}, "NotTargeted", "bundle"},
		{"cluster-gone", func(w *world) {
			across(w)
			drop[*clusterv1.Cluster](w)
			w.cluster("classes", "other", standard)
		}, [2]string{"cni", "team-a/prod"}, "Targeted", ""},
		{"fleet-absent", func(w *world) {
			dev, _ := healthy(w)
			w.notImported(dev, "Failed", "a CRD is missing; install it again, nothing needs to be restarted")
			drop[*fleetv1.Cluster](w)
			drop[*fleetv1.Bundle](w)
			drop[*fleetv1.BundleDeployment](w)
			drop[*fleetv1.ClusterGroup](w)
			drop[*fleetv1.BundleNamespaceMapping](w)
		}, [2]string{"classes/cni", "classes/dev"}, "Undecided", ""},
		{"helmchartproxy", func(w *world) {
			_, fleet := across(w)
			bundle := w.proxy("team-a", "ingress", fleet)
			notReady(w.deploy(bundle, fleet), "Available: 1/3")
			troubled(fleet, fleetv1.NotReady, "NotReady(1) [Bundle "+bundle.Name+"; Bundle hcp-of-another-1a2b3c4d]")
		}, [2]string{"ingress", "team-a/prod"}, "Targeted", ""},
		{"helmchartproxy-and-bundle", func(w *world) {
			_, fleet := across(w)
			w.deploy(w.proxy("team-a", "cni", fleet), fleet)
			w.proxy("team-a", "elsewhere")
		}, [2]string{"helmchartproxy/cni", "prod"}, "Targeted", ""},
		{"upgrade-held", func(w *world) {
			prod, fleet := across(w)
			held := hold.Decide(hold.State{
				Cluster: hold.Cluster{Version: "v1.37.0", Place: hold.In, Annotations: map[string]string{
					stamp.HoldAnnotation: "30m", stamp.HookAnnotation: hold.Hold{From: "v1.36.3", To: "v1.37.0", Since: ago(4 * time.Minute).Time}.String(),
				}},
				Progress: func(hold.Hold) hold.Progress {
					return hold.Progress{Handed: true, Waiting: []string{"HelmChartProxy team-a/ingress"}}
				},
				Now: noon,
			}).Tell
			dev := find[*clusterv1.Cluster](w, "dev")
			for _, cluster := range []*clusterv1.Cluster{dev, prod} {
				cluster.Status.Conditions = append(cluster.Status.Conditions, *held)
			}
			troubled(fleet, fleetv1.NotReady, "NotReady(1) [Bundle cni]")
		}, [2]string{"cni", "classes/dev"}, "Targeted", ""},
		{"hostile", func(w *world) {
			_, fleet := across(w)
			troubled(fleet, fleetv1.ErrApplied, hostileText)
			for _, object := range w.objects {
				if deployment, is := object.(*fleetv1.BundleDeployment); is && deployment.Namespace == fleet.Status.Namespace {
					notReady(deployment, hostileText)
				}
			}
		}, [2]string{"cni", "team-a/prod"}, "Targeted", ""},
	}
}

// hostileText is text that an attacker might write.
const hostileText = "\x1b[2J\x1b]0;owned\x07<script>alert(1)</script> \"quoted\" 'so' `so` \\ | ]; end\n\u202egnp.exe\u009b31m -->|x| &amp; ${x} #quot; \x00"
