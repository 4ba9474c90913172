#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# SIGHUP: what can change at run time does, what cannot is named, nonsense
# changes nothing, and log files are reopened. Arguments: shardkeepd, cachectl,
# the trainer.
set -u
agent=$1 cachectl=$2 trainer=$3
dir=$(mktemp -d /tmp/shardkeep-reload-XXXXXX)
unset SHARDKEEP_STORE SHARDKEEP_MEMORY SHARDKEEP_DEVICE_MEMORY JOURNAL_STREAM
pid=
trap '[ -z "$pid" ] || kill "$pid"; rm -rf "$dir"' EXIT
fail() {
	echo "FAIL: $*" >&2
	exit 1
}
conf() { printf '%s\n' "$@" >"$dir/conf"; }

# heard TEXT: reads the log up to a line that has it.
heard() {
	local line
	while read -r -t 60 -u 3 line; do
		[[ $line == *"$1"* ]] && return
	done
	fail "the log has no \"$1\""
}
start() {
	mkfifo "$dir/log"
	"$agent" --config "$dir/conf" --socket "$dir/agent.sock" "$@" \
		2>"$dir/log" &
	pid=$!
	exec 3<"$dir/log"
	rm "$dir/log"
}
end() {
	kill "$pid"
	wait "$pid" || fail "it ended with $?"
	pid=
	exec 3<&-
}
budget() {
	"$cachectl" --socket "$dir/agent.sock" --json stats |
		python3 -c 'import json, sys
print(next(int(x["value"]) for x in json.load(sys.stdin)["stats"]
           if x["name"] == "shardkeep_memory_budget_bytes"))'
}

for keeper in --no-keeper --keeper; do
	conf 'memory = 64M' 'backend = threads'
	start "$keeper"
	heard 'serves on'
	[ "$(budget)" = $((64 << 20)) ] || fail "at first: $(budget)"
	conf 'memory = 96M' 'backend = auto' 'log-level = debug'
	kill -HUP "$pid"
	heard 'to change backend the agent has to be restarted'
	heard 'the options were read again'
	[ "$(budget)" = $((96 << 20)) ] || fail "$keeper: $(budget)"
	conf 'memory = lots'
	kill -HUP "$pid"
	# As all lines: under journald those of that level are looked for.
	heard 'Z error: --memory "lots" makes no sense'
	heard 'make no sense any more'
	[ "$(budget)" = $((96 << 20)) ] || fail "of nonsense: $(budget)"
	end
done

# What is to stay is taken over at once, of jobs that nobody writes any more.
conf 'memory = 64M' 'keep-last = 3'
start --no-keeper --store "$dir/store"
heard 'serves on'
SHARDKEEP_SOCKET=$dir/agent.sock "$trainer" --mesh 1 --steps 4 \
	--flush-every 1 --job few --log /dev/null >/dev/null || fail "trainer"
heard 'step 1 is deleted'
conf 'memory = 64M' 'keep-last = 1'
kill -HUP "$pid"
heard 'step 2 is deleted'
heard 'step 3 is deleted'
end

# What may keep whoever reads it waiting is not read again, and all is served.
start --no-keeper
heard 'serves on'
rm -f "$dir/conf"
mkfifo "$dir/conf"
kill -HUP "$pid"
heard 'is not read again'
[ "$(budget)" = $((64 << 20)) ] || fail "of a pipe: $(budget)"
rm -f "$dir/conf"
end

# In the background it has a file, which may be moved away.
conf 'memory = 64M'
# Open here as well: what nobody holds open forgets what was written to it.
mkfifo "$dir/ready"
exec 4<>"$dir/ready"
"$agent" --config "$dir/conf" --socket "$dir/agent.sock" --detach \
	--no-keeper --ready-fd 4
read -r -N 1 -t 60 -u 4 _ || fail "it is not ready"
pid=$("$cachectl" --socket "$dir/agent.sock" --json status |
	python3 -c 'import json, sys; print(json.load(sys.stdin)["pid"])')
mv "$dir/agent.log" "$dir/agent.log.1"
kill -HUP "$pid"
budget >/dev/null
grep -q 'read again' "$dir/agent.log" || fail "the log was not reopened"
"$cachectl" --socket "$dir/agent.sock" stop >/dev/null || fail "it stays"
pid=
