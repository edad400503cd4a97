package monitoring

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
)

// Prometheus adds these by itself.
var (
	prometheusMetrics = []string{"up"}
	prometheusLabels  = []string{"job", "instance", "namespace", "pod"}
)

// Used returns what the queries ask for, one line each: who exposes it, the metric, a label,
// and a value of it (or ~ and a pattern that a value must match); the last two may be absent.
func Used() ([]string, error) {
	expressions := map[string]string{}
	rules, err := Rules()
	if err != nil {
		return nil, err
	}
	for _, rule := range rules {
		expressions[rule.Expr] = rule.Alert
	}
	dashboard, err := ShippedDashboard()
	if err != nil {
		return nil, err
	}
	for _, panel := range dashboard.Panels {
		for _, query := range panel.Targets {
			expressions[query.expression()] = panel.Title
		}
	}
	used := map[string]bool{}
	var failed []error
	for expression, where := range expressions {
		if err := use(used, expression); err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", where, err))
		}
	}
	return slices.Sorted(maps.Keys(used)), errors.Join(failed...)
}

func use(used map[string]bool, query string) error {
	expression, err := queries.ParseExpr(query)
	if err != nil {
		return err
	}
	var failed []error
	parser.Inspect(expression, func(node parser.Node, path []parser.Node) error {
		selector, ok := node.(*parser.VectorSelector)
		if !ok || slices.Contains(prometheusMetrics, selector.Name) {
			return nil
		}
		exposers := exposersOf(selector)
		if len(exposers) == 0 {
			failed = append(failed, fmt.Errorf("%s names no job of ours", selector))
		}
		for _, exposer := range exposers {
			metric := exposer + " " + selector.Name
			used[metric] = true
			for _, matcher := range selector.LabelMatchers {
				if matcher.Name == model.MetricNameLabel || slices.Contains(prometheusLabels, matcher.Name) {
					continue
				}
				for _, value := range valuesOf(matcher) {
					used[metric+" "+matcher.Name+" "+value] = true
				}
			}
			for _, label := range groupedBy(path) {
				if !slices.Contains(prometheusLabels, label) {
					used[metric+" "+label] = true
				}
			}
		}
		return nil
	})
	return errors.Join(failed...)
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

var literals = regexp.MustCompile(`^[\w/|-]+$`)

// valuesOf returns the values that a matcher names, or its pattern.
func valuesOf(matcher *labels.Matcher) []string {
	switch {
	case matcher.Type == labels.MatchEqual || matcher.Type == labels.MatchNotEqual:
		return []string{matcher.Value}
	case literals.MatchString(matcher.Value):
		return strings.Split(matcher.Value, "|")
	default:
		return []string{"~" + matcher.Value}
	}
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
