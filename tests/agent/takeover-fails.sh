#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Takeovers that cannot be: the command says so, and the agent that runs goes
# on, with what it holds. Arguments: shardkeepd, cachectl.
set -u
agent=$(realpath "$1") cachectl=$(realpath "$2")
dir=$(mktemp -d /tmp/shardkeep-takeover-XXXXXX)
unset SHARDKEEP_STORE SHARDKEEP_MEMORY SHARDKEEP_DEVICE_MEMORY JOURNAL_STREAM
unset SHARDKEEP_SOCKET NOTIFY_SOCKET
socket=$dir/run/agent.sock
# A keeper whose agent cannot begin hears no other word.
end() {
	local process
	timeout 30 "$cachectl" --socket "$socket" stop --wait >/dev/null 2>&1
	for process in /proc/[0-9]*; do
		! grep -qsF -- "$socket" "$process/cmdline" ||
			kill -KILL "${process#/proc/}"
	done
	rm -rf "$dir"
}
trap end EXIT
fail() {
	echo "FAIL: $*" >&2
	cat "$dir"/run/agent.log >&2
	exit 1
}
serves() {
	timeout 60 "$cachectl" --socket "$socket" --json status |
		python3 -c 'import json, sys; print(json.load(sys.stdin)["pid"])'
}
cd "$dir" || exit 1
"$agent" --detach --socket "$socket" --store A --memory 64M ||
	fail "it does not start"
pid=$(serves)
# refused SAID ARGUMENT...: by its status and by what it says.
refused() {
	local said=$1 status=0
	shift
	timeout -k 1 60 "$agent" --takeover --socket "$socket" --memory 64M \
		"$@" </dev/null >out 2>&1 || status=$?
	[ "$status" = 1 ] || fail "$*: it ends with $status"
	grep -q "$said" out || fail "$*: it says '$(<out)'"
	[ "$(serves)" = "$pid" ] || fail "$*: the agent has gone"
}
: >file
for how in --detach --log-level=info; do
	refused 'cannot open or make the store' "$how" --store file
	refused 'cannot open or make the store' "$how" --store file/store
	(ulimit -n 12 && refused '' "$how" --store A) || exit 1
done

# The log of one that goes to the background.
mv run/agent.log kept
mkdir run/agent.log
refused "cannot write the log $dir/run/agent.log" --detach --store A
rmdir run/agent.log
ln -s ../file run/agent.log
refused "cannot write the log $dir/run/agent.log" --detach --store A
rm run/agent.log
mv kept run/agent.log

# And one that can.
timeout 60 "$agent" --takeover --detach --socket "$socket" --memory 64M \
	--store B </dev/null || fail "it cannot take over: $?"
[ "$(serves)" != "$pid" ] || fail "the agent is the same"
[ -d B ] || fail "it has another store"
