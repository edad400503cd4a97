package helm

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/Masterminds/semver/v3"
	release "helm.sh/helm/v4/pkg/release/v1"
	"helm.sh/helm/v4/pkg/storage/driver"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/metadata"

	"github.com/muster-fleet/muster/internal/installer"
)

const (
	// runLabel on a revision says which installer's doing it is (installer.Release.MadeBy).
	runLabel = "fleet.addons.cluster.x-k8s.io/installer-run"
	// kubeVersionAnnotation is where Fleet's charts say which Kubernetes they are for.
	kubeVersionAnnotation = "catalog.cattle.io/kube-version"
	uninstalled           = "uninstalled"
)

// decoded is what is read of a release, as long as its Secret is this version.
type decoded struct {
	resourceVersion string
	release         *release.Release
}

// revision is what Helm's labels say about one revision of a release.
type revision struct {
	number          int
	status          string
	madeBy          string
	name            string // of the Secret
	resourceVersion string
}

// Find returns the newest revision of a release, nil if there is none, or if it has been
// uninstalled.
func (c *Client) Find(ctx context.Context, name string) (*installer.Release, error) {
	all, err := c.revisions(ctx, name)
	if err != nil || len(all) == 0 || all[0].status == uninstalled {
		return nil, err
	}
	last := all[0]
	content, err := c.decode(ctx, last)
	if err != nil || content == nil {
		return nil, err
	}
	found := &installer.Release{
		AppVersion: content.Chart.Metadata.AppVersion, KubeVersion: content.Chart.Metadata.Annotations[kubeVersionAnnotation],
		Revision: last.number, Status: installer.Status(last.status), Description: content.Info.Description,
		Values: content.Config, MadeBy: last.madeBy,
	}
	if found.Version, err = semver.NewVersion(content.Chart.Metadata.Version); err != nil {
		return nil, fmt.Errorf("helm release %s: version %q of its chart: %w", name, content.Chart.Metadata.Version, err)
	}
	if len(all) > 1 {
		found.Before = all[1].madeBy
	}
	i := slices.IndexFunc(all, func(r revision) bool { return r.status == string(installer.StatusDeployed) })
	if i < 0 {
		return found, nil
	}
	serving, err := c.decode(ctx, all[i])
	if err != nil || serving == nil {
		return found, err
	}
	found.Deployed, err = semver.NewVersion(serving.Chart.Metadata.Version)
	return found, err
}

// revisions returns what there is of a release, the newest first. Of Secrets only metadata
// is read: the rest is large.
func (c *Client) revisions(ctx context.Context, name string) ([]revision, error) {
	client, err := metadata.NewForConfig(c.config)
	if err != nil {
		return nil, err
	}
	list, err := client.Resource(corev1.SchemeGroupVersion.WithResource("secrets")).Namespace(c.namespace).List(ctx, metav1.ListOptions{
		LabelSelector: labels.SelectorFromSet(labels.Set{"owner": "helm", "name": name}).String(),
	})
	if err != nil {
		return nil, fmt.Errorf("listing the revisions of Helm release %s: %w", name, err)
	}
	var result []revision
	for _, secret := range list.Items {
		number, err := strconv.Atoi(secret.Labels["version"])
		if err != nil {
			continue // Nothing that Helm has written.
		}
		result = append(result, revision{
			number: number, status: secret.Labels["status"], madeBy: secret.Labels[runLabel],
			name: secret.Name, resourceVersion: secret.ResourceVersion,
		})
	}
	slices.SortFunc(result, func(a, b revision) int { return b.number - a.number })
	return result, nil
}

// decode reads a revision; nil if it is gone.
func (c *Client) decode(ctx context.Context, r revision) (*release.Release, error) {
	if have, known := c.seen[r.name]; known && have.resourceVersion == r.resourceVersion {
		return have.release, nil
	}
	content, err := driver.NewSecrets(c.typed.CoreV1().Secrets(c.namespace)).Get(r.name)
	if errors.Is(err, driver.ErrReleaseNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading Helm release %s: %w", r.name, err)
	}
	typed, isTyped := content.(*release.Release)
	if !isTyped || typed.Chart == nil || typed.Chart.Metadata == nil || typed.Info == nil {
		return nil, fmt.Errorf("helm release %s is of a form that is not known", r.name)
	}
	// The manifest and the chart are large, and wanted by nobody who looks.
	small := &release.Release{Name: typed.Name, Version: typed.Version, Info: typed.Info, Config: typed.Config, Chart: chartOf(typed)}
	if len(c.seen) > 16 {
		clear(c.seen)
	}
	c.seen[r.name] = decoded{r.resourceVersion, small}
	return small, ctx.Err()
}
