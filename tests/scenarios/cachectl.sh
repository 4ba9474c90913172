#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Every command of cachectl against a real agent: what it prints, its JSON,
# its exit codes. Arguments: shardkeepd, shardkeep-trainer, cachectl, the bash
# completion.
set -u
agent=$1 trainer=$2 cachectl=$3 completion=$4

dir=$(mktemp -d)
pid=
trap '[ -z "$pid" ] || kill -9 "$pid" 2>/dev/null; rm -rf "$dir"' EXIT
export SHARDKEEP_SOCKET=$dir/agent.sock NO_COLOR=1
failed=0

fail() {
	echo "FAIL: $*" >&2
	sed 's/^/  out: /' "$dir/out" >&2
	sed 's/^/  err: /' "$dir/err" >&2
	failed=1
}

# expect CODE ARGUMENT...: runs cachectl; what it says lies in out and err.
expect() {
	local want=$1 got
	shift
	"$cachectl" "$@" >"$dir/out" 2>"$dir/err"
	got=$?
	[ "$got" -eq "$want" ] || fail "cachectl $*: exit $got, not $want"
	if [ "$got" -ne 0 ] && ! [ -s "$dir/err" ]; then
		fail "cachectl $*: failed without a word"
	fi
}

says() { grep -qE -- "$1" "$dir/out" || fail "no \"$1\" in the output"; }
complains() { grep -qE -- "$1" "$dir/err" || fail "no \"$1\" in the error"; }

# json EXPRESSION: of the document d on out.
json() {
	python3 -c "
import json, sys
d = json.load(open('$dir/out'))
sys.exit(0 if ($1) else 1)" || fail "not so in the JSON: $1"
}

start_agent() {
	[ -p "$dir/ready" ] || mkfifo "$dir/ready"
	"$agent" --socket "$SHARDKEEP_SOCKET" --store "$dir/store" \
		--memory 256M --log-level error --ready-fd 9 9<>"$dir/ready" &
	pid=$!
	read -r -t 30 -n 1 _ <"$dir/ready" || fail "the agent did not start"
}

# ---- without an agent, without sense ----
for command in list "show x" verify "pin x" "evict x" "flush x" stats stop; do
	# shellcheck disable=SC2086
	expect 3 $command
done
expect 2
expect 2 nonsense
expect 2 list a b
expect 2 show
expect 2 list --force
expect 2 --nonsense
expect 0 --help
says '^usage: cachectl'
for command in $("$cachectl" --commands); do
	expect 0 "$command" --help
	says "^usage: cachectl $command"
	expect 0 --help
	says "^  $command "
done
# What the shell completes is what the help names.
for option in $(for c in $("$cachectl" --commands); do
		"$cachectl" "$c" --help; done |
		grep -oE -- '--[a-z-]+' | sort -u); do
	grep -q -- "$option" "$completion" ||
		fail "the completion does not know $option"
done

# ---- nothing there yet ----
start_agent
expect 0 list
expect 0 --json list
json "d['snapshots'] == []"
expect 4 show nobody
expect 4 verify nobody
expect 4 evict nobody/3
expect 1 show 'no name'
expect 0 version
says "$SHARDKEEP_SOCKET"

# ---- snapshots of four ranks; every second step goes to disk ----
"$trainer" --mesh 2x2 --steps 5 --flush-every 2 --job a --log "$dir/log" \
	>/dev/null || fail "the trainer failed"
"$trainer" --mesh 3 --steps 2 --flush-every 1 --job b --log "$dir/log2" \
	>/dev/null || fail "the trainer failed"
expect 0 list
says '^a .*complete'
says '^b .*3/3'
expect 0 --json list a
json "all(s['job'] == 'a' for s in d['snapshots'])"
json "d['snapshots'][0]['step'] == max(s['step'] for s in d['snapshots'])"
json "any('newest' in s['state'] for s in d['snapshots'])"
newest=$(python3 -c "
import json; print(json.load(open('$dir/out'))['snapshots'][0]['step'])")

expect 0 show a
says 'dp 2 x tp 2'
says 'S\(0\)|S\(1\)'
expect 0 --json show a
json "d['world'] == 4 and d['step'] == $newest"
json "{i['rank'] for i in d['images']} == {0, 1, 2, 3}"
json "all(t['dtype'] and t['shape'] for t in d['tensors'] if t['kind'] == 'tensor')"
tensor=$(python3 -c "
import json
print(next(t['name'] for t in json.load(open('$dir/out'))['tensors']
           if t['placements'] == 'S(0) S(1)' or 'S(' in t['placements']))")
expect 0 show a "$tensor"
says "$tensor"
expect 0 --json show a "$tensor"
json "len(d['boxes']) >= 2"
expect 4 show a no.such.tensor
expect 4 show a/999
expect 4 show "a@77/$newest"

# ---- flush, and what protects ----
expect 0 flush --wait a
expect 0 --json list a
json "'durable' in d['snapshots'][0]['state']"
expect 1 evict a
complains 'newest'
expect 0 pin "a/$newest"
expect 0 --json list a
json "'pinned' in d['snapshots'][0]['state']"
expect 1 evict --disk "a/$newest"
complains 'pin'
expect 0 unpin "a/$newest"
expect 0 evict --force "a/$newest"
expect 0 --json list "a/$newest"
json "d['snapshots'][0]['memory_bytes'] == 0 and d['snapshots'][0]['disk_bytes'] > 0"

# ---- verify: good, then a damaged file ----
expect 0 verify
says 'good'
expect 0 --json verify b
json "len(d['images']) >= 3 and all(i['bad'] == 0 for i in d['images'])"
file=$(find "$dir/store/a" -name 'rank-00001*.safetensors' | sort | tail -n 1)
python3 - "$file" <<'EOF'
import os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
size = os.fstat(fd).st_size
byte = os.pread(fd, 1, size - 1)[0]
os.pwrite(fd, bytes([byte ^ 1]), size - 1)
EOF
expect 5 verify a
says 'BAD'
complains 'set aside'

# ---- counters ----
expect 0 stats
says 'sealed'
expect 0 --json stats
json "d"
expect 0 stats --prometheus
says '^# TYPE shardkeep_.* (counter|gauge)$'
says '^shardkeep_[a-z_]+ [0-9.e+]+$'

# ---- the end ----
expect 0 stop --wait
wait "$pid" && pid= || fail "the agent ended badly"
expect 3 list

# What was durable is there for the next agent.
start_agent
expect 0 --json list b
json "d['snapshots'] and 'durable' in d['snapshots'][0]['state']"
expect 0 evict --disk --force b
expect 0 --json list b
json "all(s['step'] != 2 or s['disk_bytes'] == 0 for s in d['snapshots'])"
expect 0 stop --wait
wait "$pid" && pid=
[ "$failed" -eq 0 ] && echo "cachectl does what it says"
exit "$failed"
