package releases

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"helm.sh/helm/v4/pkg/action"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/kube"
	"helm.sh/helm/v4/pkg/postrenderer"
	"helm.sh/helm/v4/pkg/release/common"
	release "helm.sh/helm/v4/pkg/release/v1"
	"helm.sh/helm/v4/pkg/storage/driver"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/muster-fleet/muster/internal/installer"
)

// history is how many revisions of a release Helm keeps.
const history = 5

// Put installs or upgrades a release, and waits until it is ready. It rolls a failed upgrade back,
// except for releases that keep their objects: CRDs only grow.
func (c *Client) Put(ctx context.Context, order installer.Order) (was, becomes string, err error) {
	configuration, err := c.configuration(ctx)
	if err != nil {
		return "", "", err
	}
	last, err := revisionOf(configuration.Releases.Last(order.Name))
	if err != nil {
		return "", "", err
	}
	serving, err := revisionOf(configuration.Releases.Deployed(order.Name))
	if err != nil {
		return "", "", err
	}
	if serving != nil {
		was = serving.Manifest
	}
	what, err := chartOf(order, cmp.Or(serving, last))
	if err != nil {
		return "", "", err
	}
	var found any
	verb, isNew := "upgrade", last == nil || last.Info.Status == common.StatusUninstalled
	if isNew {
		verb = "install"
		found, err = c.installOf(configuration, order, last != nil).RunWithContext(ctx, what, order.Values)
	} else {
		found, err = c.upgradeTo(configuration, order).RunWithContext(ctx, order.Name, what, order.Values)
	}
	if err == nil {
		result, err := revisionOf(found, nil)
		if err != nil {
			return "", "", err
		}
		return was, result.Manifest, nil
	}
	err = fmt.Errorf("helm %s of chart %s %s: %w", verb, order.Name, what.Metadata.Version, err)
	if wait.Interrupted(err) && ctx.Err() == nil { // Helm leaves out what is not ready.
		if unready := c.unready(ctx); len(unready) > 0 {
			err = fmt.Errorf("%w: not ready: %s", err, strings.Join(unready, ", "))
		}
	}
	if isNew || order.DryRun || order.KeepObjects || ctx.Err() != nil {
		return "", "", err
	}
	return "", "", c.rollBack(ctx, configuration, order, serving, err)
}

// revisionOf returns a revision that Helm has read, or nil if there is none.
func revisionOf(found any, err error) (*release.Release, error) {
	if errors.Is(err, driver.ErrReleaseNotFound) || errors.Is(err, driver.ErrNoDeployedReleases) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading a Helm release: %w", err)
	}
	result, isTyped := found.(*release.Release)
	if !isTyped || result.Info == nil {
		return nil, fmt.Errorf("a Helm release has an unknown format: %T", found)
	}
	return result, nil
}

// chartOf returns the chart of the order, or, if it has none, that of a revision.
func chartOf(order installer.Order, revision *release.Release) (*chart.Chart, error) {
	if order.Archive != nil {
		loaded, err := loader.LoadArchive(bytes.NewReader(order.Archive))
		if err != nil {
			return nil, fmt.Errorf("chart %s cannot be read: %w", order.Name, err)
		}
		if loaded.Name() != order.Name {
			return nil, fmt.Errorf("the repository's chart %s is a chart %s", order.Name, loaded.Name())
		}
		return loaded, nil
	}
	if revision == nil {
		return nil, fmt.Errorf("there is no Helm release %s to take the chart from", order.Name)
	}
	return revision.Chart, nil
}

func (c *Client) installOf(configuration *action.Configuration, order installer.Order, again bool) *action.Install {
	install := action.NewInstall(configuration)
	install.ReleaseName, install.Namespace, install.Replace = order.Name, c.namespace, again
	install.Timeout, install.WaitStrategy = order.Timeout, waiting
	install.ServerSideApply, install.TakeOwnership, install.ForceConflicts = true, order.Adopt, order.Adopt
	install.Labels, install.PostRenderer = map[string]string{runLabel: order.MadeBy}, renderer(order)
	if order.DryRun {
		install.DryRunStrategy = action.DryRunServer
	}
	return install
}

