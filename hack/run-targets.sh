#!/usr/bin/env bash
# Runs make targets, two at a time, even if some fail, and ends with a table: seconds, and ok, failed,
# or skipped and why. Fails if a target failed. Most targets wait for processes that they have started,
# so a single one would leave half of two cores idle.
#
#	JOBS=2 hack/run-targets.sh TARGET...
#
# A target reports a skipped part in a line with "skipped: WHY", or, if it ran nothing,
# "skipped entirely: WHY". Outputs are kept in .cache/test, and printed as targets end.
set -uo pipefail
cd "$(dirname "$0")/.."

logs=.cache/test
mkdir -p "$logs"

run() {
  local begin=$SECONDS
  "${MAKE:-make}" --no-print-directory "$1" >"$logs/$1.log" 2>&1
  echo "$? $((SECONDS - begin))" >"$logs/$1.result"
}

# Prints the outputs of the targets that have ended since the last call.
printed=' '
show() {
  local target
  for target in "$@"; do
    if [ -e "$logs/$target.result" ] && [[ $printed != *" $target "* ]]; then
      printed+="$target "
      echo "=== make $target"
      cat "$logs/$target.log"
    fi
  done
}

for target in "$@"; do rm -f "$logs/$target.result"; done
for target in "$@"; do
  while [ "$(jobs -rp | wc -l)" -ge "${JOBS:-2}" ]; do wait -n; done
  show "$@"
  echo "=== make $target starts"
  run "$target" &
done
while [ "$(jobs -rp | wc -l)" -gt 0 ]; do wait -n; show "$@"; done
show "$@"

passed=0 failed=0 table='' failures=''
for target in "$@"; do
  log=$logs/$target.log
  read -r status seconds <"$logs/$target.result" || { status=1 seconds=0; }
  why=$(grep -oE 'skipped( entirely)?: .*' "$log" | sed -E 's/^skipped( entirely)?: //' | sort -u | head -n 3 | paste -sd';')
  if [ "$status" -ne 0 ]; then
    result=failed
    failed=$((failed + 1))
    failures+="--- make $target failed; see $log"$'\n'
    failures+=$(grep -E -A 12 '^ *--- FAIL|^FAIL|^panic: |^refused: |^make.*Error |: error: ' "$log" | cut -c1-400 | head -n 100)$'\n'
  elif grep -q 'skipped entirely: ' "$log"; then
    result="skipped: $why"
  else
    result="ok${why:+, in part: $why}"
    passed=$((passed + 1))
  fi
  table+=$(printf '%-22s %7d  %s' "$target" "$seconds" "$result")$'\n'
done

echo
printf '%s' "$failures"
printf '%-22s %7s  %s\n' target seconds result
printf '%s' "$table"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
