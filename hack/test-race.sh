#!/usr/bin/env bash
# Runs the tests that need no process with the race detector. It needs a C compiler, unlike everything
# else here: without one, the script says so and succeeds.
set -euo pipefail
cd "$(dirname "$0")/.."

compiler=$(go env CC)
if ! command -v "${compiler%% *}" >/dev/null; then
  echo "skipped entirely: no C compiler ($compiler)"
  exit 0
fi
if ! problem=$(CGO_ENABLED=1 go build -race runtime/cgo 2>&1); then
  echo "skipped entirely: the C compiler $compiler does not work: $problem"
  exit 0
fi
# Only these packages start goroutines.
CGO_ENABLED=1 GOGC=400 go test -exec="env -u GOGC" -race -vet=off -count=1 -timeout=20m ./internal/... ./cmd/...
