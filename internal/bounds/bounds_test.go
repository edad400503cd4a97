package bounds

import (
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func in(values ...string) metav1.LabelSelectorRequirement {
	return metav1.LabelSelectorRequirement{Key: "key", Operator: metav1.LabelSelectorOpIn, Values: values}
}

func TestSelector(t *testing.T) {
	many := map[string]string{}
	for i := range MaxTerms + 1 {
		many[strings.Repeat("k", i+1)] = "?"
	}
	for name, test := range map[string]struct {
		selector *metav1.LabelSelector
		want     []string
	}{
		"none": {nil, nil},
		"wrong": {&metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{in("a", "?")}},
			[]string{"spec.selector.matchExpressions[0].values[1]"}},
		"as large as allowed": {&metav1.LabelSelector{MatchExpressions: slices.Repeat([]metav1.LabelSelectorRequirement{in(slices.Repeat([]string{"a"}, MaxValues/MaxTerms)...)}, MaxTerms)}, nil},
		"too many values": {&metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{in("a"), in(slices.Repeat([]string{"?"}, MaxValues)...)}},
			[]string{"spec.selector.matchExpressions.values"}},
		"too many expressions": {&metav1.LabelSelector{MatchExpressions: slices.Repeat([]metav1.LabelSelectorRequirement{in("?")}, MaxTerms+1)},
			[]string{"spec.selector.matchExpressions"}},
		"too many labels": {&metav1.LabelSelector{MatchLabels: many}, []string{"spec.selector.matchLabels"}},
	} {
		var got []string
		for _, err := range Selector(test.selector, field.NewPath("spec", "selector")) {
			got = append(got, err.Field)
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("%s: %q", name, got)
		}
	}
}

func TestAsSelector(t *testing.T) {
	_, err := AsSelector(&metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{in(slices.Repeat([]string{"?"}, 100)...)}})
	if err == nil || strings.Count(err.Error(), "Invalid value") != 1 {
		t.Errorf("the error is %v", err)
	}
	if selector, err := AsSelector(&metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{in("a")}}); err != nil || selector.String() != "key in (a)" {
		t.Errorf("%v, %v", selector, err)
	}
}

func TestErrors(t *testing.T) {
	type text string
	long := strings.Repeat("ä", maxShown)
	var errs field.ErrorList
	for i := range 10_000 {
		errs = append(errs, field.Invalid(field.NewPath("spec").Index(i), text(long), "is wrong"))
	}
	got := Errors(errs)
	if len(got) != MaxErrors+1 || !strings.Contains(got[MaxErrors].Error(), "9968 more errors are not listed") {
		t.Fatalf("%d errors, the last is %v", len(got), got[len(got)-1])
	}
	if shown := got[0].BadValue.(string); len(shown) > maxShown+len("…") || !strings.HasPrefix(long, strings.TrimSuffix(shown, "…")) {
		t.Errorf("shown is %q", shown)
	}
	if errs[0].BadValue != text(long) {
		t.Error("the list itself was changed")
	}
	if few := errs[:MaxErrors]; len(Errors(few)) != MaxErrors {
		t.Errorf("of %d errors, all are listed", MaxErrors)
	}
	if Errors(nil).ToAggregate() != nil {
		t.Error("errors appeared")
	}
}
