package monitoring

import (
	"regexp"
	"slices"
	"testing"

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