func (c *Client) upgradeTo(configuration *action.Configuration, order installer.Order) *action.Upgrade {
	upgrade := action.NewUpgrade(configuration)
	upgrade.Namespace, upgrade.Timeout, upgrade.WaitStrategy, upgrade.MaxHistory = c.namespace, order.Timeout, waiting, history
	upgrade.ResetThenReuseValues, upgrade.TakeOwnership, upgrade.ForceConflicts = true, order.Adopt, order.Adopt
	upgrade.Labels, upgrade.PostRenderer = map[string]string{runLabel: order.MadeBy}, renderer(order)
	if order.DryRun {
		upgrade.DryRunStrategy = action.DryRunServer
	}
	return upgrade
}

// unready names Fleet's Deployments that are not ready, and its Jobs that have not succeeded.
func (c *Client) unready(ctx context.Context) (names []string) {
	deployments, err := c.typed.AppsV1().Deployments(c.namespace).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/managed-by=Helm"})
	if err != nil {
		c.log.Error(err, "Listing the Deployments of a release failed")
		return nil
	}
	jobs, err := c.typed.BatchV1().Jobs(c.namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		c.log.Error(err, "Listing the Jobs of a release failed")
		return nil
	}
	for _, deployment := range deployments.Items {
		if wanted := ptr.Deref(deployment.Spec.Replicas, 1); deployment.Status.ObservedGeneration < deployment.Generation ||
			deployment.Status.UpdatedReplicas < wanted || deployment.Status.AvailableReplicas < wanted || deployment.Status.UnavailableReplicas > 0 {
			names = append(names, "Deployment "+deployment.Name)
		}
	}
	for _, job := range jobs.Items {
		if strings.HasPrefix(job.Name, "fleet-") && job.Status.Succeeded == 0 {
			names = append(names, "Job "+job.Name)
		}
	}
	slices.Sort(names)
	return names
}

// rollBack returns to the deployed revision, if there is one, after a failed upgrade.
func (c *Client) rollBack(ctx context.Context, configuration *action.Configuration, order installer.Order, serving *release.Release, why error) error {
	last, err := revisionOf(configuration.Releases.Last(order.Name))
	if err != nil || last == nil || last.Info.Status != common.StatusFailed || serving == nil {
		return errors.Join(why, err) // It failed before it changed anything, or there is no revision to return to.
	}
	// Helm's own rollback could not be told from one that a person makes.
	back := c.wayBack(configuration, order, serving.Version)
	if _, err := back.RunWithContext(ctx, order.Name, serving.Chart, serving.Config); err != nil {
		return fmt.Errorf("%w; the rollback failed too: %w", why, err)
	}
	return fmt.Errorf("%w; rolled back", why)
}

// wayBack upgrades to an earlier revision. It gets a new mark: with the mark of the failed upgrade it
// would look like a revision of another Helm client, which copies marks.
func (c *Client) wayBack(configuration *action.Configuration, order installer.Order, revision int) *action.Upgrade {
	order.MadeBy = installer.NewRun()
	back := c.upgradeTo(configuration, order)
	back.ResetThenReuseValues, back.ResetValues, back.Description = false, true, fmt.Sprintf("Rollback to %d", revision)
	return back
}

// Abandon marks a pending revision as failed, so that Helm can change the release again.
func (c *Client) Abandon(ctx context.Context, name, why string) error {
	configuration, err := c.configuration(ctx)
	if err != nil {
		return err
	}
	last, err := revisionOf(configuration.Releases.Last(name))
	if err != nil || last == nil || !last.Info.Status.IsPending() {
		return err
	}
	last.SetStatus(common.StatusFailed, why)
	return configuration.Releases.Update(last)
}

func renderer(order installer.Order) postrenderer.PostRenderer {
	if order.KeepObjects {
		return keeper{}
	}
	return nil
}

// keeper keeps Helm from ever deleting the objects of a release. If Fleet's CRDs were deleted, so would be every
// Fleet object, and everything that Fleet has deployed.
type keeper struct{}

// Run annotates every object.
func (keeper) Run(manifests *bytes.Buffer) (*bytes.Buffer, error) {
	objects, err := installer.Objects(manifests)
	if err != nil {
		return nil, err
	}
	result := &bytes.Buffer{}
	for _, object := range objects {
		object.SetAnnotations(labels.Merge(object.GetAnnotations(), labels.Set{kube.ResourcePolicyAnno: kube.KeepPolicy}))
		text, err := yaml.Marshal(object)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(result, "---\n%s", text)
	}
	return result, nil
}
