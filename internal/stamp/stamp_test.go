package stamp

import (
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	addonsv1 "github.com/muster-fleet/muster/api/v1alpha1"
	"github.com/muster-fleet/muster/internal/settings"
)

// subject builds a Subject.
type subject struct{ Subject }

func makeSubject(name string) *subject { return &subject{Subject{Name: name}} }

func (s *subject) Label(key, value string) *subject {
	if s.Labels == nil {
		s.Labels = map[string]string{}
	}
	s.Labels[key] = value
	return s
}

func (s *subject) Annotation(key, value string) *subject {
	if s.Annotations == nil {
		s.Annotations = map[string]string{}
	}
	s.Annotations[key] = value
	return s
}

func (s *subject) Pin(ownedBy, clusterName string) *subject {
	if ownedBy != "" {
		s.Annotation(OwnedByAnnotation, ownedBy)
	}
	if clusterName != "" {
		s.Annotation(ClusterNameAnnotation, clusterName)
	}
	return s
}

func (s *subject) NamespaceLabel(key, value string) *subject {
	s.NamespaceLabels = map[string]string{key: value}
	return s
}

func (s *subject) Class(namespace, name string) *subject {
	s.Subject.Class = types.NamespacedName{Namespace: namespace, Name: name}
	return s
}

func (s *subject) Obj() Subject { return s.Subject }

// with returns the settings of a FleetAddonConfig with this spec.cluster.
func with(t testing.TB, cluster addonsv1.ClusterConfig) settings.Settings {
	t.Helper()
	in, err := settings.From(&addonsv1.FleetAddonConfig{Spec: addonsv1.FleetAddonConfigSpec{Cluster: &cluster}})
	if err != nil {
		t.Fatal(err)
	}
	return in
}

func matching(key, value string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{key: value}}
}

const config = addonsv1.FleetAddonConfigName

var (
	longClass      = strings.Repeat("c", 100)
	longClassLabel = longClass[:54] + "-bdcdc9e9"
)

