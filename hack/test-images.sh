#!/usr/bin/env bash
# Runs Muster's programs as users get them: builds the images, pushes them to a registry, pulls them
# from there, and runs the end-to-end story with the programs in them.
set -euo pipefail
cd "$(dirname "$0")/.."

scratch=$(mktemp -d)
registry=
cleanup() {
  [ -z "$registry" ] || kill "$registry" 2>/dev/null || true
  rm -rf "$scratch"
}
trap cleanup EXIT

go build -C hack/release -o "$scratch/release" .
release() { "$scratch/release" "$@" -root=.; }

release images
"$scratch/release" registry -announce="$scratch/address" &
registry=$!
for _ in $(seq 100); do
  [ ! -e "$scratch/address" ] || break
  sleep 0.1
done
address=$(cat "$scratch/address")
release push -registry="$address/muster"
# The pull gets the registry's contents, not the local files.
release pull -registry="$address/muster" -into="$scratch/programs"
for program in "$scratch"/programs/*; do "$program" --version; done
MUSTER_PROGRAMS=$scratch/programs MUSTER_TEST_DIR=$scratch/stack go test -count=1 -timeout=30m -run='^TestStory$' ./test/e2e/...
# The story would also pass with locally built programs, so check the version.
for program in webhook syncer; do
  read -r _ version _ < <("$scratch/programs/$program" --version)
  grep -o "\"Starting $program\",\"version\":\"$version\"" "$scratch/stack/logs/muster-$program.log"
done
