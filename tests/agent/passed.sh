#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What cannot be looked at on the store is named once for each reason, not at
# every look. Usage: passed.sh AGENT CACHECTL
set -eu
agent=$1 cachectl=$2
LC_ALL=C
export LC_ALL
unset SHARDKEEP_STORE SHARDKEEP_MEMORY SHARDKEEP_SOCKET JOURNAL_STREAM

fail() { echo "passed.sh: $*" >&2; cat "$dir/log" >&2; exit 1; }

if [ "$(id -u)" = 0 ] &&
   ! setpriv --reuid=4711 --clear-groups true 2>/dev/null; then
	echo "needs setpriv, as root may look at everything"
	exit 77
fi
dir=$(mktemp -d /tmp/shardkeep-passed-XXXXXX)
as() { "$@"; }
end() {
	! [ -S "$dir/run/agent.sock" ] ||
		as "$dir/cachectl" --socket "$dir/run/agent.sock" stop --wait \
			>/dev/null 2>&1 || :
	rm -rf "$dir"
}
trap end EXIT
cp "$agent" "$dir/shardkeepd"		# where everybody may read them
cp "$cachectl" "$dir/cachectl"
mkdir "$dir/store" "$dir/run"
mkfifo "$dir/ready"
: >"$dir/log"
if [ "$(id -u)" = 0 ]; then
	as() { setpriv --reuid=4711 --regid=4711 --clear-groups "$@"; }
	chown -R 4711 "$dir"
fi
job=$dir/store/one
step=$dir/store/two/step-000000000005
as mkdir -p "$job" "$step"
chmod 0 "$job" "$step"
HOME=$dir as "$dir/shardkeepd" --socket "$dir/run/agent.sock" --memory 64M \
	--store "$dir/store" --no-keeper --ready-fd 5 5>"$dir/ready" \
	>/dev/null 2>>"$dir/log" &
[ "$(head -c 1 "$dir/ready")" ] || fail "the agent did not start"
looks() { as "$dir/cachectl" --socket "$dir/run/agent.sock" list "$@" \
	>/dev/null 2>&1 || :; }
# named N PATH: so often by now
named() {
	n=$(grep -c "$2.*Permission denied" "$dir/log") || :
	[ "$n" = "$1" ] || fail "$2 is named $n times and not $1"
}
look() {
	for _ in 1 2 3; do
		looks
		looks one
		looks two
	done
}
look
named 1 '"one"'
named 1 step-000000000005
# Once more after it could be.
chmod 700 "$job" "$step"
look
chmod 0 "$job" "$step"
look
named 2 '"one"'
named 2 step-000000000005