func TestOnCreate(t *testing.T) {
	prefixed := addonsv1.ClusterConfig{Naming: &addonsv1.NamingStrategy{Prefix: "capi-", Suffix: "-eu"}}
	importOnly := addonsv1.ClusterConfig{Selector: matching("import", "true")}
	tests := map[string]struct {
		cluster addonsv1.ClusterConfig
		subject *subject
		want    Stamp
	}{
		"no topology": {
			subject: makeSubject("prod"),
			want:    Stamp{Pin: Pin{config, "prod"}},
		},
		"a class": {
			subject: makeSubject("prod").Class("classes", "standard"),
			want:    Stamp{ClassName: "standard", ClassNamespace: "classes", Pin: Pin{config, "prod"}},
		},
		"a class name that fits no label": {
			subject: makeSubject("prod").Class("classes", longClass),
			want:    Stamp{ClassName: longClassLabel, ClassNamespace: "classes", ClassFullName: longClass, Pin: Pin{config, "prod"}},
		},
		"prefix and suffix": {
			cluster: prefixed,
			subject: makeSubject("prod"),
			want:    Stamp{Pin: Pin{config, "capi-prod-eu"}},
		},
		"a name that does not fit": {
			subject: makeSubject("prod.eu"),
			want:    Stamp{Pin: Pin{config, "prod-eu-2740657d"}, Shortened: true},
		},
		"generateName: no name yet, no pin": {
			subject: makeSubject("").Class("classes", "standard"),
			want:    Stamp{ClassName: "standard", ClassNamespace: "classes"},
		},
		"generateName drops even a pin it brings along": {
			subject: makeSubject("").Pin(config, "old"),
			want:    Stamp{},
		},
		"a pin it brings along is kept": {
			cluster: prefixed,
			subject: makeSubject("prod").Pin(config, "legacy-prod"),
			want:    Stamp{Pin: Pin{config, "legacy-prod"}},
		},
		"a pin without its owner is completed": {
			subject: makeSubject("prod").Pin("", "legacy-prod"),
			want:    Stamp{Pin: Pin{config, "legacy-prod"}},
		},
		"another owner is corrected": {
			subject: makeSubject("prod").Pin("someone", "legacy-prod"),
			want:    Stamp{Pin: Pin{config, "legacy-prod"}},
		},
		"a pin that Fleet cannot use is replaced": {
			subject: makeSubject("prod").Pin(config, "Legacy.Prod"),
			want:    Stamp{Pin: Pin{config, "prod"}},
		},
		"a pin that is too long is replaced": {
			subject: makeSubject("prod").Pin(config, strings.Repeat("a", 64)),
			want:    Stamp{Pin: Pin{config, "prod"}},
		},
		"forged class labels": {
			subject: makeSubject("prod").Label(ClassNameLabel, "forged").Label(ClassNamespaceLabel, "forged"),
			want:    Stamp{Pin: Pin{config, "prod"}},
		},
		"selected": {
			cluster: importOnly,
			subject: makeSubject("prod").Label("import", "true"),
			want:    Stamp{Pin: Pin{config, "prod"}},
		},
		"not selected: the class only": {
			cluster: importOnly,
			subject: makeSubject("prod").Class("classes", "standard").Pin(config, "prod"),
			want:    Stamp{ClassName: "standard", ClassNamespace: "classes"},
		},
		"its Namespace is not selected": {
			cluster: addonsv1.ClusterConfig{NamespaceSelector: matching("team", "a")},
			subject: makeSubject("prod").NamespaceLabel("team", "b"),
			want:    Stamp{},
		},
		"its Namespace is selected": {
			cluster: addonsv1.ClusterConfig{NamespaceSelector: matching("team", "a")},
			subject: makeSubject("prod").NamespaceLabel("team", "a"),
			want:    Stamp{Pin: Pin{config, "prod"}},
		},
		"both selectors must match": {
			cluster: addonsv1.ClusterConfig{Selector: matching("import", "true"), NamespaceSelector: matching("team", "a")},
			subject: makeSubject("prod").Label("import", "true").NamespaceLabel("team", "b"),
			want:    Stamp{},
		},
		"import is off": {
			cluster: addonsv1.ClusterConfig{Enabled: new(bool)},
			subject: makeSubject("prod"),
			want:    Stamp{},
		},
		"a selector may name the class": {
			cluster: addonsv1.ClusterConfig{Selector: matching(ClassNameLabel, "standard")},
			subject: makeSubject("prod").Class("classes", "standard"),
			want:    Stamp{ClassName: "standard", ClassNamespace: "classes", Pin: Pin{config, "prod"}},
		},
		"a forged class label does not select": {
			cluster: addonsv1.ClusterConfig{Selector: matching(ClassNameLabel, "standard")},
			subject: makeSubject("prod").Label(ClassNameLabel, "standard"),
			want:    Stamp{},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			in := with(t, test.cluster)
			got := OnCreate(in, test.subject.Obj())
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("OnCreate (-want +got):\n%s", diff)
			}
			again := stamped(test.subject.Obj(), got)
			if changes := changesOf(again, OnCreate(in, again)); changes != nil {
				t.Errorf("OnCreate changes what it stamped: %v", changes)
			}
			checkIdempotent(t, in, test.subject.Obj(), got)
		})
	}
}

