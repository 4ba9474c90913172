#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# In the background: paths are from where the agent was started, and nothing
# that the shell had open stays open. Arguments: shardkeepd, cachectl.
set -u
agent=$(realpath "$1") cachectl=$(realpath "$2")
dir=$(mktemp -d /tmp/shardkeep-detach-XXXXXX)
unset SHARDKEEP_STORE SHARDKEEP_MEMORY SHARDKEEP_DEVICE_MEMORY JOURNAL_STREAM
unset SHARDKEEP_SOCKET NOTIFY_SOCKET
socket=
stop() {
	[ -z "$socket" ] || "$cachectl" --socket "$socket" stop --wait \
		>/dev/null 2>&1
	socket=
}
trap 'stop; rm -rf "$dir"' EXIT
fail() {
	echo "FAIL: $*" >&2
	cat "$dir"/*/agent.log >&2
	exit 1
}
# until COMMAND...: within a minute
until_so() {
	for _ in $(seq 600); do
		"$@" && return
		sleep 0.1
	done
	return 1
}
asks() { "$cachectl" --socket "$@"; }
cd "$dir" || exit 1

# ---- what the shell has open ----

# Its output is read to its end, as in x=$(script), and descriptor 7 is as well.
ends() {
	local all
	all=$("$agent" --detach --ready-fd 1 --socket "$dir/run/agent.sock" \
		--memory 64M "$@" 2>&1 7>&1)
	[ "$all" = 1 ]
}
export -f ends
export agent dir
for keeper in --keeper --no-keeper; do
	socket=$dir/run/agent.sock
	timeout 100 bash -c 'ends "$1"' - "$keeper" ||
		fail "$keeper: it keeps what it was given, or is not ready: $?"
	asks "$socket" stop --wait >/dev/null || fail "$keeper: it stays"
	socket=
done

# ---- whether it serves ----

# Without a descriptor to be told by, the command ends when clients can connect.
socket=$dir/run/agent.sock
"$agent" --detach --socket "$socket" --memory 64M || fail "it says $?"
asks "$socket" status >/dev/null ||
	fail "it has ended before it served"
"$agent" --detach --socket "$socket" --memory 64M ||
	fail "another one serves, and that is $?"
asks "$socket" stop --wait >/dev/null
socket=
# refused OUT ARGUMENT...: by its status, and by what it says
refused() {
	local said=$1 status=0
	shift
	timeout 60 "$agent" --detach --socket "$dir/run/agent.sock" \
		--memory 64M "$@" 2>err || status=$?
	[ "$status" = 1 ] || fail "$*: it says $status"
	grep -q "$said" err || fail "$*: it says '$(<err)'"
}
: >file
for keeper in --keeper --no-keeper; do
	refused "before it was ready; $dir/run/agent.log says why" \
		"$keeper" --store "$dir/file/store"
done
mv run/agent.log log && mkdir run/agent.log
refused 'cannot go to the background' --no-keeper
rmdir run/agent.log

# ---- relative paths ----

mkdir -p etc out
printf '%s\n' 'memory = 64M' >etc/conf
"$agent" --detach --ready-fd 1 --config etc/conf --socket run/agent.sock \
	--store disk --metrics-file out/all.prom >ready || fail "it does not start"
socket=$dir/run/agent.sock
until_so test -s ready || fail "it is not ready"
until_so test -s out/all.prom || fail "the figures are somewhere else"
grep -q "serves on $socket with .*, store $dir/disk" run/agent.log ||
	fail "it serves somewhere else"
printf '%s\n' 'memory = 96M' >etc/conf
pid=$(asks "$socket" --json status |
	python3 -c 'import json, sys; print(json.load(sys.stdin)["pid"])')
kill -HUP "$pid"
asks "$socket" status >/dev/null || fail "it does not answer"
grep -q 'options were read again' run/agent.log || fail "the file is lost"
! grep -q 'has to be restarted' run/agent.log || fail "paths have changed"
rm run/agent.sock
until_so test -S run/agent.sock || fail "it listens somewhere else"
# A log that was rotated: what its keeper says goes to the new one.
mv run/agent.log run/agent.log.1
kill -KILL "$pid"
until_so grep -qs 'ended by signal 9' run/agent.log ||
	fail "the keeper writes to the log that was moved away"
until_so test -S run/agent.sock || fail "no agent after it"
stop
# From the root directory, whose path ends with a slash.
(cd / && "$agent" --detach --ready-fd 1 --socket "${dir#/}/run/agent.sock" \
	--memory 64M) >ready
socket=$dir/run/agent.sock
until_so test -s ready || fail "from /: it is not ready"
asks "$socket" status >/dev/null || fail "from /: it is somewhere else"
stop

# One whose whole path is no address is found from where it was started.
deep=$dir/$(printf 'd%.0s' {1..90})/$(printf 'e%.0s' {1..90})
mkdir -p "$deep/run" && cd "$deep" || exit 1
"$agent" --detach --ready-fd 1 --socket run/agent.sock --memory 64M >"$dir/ready"
socket=run/agent.sock
until_so test -s "$dir/ready" || fail "deep: it is not ready"
rm run/agent.sock
until_so test -S run/agent.sock || fail "deep: it listens somewhere else"
asks "$socket" stop --wait >/dev/null || fail "deep: it does not answer"
socket=
