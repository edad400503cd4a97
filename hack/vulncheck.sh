#!/usr/bin/env bash
# Runs govulncheck, which needs the vulnerability database. If that is out of reach, the script says so
# and succeeds: a build without a network is not a vulnerable one. GOVULNDB names another database, as
# for govulncheck itself.
set -euo pipefail
cd "$(dirname "$0")/.."

database=${GOVULNDB:-https://vuln.go.dev}
case $database in
http://* | https://*)
  if ! curl --silent --show-error --fail --max-time 20 --output /dev/null "${database%/}/index/db.json"; then
    echo "govulncheck: not run: database unreachable ($database)"
    exit 0
  fi
  ;;
esac
go tool -modfile=tools/go.mod govulncheck ./...
