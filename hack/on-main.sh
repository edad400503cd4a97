#!/usr/bin/env bash
# Refuses to release a tag whose commit is not merged. Otherwise anyone who may push a tag could
# release a commit that no other person has reviewed.
#
#	hack/on-main.sh TAG [BRANCH]
set -euo pipefail
tag=$1 branch=${2:-origin/main}
commit=$(git rev-parse --verify --end-of-options "refs/tags/$tag^{commit}")
if ! git merge-base --is-ancestor "$commit" "$branch"; then
  echo "$tag is the tag of commit $commit, which is not on $branch: merge it first, then tag what was merged" >&2
  exit 1
fi
