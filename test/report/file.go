package report

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

// Save writes as JSON what a run found out.
func Save(path string, what any) error {
	content, err := json.MarshalIndent(what, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, append(content, '\n'), 0o600)
}

// Load reads what Save wrote.
func Load[T any](path string) (*T, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	into := new(T)
	if err := json.Unmarshal(content, into); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return into, nil
}
