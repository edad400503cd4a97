package monitoring

import (
	"flag"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
)

var legendLabel = regexp.MustCompile(`\{\{ *(\w+) *\}\}`)

// What Grafana would not complain of but show as an empty or unreadable panel.
func TestDashboard(t *testing.T) {
	shown := shippedDashboard(t)
	if shown.SchemaVersion < 36 || shown.UID == "" {
		t.Errorf("schema version %d, UID %q", shown.SchemaVersion, shown.UID)
	}
	if list := shown.Templating.List; len(list) != 1 || list[0].Name != "datasource" || list[0].Type != "datasource" || list[0].Query != "prometheus" {
		t.Errorf("the variables are %+v", list)
	}
	source := datasource{"prometheus", "${datasource}"}
	ids := map[int]bool{}
	for i, panel := range shown.Panels {
		if ids[panel.ID] {
			t.Errorf("%s: another panel has the ID %d", panel.Title, panel.ID)
		}
		ids[panel.ID] = true
		for _, other := range shown.Panels[:i] {
			a, b := panel.GridPos, other.GridPos
			if a.X < b.X+b.W && b.X < a.X+a.W && a.Y < b.Y+b.H && b.Y < a.Y+a.H {
				t.Errorf("%s lies on %s", panel.Title, other.Title)
			}
		}
		if panel.Type == "row" {
			continue
		}
		if panel.Title == "" || panel.Description == "" || len(panel.Targets) == 0 || panel.Datasource != source {
			t.Errorf("%q: no title, description or query, or not of the data source that is chosen", panel.Title)
		}
		for _, query := range panel.Targets {
			if query.Datasource != source || query.RefID == "" {
				t.Errorf("%s: query %q is not of the data source that is chosen", panel.Title, query.RefID)
			}
			checkLegend(t, panel.Title, query)
		}
	}
}

// checkLegend demands that what a legend names survives the aggregation.
func checkLegend(t *testing.T, title string, query target) {
	t.Helper()
	expression, err := queries.ParseExpr(query.expression())
	if err != nil {
		t.Errorf("%s: %s: %v", title, query.Expr, err)
		return
	}
	var kept []string
	parser.Inspect(expression, func(node parser.Node, _ []parser.Node) error {
		if aggregation, ok := node.(*parser.AggregateExpr); ok {
			kept = append(kept, aggregation.Grouping...)
		}
		return nil
	})
	for _, label := range legendLabel.FindAllStringSubmatch(query.LegendFormat, -1) {
		if !slices.Contains(kept, label[1]) {
			t.Errorf("%s: the legend names %s, but the query keeps %q", title, label[1], kept)
		}
	}
}

var update = flag.Bool("update", false, "write testdata/used.txt anew")

const usedFile = "testdata/used.txt"

// Prometheus adds these by itself.
var (
	prometheusMetrics = []string{"up"}
	prometheusLabels  = []string{"job", "instance", "namespace", "pod"}
)

// What the queries ask for is written down, for test/integration to compare with what is
// exposed.
func TestUsedIsWrittenDown(t *testing.T) {
	used := uses{}
	for _, rule := range shippedRules(t) {
		used.add(t, rule.Alert, rule.Expr)
	}
	for _, panel := range shippedDashboard(t).Panels {
		for _, query := range panel.Targets {
			used.add(t, panel.Title, query.expression())
		}
	}
	got := "# What the queries in manifests/monitoring ask for: who is to expose it, the metric, a\n" +
		"# label, a value of it (or ~ and a pattern of which there must be a value).\n" +
		"# make test-monitoring MONITORING_FLAGS=-update writes it; test/integration checks it.\n" +
		strings.Join(slices.Sorted(maps.Keys(used)), "\n") + "\n"
	if *update {
		if err := os.WriteFile(usedFile, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(usedFile)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s is out of date; run make test-monitoring MONITORING_FLAGS=-update (-have +want):\n%s", usedFile, diff)
	}
}

// uses is a set of lines: who exposes it, metric, label, value; the last two may be absent.
type uses map[string]bool

func (u uses) add(t *testing.T, where, query string) {
	t.Helper()
	expression, err := queries.ParseExpr(query)
	if err != nil {
		t.Errorf("%s: %v", where, err)
		return
	}
	parser.Inspect(expression, func(node parser.Node, path []parser.Node) error {
		selector, ok := node.(*parser.VectorSelector)
		if !ok || slices.Contains(prometheusMetrics, selector.Name) {
			return nil
		}
		exposers := exposersOf(selector)
		if len(exposers) == 0 {
			t.Errorf("%s: %s names no job of ours", where, selector)
		}
		for _, exposer := range exposers {
			metric := exposer + " " + selector.Name
			u[metric] = true
			for _, matcher := range selector.LabelMatchers {
				if matcher.Name == model.MetricNameLabel || slices.Contains(prometheusLabels, matcher.Name) {
					continue
				}
				for _, value := range valuesOf(matcher) {
					u[metric+" "+matcher.Name+" "+value] = true
				}
			}
			for _, label := range groupedBy(path) {
				if !slices.Contains(prometheusLabels, label) {
					u[metric+" "+label] = true
				}
			}
		}
		return nil
	})
}

// exposersOf returns whose metric a selector selects: the jobs it names. Only the API
// server's job has no name that all agree on.
func exposersOf(selector *parser.VectorSelector) []string {
	if strings.HasPrefix(selector.Name, "apiserver_") {
		return []string{"kube-apiserver"}
	}
	for _, matcher := range selector.LabelMatchers {
		if matcher.Name == "job" {
			return valuesOf(matcher)
		}
	}
	return nil
}

var literal = regexp.MustCompile(`^[\w/-]+$`)

// valuesOf returns the values that a matcher names, or its pattern.
func valuesOf(matcher *labels.Matcher) []string {
	if matcher.Type == labels.MatchEqual || matcher.Type == labels.MatchNotEqual {
		return []string{matcher.Value}
	}
	values := strings.Split(matcher.Value, "|")
	for _, value := range values {
		if !literal.MatchString(value) {
			return []string{"~" + matcher.Value}
		}
	}
	return values
}

// groupedBy returns the labels that the expressions around a selector keep, join by or
// ignore: all of them must be the selected metric's.
func groupedBy(path []parser.Node) []string {
	var result []string
	for _, node := range path {
		switch node := node.(type) {
		case *parser.AggregateExpr:
			result = append(result, node.Grouping...)
		case *parser.BinaryExpr:
			if node.VectorMatching != nil {
				result = append(result, node.VectorMatching.MatchingLabels...)
			}
		}
	}
	return result
}