// A Cluster that was restored or moved brings its own pin, whatever settings gave it; one that was copied and renamed
// brings another's.
func TestWithOwnPin(t *testing.T) {
	long := strings.Repeat("a", 40) + "." + strings.Repeat("b", 40)
	tests := map[string]struct {
		cluster, pin, madeFrom string
		want                   bool
	}{
		"its name":                                    {cluster: "prod", pin: "prod", want: true},
		"with earlier prefix and suffix":              {cluster: "prod", pin: "capi-prod-eu", want: true},
		"with dots":                                   {cluster: "prod.eu", pin: "prod-eu-2740657d", want: true},
		"with a prefix and dots":                      {cluster: "prod.eu", pin: "capi-prod-eu-2740657d", want: true},
		"cut":                                         {cluster: long, pin: shortened(long), want: true},
		"cut, after a prefix":                         {cluster: long, pin: shortened("capi-" + long), want: true},
		"cut to its first eight characters":           {cluster: "production", pin: "x-producti-0123abcd", want: true},
		"another's":                                   {cluster: "twin", pin: "prod"},
		"another's, which the new name contains":      {cluster: "prod-2", pin: "prod"},
		"cut to seven characters":                     {cluster: "production", pin: "x-product-0123abcd"},
		"cut, but not hexadecimal":                    {cluster: "production", pin: "x-producti-0123abcx"},
		"cut, but elsewhere":                          {cluster: "production", pin: "x-producti-y-0123abcd"},
		"a hash alone":                                {cluster: "production", pin: "0123abcd"},
		"another's, but made from a Cluster so named": {cluster: "twin", pin: "prod", madeFrom: "prod", want: true},
		"another's, and another one is made from it":  {cluster: "twin", pin: "prod", madeFrom: "twin"},
		"one that Fleet cannot use":                   {cluster: "prod", pin: "Prod", want: true}, // It counts as none.
		"no name yet":                                 {pin: "prod", want: true},
		"none":                                        {cluster: "prod", want: true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			brought := makeSubject(test.cluster).Pin(config, test.pin).Label("a", "b").Obj()
			own, another := brought.WithOwnPin(func(name string) bool { return name == test.madeFrom })
			want, wantAnother := brought, ""
			if !test.want {
				want, wantAnother = makeSubject(test.cluster).Pin(config, "").Label("a", "b").Obj(), test.pin
			}
			if diff := cmp.Diff(want, own); diff != "" || another != wantAnother {
				t.Errorf("another %q, want %q; subject (-want +got):\n%s", another, wantAnother, diff)
			}
			if test.pin != "" && brought.Annotations[ClusterNameAnnotation] != test.pin {
				t.Error("the caller's annotations were changed")
			}
		})
	}
}

// Whatever settings named it, a Cluster's pin is its own, if they left eight characters of its name.
func TestEveryNameIsItsOwn(t *testing.T) {
	for _, name := range []string{"a", "prod", "prod.eu", "a.b.c", strings.Repeat("x", 63), strings.Repeat("x.", 126) + "x", "a-" + strings.Repeat("b.-c", 40) + "d"} {
		for _, prefix := range []string{"", "capi-", strings.Repeat("p", 44)} {
			pin, _ := FleetName(settings.Cluster{Prefix: prefix, Suffix: "-eu"}, name)
			if !isNameOf(pin, name) {
				t.Errorf("%q is not a name of %q", pin, name)
			}
		}
	}
}

func shortened(name string) string {
	pin, _ := FleetName(settings.Cluster{}, name)
	return pin
}

