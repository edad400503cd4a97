//go:build race

package repository

func init() { hasRaceDetector = true }
