package kube

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Says reports whether a condition equals the wanted one, apart from the time of its transition. It is nil if there is none.
// A condition without a generation, by an earlier version of Muster, gets that with its next change.
func Says(have *metav1.Condition, want metav1.Condition) bool {
	if have == nil {
		return false
	}
	was := *have
	was.LastTransitionTime = want.LastTransitionTime
	if was.ObservedGeneration == 0 {
		was.ObservedGeneration = want.ObservedGeneration
	}
	return was == want
}
