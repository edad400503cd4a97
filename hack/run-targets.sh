#!/usr/bin/env bash
# Runs make targets one after the other, whatever fails, and ends with a table of them:
# seconds, and ok, failed, or skipped and why. Fails if one failed.
#
#	hack/run-targets.sh TARGET...
#
# A target says what it leaves out in a line that has "skipped: WHY", and with nothing else
# run, "skipped entirely: WHY". Outputs are kept in .cache/test.
set -uo pipefail
cd "$(dirname "$0")/.."

logs=.cache/test
mkdir -p "$logs"
passed=0 failed=0 table='' failures=''
for target in "$@"; do
  echo "=== make $target"
  log=$logs/$target.log
  begin=$SECONDS
  if "${MAKE:-make}" --no-print-directory "$target" 2>&1 | tee "$log"; then
    result=ok
    if grep -q 'skipped entirely: ' "$log"; then
      result=skipped
    else
      passed=$((passed + 1))
    fi
  else
    result=failed
    failed=$((failed + 1))
    failures+="--- make $target failed; see $log"$'\n'
    failures+=$(grep -E '^ *--- FAIL|^FAIL|^panic: |^make.*Error |: error: ' "$log" | head -n 20)$'\n'
  fi
  why=$(grep -oE 'skipped( entirely)?: .*' "$log" | sed -E 's/^skipped( entirely)?: //' | sort -u | head -n 3 | paste -sd';')
  case $result in
    ok) [ -z "$why" ] || result="ok, in part: $why" ;;
    skipped) result="skipped: $why" ;;
  esac
  table+=$(printf '%-22s %7d  %s' "$target" $((SECONDS - begin)) "$result")$'\n'
done

echo
printf '%s' "$failures"
printf '%-22s %7s  %s\n' target seconds result
printf '%s' "$table"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