func TestOnUpdate(t *testing.T) {
	pinned := Pin{config, "prod"}
	tests := map[string]struct {
		subject *subject
		old     Pin
		syncer  bool // asks
		want    Stamp
	}{
		"nothing changes": {
			subject: makeSubject("prod").Pin(config, "prod"), old: pinned,
			want: Stamp{Pin: pinned},
		},
		"a dropped pin is restored": {
			subject: makeSubject("prod"), old: pinned,
			want: Stamp{Pin: pinned},
		},
		"a dropped name is restored": {
			subject: makeSubject("prod").Pin(config, ""), old: pinned,
			want: Stamp{Pin: pinned},
		},
		"a dropped owner is restored": {
			subject: makeSubject("prod").Pin("", "prod"), old: pinned,
			want: Stamp{Pin: pinned},
		},
		"an altered pin is restored": {
			subject: makeSubject("prod").Pin("me", "other"), old: pinned,
			want: Stamp{Pin: pinned},
		},
		"no pin is invented": {
			subject: makeSubject("prod").Class("classes", "standard"),
			want:    Stamp{ClassName: "standard", ClassNamespace: "classes"},
		},
		"a forged pin is removed": {
			subject: makeSubject("prod").Pin(config, "prod"),
			want:    Stamp{},
		},
		"a forged owner is removed": {
			subject: makeSubject("prod").Pin(config, ""),
			want:    Stamp{},
		},
		"a forged name is removed": {
			subject: makeSubject("prod").Pin("", "prod"),
			want:    Stamp{},
		},
		"half a pin is not completed by a request": {
			subject: makeSubject("prod").Pin(config, "prod"), old: Pin{OwnedBy: config},
			want: Stamp{Pin: Pin{OwnedBy: config}},
		},
		"nor is the other half": {
			subject: makeSubject("prod").Pin(config, "prod"), old: Pin{ClusterName: "prod"},
			want: Stamp{Pin: Pin{ClusterName: "prod"}},
		},
		"a forged pin that Fleet cannot use is removed": {
			subject: makeSubject("prod").Pin(config, "Prod.EU"),
			want:    Stamp{},
		},
		"the syncer may pin": {
			subject: makeSubject("prod").Pin(config, "prod"), syncer: true,
			want: Stamp{Pin: pinned},
		},
		"the syncer may pin again": {
			subject: makeSubject("prod").Pin(config, "capi-prod"), old: pinned, syncer: true,
			want: Stamp{Pin: Pin{config, "capi-prod"}},
		},
		"the syncer may complete a pin": {
			subject: makeSubject("prod").Pin(config, "prod"), old: Pin{ClusterName: "prod"}, syncer: true,
			want: Stamp{Pin: pinned},
		},
		"the syncer may remove a pin": {
			subject: makeSubject("prod").Class("classes", "standard"), old: pinned, syncer: true,
			want: Stamp{ClassName: "standard", ClassNamespace: "classes"},
		},
		"labels follow the class": {
			subject: makeSubject("prod").Pin(config, "prod").Label(ClassNameLabel, "old").Label(ClassNamespaceLabel, "old").Class("new-ns", "new"), old: pinned,
			want: Stamp{ClassName: "new", ClassNamespace: "new-ns", Pin: pinned},
		},
		"labels and full name are removed with the topology": {
			subject: makeSubject("prod").Pin(config, "prod").Label(ClassNameLabel, "old").Label(ClassNamespaceLabel, "old").Annotation(ClassFullNameAnnotation, longClass), old: pinned,
			want: Stamp{Pin: pinned},
		},
		"labels follow the class for the syncer, too": {
			subject: makeSubject("prod").Pin(config, "prod").Label(ClassNameLabel, "old").Class("new-ns", "new"), syncer: true,
			want: Stamp{ClassName: "new", ClassNamespace: "new-ns", Pin: pinned},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got := OnUpdate(test.subject.Obj(), test.old, test.syncer)
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("OnUpdate (-want +got):\n%s", diff)
			}
			again := OnUpdate(stamped(test.subject.Obj(), got), test.old, test.syncer)
			if diff := cmp.Diff(got, again); diff != "" {
				t.Errorf("OnUpdate of what it stamped (-first +second):\n%s", diff)
			}
		})
	}
}

// Whatever the request holds, an update keeps the old pin; only the syncer's own request may change
// it.
func FuzzOnUpdate(f *testing.F) {
	f.Add("", "", config, "prod")
	f.Add(config, "prod", "", "")
	f.Add(config, "prod", "me", "Not.OK")
	f.Add(config, "", "", "prod")
	f.Fuzz(func(t *testing.T, oldOwner, oldName, owner, name string) {
		old := PinOf(makeSubject("prod").Pin(oldOwner, oldName).Annotations)
		asked := makeSubject("prod").Pin(owner, name).Obj()
		if got := OnUpdate(asked, old, false).Pin; got != old {
			t.Errorf("the pin %v became %v", old, got)
		}
		if got := OnUpdate(asked, old, true).Pin; got != PinOf(asked.Annotations) {
			t.Errorf("the syncer asked for %v and got %v", PinOf(asked.Annotations), got)
		}
	})
}

