package plan

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/helm/templates"
	"github.com/muster-fleet/muster/test/helm/table"
)

// Each field that the table maps to a field of Fleet sets that field. Each field without a mapping changes
// nothing.
func TestFields(t *testing.T) {
	rows, err := table.Read("../" + table.Page)
	if err != nil {
		t.Fatal(err)
	}
	count := 0
	for _, row := range rows {
		if row.Table != table.Spec || !row.Names("plan TestFields") {
			continue
		}
		count++
		t.Run(row.What, func(t *testing.T) { checkField(t, row) })
	}
	if count == 0 {
		t.Error("there are no rows")
	}
}

func checkField(t *testing.T, row table.Row) {
	spec, err := table.Parse(row.What)
	if err != nil {
		t.Fatal(err)
	}
	its := written(t, spec)
	said := row.Quoted()
	template, errs, err := templates.Examine(t.Context(), its)
	if err != nil {
		t.Fatal(err)
	}
	warnings, refused := strings.Join(append(Warnings(its), template.Warnings...), "\n"), append(Validate(its), errs...)
	Default(its)
	switch row.Verdict {
	case table.Refused:
		if len(said) == 0 || len(refused) == 0 || !strings.Contains(refused.ToAggregate().Error(), said[0]) {
			t.Errorf("refused: %v, want %q", refused, said)
		}
		return
	case table.Warned:
		if len(said) == 0 || len(refused) > 0 || !strings.Contains(warnings, said[0]) {
			t.Errorf("refused: %v; warned: %q, want %q", refused, warnings, said)
		}
		said = said[1:]
	default:
		if warnings != "" || len(refused) > 0 {
			t.Errorf("refused: %v; warned: %q", refused, warnings)
		}
	}
	agent := its.Spec.Download == addonsv1.DownloadAgent || strings.Contains(row.How, "`download: Agent`")
	made, plain, facts := inFleet(t, its, agent), inFleet(t, defaulted(written(t, nil)), agent), 0
	for _, fact := range said {
		path, value, found := strings.Cut(fact, ": ")
		if !found || path == "download" {
			continue
		}
		facts++
		var at any = made
		for step := range strings.SplitSeq(path, ".") {
			within, _ := at.(map[string]any)
			at = within[step]
		}
		if fmt.Sprint(at) != value {
			t.Errorf("%s is %v, want %s", path, at, value)
		}
	}
	if facts == 0 {
		if diff := cmp.Diff(plain, made); diff != "" {
			t.Errorf("the table does not say what it changes (-without +with):\n%s", diff)
		}
	}
}

// written is a HelmChartProxy as a user writes it.
func written(t *testing.T, more map[string]any) *addonsv1.HelmChartProxy {
	t.Helper()
	spec := map[string]any{"clusterSelector": map[string]any{}, "chartName": "nginx", "repoURL": "https://charts.example.com"}
	maps.Copy(spec, more)
	content, err := json.Marshal(map[string]any{"metadata": map[string]any{"namespace": "team", "name": "web"}, "spec": spec})
	if err != nil {
		t.Fatal(err)
	}
	its := &addonsv1.HelmChartProxy{}
	if err := json.Unmarshal(content, its); err != nil {
		t.Fatal(err)
	}
	return its
}

func defaulted(its *addonsv1.HelmChartProxy) *addonsv1.HelmChartProxy {
	Default(its)
	return its
}

// inFleet is the spec of the Bundle for a HelmChartProxy.
func inFleet(t *testing.T, its *addonsv1.HelmChartProxy, agent bool) map[string]any {
	t.Helper()
	bundle := NewBundle(its, "team", "hcp-web", Chart{Version: "1.0.0", Agent: agent}, "")
	spec := bundle.Spec
	content, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	made := map[string]any{}
	if err := json.Unmarshal(content, &made); err != nil {
		t.Fatal(err)
	}
	delete(made["helm"].(map[string]any), "values") // NewBundle sets them if the Clusters have no values of their own.
	return made
}
