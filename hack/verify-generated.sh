#!/usr/bin/env bash
# Generates everything again and fails if a generated file changes, appears, or is no longer generated.
# It compares with the state before, not with the last commit, so that it works on uncommitted changes;
# on a clean checkout the two are the same.
set -euo pipefail
cd "$(dirname "$0")/.."

generated() {
  find api -name 'zz_generated*'
  find manifests/crd manifests/helm -name 'addons.*_*.yaml'
  # The rest of the chart is handwritten.
  find charts/muster/files charts/muster/README.md -type f
}

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir "$scratch/before" "$scratch/after"
generated | xargs cp --parents -t "$scratch/before"
touch "$scratch/started"

make --no-print-directory generate

generated | xargs cp --parents -t "$scratch/after"
if ! (cd "$scratch" && diff -ruN before after) >"$scratch/diff"; then
  head -n 100 "$scratch/diff"
  echo "generated files were out of date; they are up to date now: commit them" >&2
  exit 1
fi
stale=$(generated | xargs -I{} find {} ! -newer "$scratch/started")
if [ -n "$stale" ]; then
  echo "nothing generates these files any more; git rm them:" >&2
  echo "$stale" >&2
  exit 1
fi
untracked=$(generated | xargs git ls-files --others --exclude-standard --)
if [ -n "$untracked" ]; then
  echo "generated files are not tracked; git add them:" >&2
  echo "$untracked" >&2
  exit 1
fi
