//go:build race

package worker

func init() { hasRaceDetector = true }
