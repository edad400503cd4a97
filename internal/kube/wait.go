package kube

import "time"

// Sooner returns the shorter of two waits; one that is not positive stands for none.
func Sooner(a, b time.Duration) time.Duration {
	if a <= 0 || b <= 0 {
		return max(a, b, 0)
	}
	return min(a, b)
}