func TestOnSync(t *testing.T) {
	prefixed := addonsv1.ClusterConfig{Naming: &addonsv1.NamingStrategy{Prefix: "capi-"}}
	tests := map[string]struct {
		cluster  addonsv1.ClusterConfig
		subject  *subject
		existing string
		want     Stamp
	}{
		"a pin is made": {
			cluster: prefixed,
			subject: makeSubject("prod").Class("classes", "standard"),
			want:    Stamp{ClassName: "standard", ClassNamespace: "classes", Pin: Pin{config, "capi-prod"}},
		},
		"of the Fleet Cluster that already belongs to it": {
			cluster: prefixed, subject: makeSubject("prod"), existing: "prod",
			want: Stamp{Pin: Pin{config, "prod"}},
		},
		"the Fleet Cluster is right where half a pin is not": {
			subject: makeSubject("prod").Pin("", "other"), existing: "prod",
			want: Stamp{Pin: Pin{config, "prod"}},
		},
		"half a pin is completed": {
			cluster: prefixed, subject: makeSubject("prod").Pin("", "other"),
			want: Stamp{Pin: Pin{config, "other"}},
		},
		"the other half is completed": {
			cluster: prefixed, subject: makeSubject("prod").Pin(config, ""),
			want: Stamp{Pin: Pin{config, "capi-prod"}},
		},
		"a pin stays, whatever naming says": {
			cluster: prefixed, subject: makeSubject("prod").Pin(config, "prod"),
			want: Stamp{Pin: Pin{config, "prod"}},
		},
		"a pin stays when deselected": {
			cluster: addonsv1.ClusterConfig{Selector: matching("import", "true")}, subject: makeSubject("prod").Pin(config, "prod"),
			want: Stamp{Pin: Pin{config, "prod"}},
		},
		"a pin that Fleet cannot use is replaced": {
			subject: makeSubject("prod").Pin(config, "Prod.EU"),
			want:    Stamp{Pin: Pin{config, "prod"}},
		},
		"not selected": {
			cluster: addonsv1.ClusterConfig{Selector: matching("import", "true")},
			subject: makeSubject("prod").Class("classes", "standard"),
			want:    Stamp{ClassName: "standard", ClassNamespace: "classes"},
		},
		"not selected any more, and its pin was dropped beside its Fleet Cluster": {
			cluster: addonsv1.ClusterConfig{Selector: matching("import", "true")}, subject: makeSubject("prod"), existing: "capi-prod",
			want: Stamp{Pin: Pin{config, "capi-prod"}},
		},
		"a name that does not fit": {
			subject: makeSubject("prod.eu"),
			want:    Stamp{Pin: Pin{config, "prod-eu-2740657d"}, Shortened: true},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			in := with(t, test.cluster)
			got := OnSync(in, test.subject.Obj(), test.existing)
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("OnSync (-want +got):\n%s", diff)
			}
			checkIdempotent(t, in, test.subject.Obj(), got)
		})
	}
}

// checkIdempotent checks that a later stamp of the same Cluster adds nothing.
func checkIdempotent(t *testing.T, in settings.Settings, subject Subject, first Stamp) {
	t.Helper()
	current := stamped(subject, first)
	if changes := changesOf(current, OnUpdate(current, first.Pin, false)); changes != nil {
		t.Errorf("OnUpdate changes what is stamped: %v", changes)
	}
	if current.Name == "" {
		return // It has a name by the time the syncer sees it.
	}
	if changes := changesOf(current, OnSync(in, current, "")); changes != nil {
		t.Errorf("OnSync changes what is stamped: %v", changes)
	}
}

// stamped returns the subject with the stamp on it.
func stamped(subject Subject, stamp Stamp) Subject {
	subject.Labels = changed(subject.Labels, Changes(subject.Labels, stamp.LabelValues()))
	subject.Annotations = changed(subject.Annotations, Changes(subject.Annotations, stamp.AnnotationValues()))
	return subject
}

func changed(current map[string]string, changes map[string]*string) map[string]string {
	result := maps.Clone(current)
	if result == nil {
		result = map[string]string{}
	}
	for key, value := range changes {
		if value == nil {
			delete(result, key)
		} else {
			result[key] = *value
		}
	}
	return result
}

func changesOf(subject Subject, stamp Stamp) map[string]*string {
	changes := map[string]*string{}
	maps.Copy(changes, Changes(subject.Labels, stamp.LabelValues()))
	maps.Copy(changes, Changes(subject.Annotations, stamp.AnnotationValues()))
	if len(changes) == 0 {
		return nil
	}
	return changes
}

