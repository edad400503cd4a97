// Package rollout finds mistakes in the partitions of a Bundle's rolloutStrategy: Fleet does not wait for a
// partition, never updates it, or leaves Clusters out. It follows the rules of Fleet 0.16 (UpdatePartitions in
// internal/cmd/controller/target), whose package cannot be imported; test/differential runs that code and
// compares each step. The package is pure.
package rollout
