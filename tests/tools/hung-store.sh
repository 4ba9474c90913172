#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A store whose filesystem hangs: who asks what is wrong is told so.
# Arguments: cachectl, hung.
set -eu

cachectl=$1
hung=$2
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
mkdir "$dir/store"

fail() {
	echo "$0: $1" >&2
	cat "$dir/said" >&2
	exit 1
}

doctor() {
	SHARDKEEP_SOCKET="$dir/none.sock" SHARDKEEP_STORE="$dir/store" \
		"$@" doctor --json >"$dir/said" 2>&1 </dev/null
}

# That nothing else is wrong with it.
doctor "$cachectl" || true
grep -q "can be written to" "$dir/said" || fail "the store is not fine"

status=0
doctor "$hung" "$cachectl" || status=$?
if [ "$status" = 77 ]; then
	exit 77
fi
grep -q "does not answer in 5 s: its filesystem hangs" "$dir/said" ||
	fail "doctor does not say that the store hangs"
[ "$status" = 8 ] || fail "doctor ended with $status"
