// Package templates parses values templates of several namespaces in one process, within a bound of memory that they share.
package templates

import (
	"context"
	"fmt"
	"regexp"

	"k8s.io/apimachinery/pkg/util/validation/field"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/helm/fair"
	"github.com/muster-fleet/muster/internal/helm/values"
	"github.com/muster-fleet/muster/internal/hold"
	"github.com/muster-fleet/muster/internal/message"
)

// mostParsed is how many bytes of templates Use has parsed at once. A parsed template takes up to 75 times as much
// memory as its text.
const mostParsed = 512 << 10

var parsing = fair.New(mostParsed, mostParsed/2)

// Use parses a values template of a namespace and calls use with it. It waits until there is memory for it; all
// callers share mostParsed bytes of text, and each namespace has at most half of them. It returns the error of Parse,
// or an error of the context, which ended before.
func Use(ctx context.Context, namespace, text string, use func(*values.Template)) error {
	size := min(int64(len(text)), mostParsed)
	if err := parsing.Take(ctx, namespace, size); err != nil {
		return err
	}
	defer parsing.Release(namespace, size)
	parsed, err := values.Parse(text)
	if err == nil {
		use(parsed)
	}
	return err
}

// ofStatus finds a status that a template reads.
var ofStatus = regexp.MustCompile(`{{[^}]*(\.(?:Cluster|ControlPlane|InfraCluster)\.status)\b`)

// Template is what the text of a values template shows.
type Template struct {
	// IsStatic says that the values are the same for all Clusters.
	IsStatic bool
	// ReadsVersion says that the template can read the version of a Cluster's topology, or cannot be parsed.
	ReadsVersion bool
	Warnings     []string
}

// Examine parses the values template of a HelmChartProxy when it is the namespace's turn, and returns its errors. Its last
// result is not nil if the context ended before.
func Examine(ctx context.Context, proxy *addonsv1.HelmChartProxy) (its Template, errs field.ErrorList, err error) {
	text, path := proxy.Spec.ValuesTemplate, field.NewPath("spec", "valuesTemplate")
	its.ReadsVersion = true
	warn := func(format string, args ...any) {
		its.Warnings = append(its.Warnings, path.String()+": "+fmt.Sprintf(format, args...))
	}
	if found := ofStatus.FindStringSubmatch(text); found != nil {
		warn("%s is not available: values do not follow a status", found[1])
	}
	err = Use(ctx, proxy.Namespace, text, func(template *values.Template) {
		version := readingOf(template.Root(), hold.TopologyVersion)
		its.IsStatic, its.ReadsVersion = template.IsStatic(), version.within || version.exactly
		for _, name := range template.Unsteady() {
			warn("%s returns a different result whenever the values are rendered again, and each time the release is upgraded", name)
		}
		if readingOf(template.Root(), controlPlaneVersion).exactly {
			warn("the template reads the control plane's version, which changes only when Cluster API upgrades it: while an upgrade is held for add-ons, these values stay as they are; read .Cluster.spec.topology.version, which changes first")
		}
	})
	if err != nil && ctx.Err() == nil {
		return its, field.ErrorList{field.Invalid(path, message.Short(text, 80), "cannot be parsed: "+err.Error())}, nil
	}
	return its, nil, err
}
