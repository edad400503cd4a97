// Package random plays everything that can happen to Muster, in any order, on a real
// API server, and compares what Muster makes of it with package oracle.
//
// A run is drawn from a seed. Each of its steps is written down and stands for
// itself: a step whose object does not exist does nothing. So any part of a run can
// be played again, and a run that fails is shortened until nothing can be left out.
//
//	MUSTER_SEED=7 MUSTER_SEEDS=20 MUSTER_STEPS=250   twenty runs, from seed 7 on
//	MUSTER_REPLAY=steps.jsonl                        the steps that a failure printed
package random