func TestChanges(t *testing.T) {
	value := func(text string) *string { return &text }
	tests := map[string]struct {
		current, wanted map[string]string
		want            map[string]*string
	}{
		"no difference":             {current: map[string]string{"a": "1", "b": "2"}, wanted: map[string]string{"a": "1"}},
		"nothing at all":            {},
		"absent and wanted absent":  {current: nil, wanted: map[string]string{"a": ""}},
		"set":                       {current: nil, wanted: map[string]string{"a": "1"}, want: map[string]*string{"a": value("1")}},
		"change":                    {current: map[string]string{"a": "0"}, wanted: map[string]string{"a": "1"}, want: map[string]*string{"a": value("1")}},
		"remove":                    {current: map[string]string{"a": "0"}, wanted: map[string]string{"a": ""}, want: map[string]*string{"a": nil}},
		"an empty value is removed": {current: map[string]string{"a": ""}, wanted: map[string]string{"a": ""}, want: map[string]*string{"a": nil}},
		"each has its own value": {
			wanted: map[string]string{"a": "1", "b": "2"},
			want:   map[string]*string{"a": value("1"), "b": value("2")},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, Changes(test.current, test.wanted)); diff != "" {
				t.Errorf("Changes (-want +got):\n%s", diff)
			}
		})
	}
}

func TestWithoutPinAndLabels(t *testing.T) {
	pinned := makeSubject("prod").Pin(config, "prod").Class("classes", longClass).Obj()
	if diff := cmp.Diff(Stamp{ClassName: longClassLabel, ClassNamespace: "classes", ClassFullName: longClass}, WithoutPin(pinned)); diff != "" {
		t.Errorf("WithoutPin (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]string{ClassNameLabel: longClassLabel, ClassNamespaceLabel: "classes"}, Labels(pinned.Class)); diff != "" {
		t.Errorf("Labels (-want +got):\n%s", diff)
	}
	if labels := Labels(types.NamespacedName{Namespace: "classes"}); labels != nil {
		t.Errorf("Labels of no class: %v", labels)
	}

	given := map[string]string{"a": "1", ClassNameLabel: "forged", ClassNamespaceLabel: "forged"}
	before := maps.Clone(given)
	if diff := cmp.Diff(map[string]string{"a": "1"}, WithClassLabels(given, types.NamespacedName{})); diff != "" {
		t.Errorf("WithClassLabels of no class (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(before, given); diff != "" {
		t.Errorf("WithClassLabels changed its argument (-before +after):\n%s", diff)
	}
}

func TestSelected(t *testing.T) {
	optedOut := &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "no-import", Operator: metav1.LabelSelectorOpDoesNotExist}}}
	tests := map[string]struct {
		cluster                 addonsv1.ClusterConfig
		labels, namespaceLabels map[string]string
		want                    bool
		why                     string
	}{
		"everything by default":         {want: true},
		"{} is everything":              {cluster: addonsv1.ClusterConfig{Selector: &metav1.LabelSelector{}, NamespaceSelector: &metav1.LabelSelector{}}, want: true},
		"opted out":                     {cluster: addonsv1.ClusterConfig{Selector: optedOut}, labels: map[string]string{"no-import": ""}, why: "its labels do not match spec.cluster.selector of the FleetAddonConfig (!no-import)"},
		"not opted out":                 {cluster: addonsv1.ClusterConfig{Selector: optedOut}, want: true},
		"off":                           {cluster: addonsv1.ClusterConfig{Enabled: new(bool)}, why: "spec.cluster.enabled of the FleetAddonConfig is false"},
		"the Namespace":                 {cluster: addonsv1.ClusterConfig{NamespaceSelector: matching("team", "a")}, labels: map[string]string{"team": "a"}, why: "the labels of its Namespace do not match spec.cluster.namespaceSelector of the FleetAddonConfig (team=a)"},
		"{} with the other one matches": {cluster: addonsv1.ClusterConfig{Selector: &metav1.LabelSelector{}, NamespaceSelector: matching("team", "a")}, namespaceLabels: map[string]string{"team": "a"}, want: true},
		"{} does not make up for it":    {cluster: addonsv1.ClusterConfig{Selector: matching("team", "a"), NamespaceSelector: &metav1.LabelSelector{}}, namespaceLabels: map[string]string{"team": "a"}, why: "its labels do not match spec.cluster.selector of the FleetAddonConfig (team=a)"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got, why := Selected(with(t, test.cluster).Cluster, test.labels, test.namespaceLabels)
			if got != test.want || why != test.why {
				t.Errorf("Selected = %v, %q; want %v, %q", got, why, test.want, test.why)
			}
		})
	}
}
