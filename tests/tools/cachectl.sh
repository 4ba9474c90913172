#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Every command of cachectl against a real agent: what it prints, its JSON,
# its exit codes. Arguments: shardkeepd, shardkeep-trainer, cachectl.
set -u
here=$(cd -- "$(dirname -- "$0")" && pwd)
agent=$1 trainer=$2 cachectl=$3

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

# Either may not be as it should be where this runs.
either() {
	local want=$1
	shift
	"$cachectl" "$@" >"$dir/out" 2>"$dir/err"
	[[ " $want " == *" $? "* ]] || fail "cachectl $*: none of $want"
}

says() { grep -qE -- "$1" "$dir/out" || fail "no \"$1\" in the output"; }
# What people read fits the screen.
fits() {
	! grep -q ' $' "$dir/out" || fail "spaces at the end of a line"
	awk 'length($0) > 80 { exit 1 }' "$dir/out" ||
		fail "lines of more than 80 columns"
}
# before A B: the first line with A stands before the first with B.
before() {
	[ "$(grep -nE -m 1 -- "$1" "$dir/out" | cut -d: -f1)" -lt \
		"$(grep -nE -m 1 -- "$2" "$dir/out" | cut -d: -f1)" ] ||
		fail "\"$1\" does not stand before \"$2\""
}
complains() { grep -qE -- "$1" "$dir/err" || fail "no \"$1\" in the error"; }

# json EXPRESSION: of the document d on out.
json() {
	python3 -c "
import json, sys
d = json.load(open('$dir/out'))
sys.exit(0 if ($1) else 1)" || fail "not so in the JSON: $1"
}

# promised NAME: the document on out has the members and types that scripts
# count on, see cachectl.json.
promised() {
	python3 "$here/shapes.py" "$here/cachectl.json" "$1" "$dir/out" \
		2>>"$dir/err" || fail "its JSON is not what was promised"
}

keeper=()
start_agent() {
	# It is open before the agent writes: what it has written stays.
	[ -p "$dir/ready" ] || mkfifo "$dir/ready"
	exec 9<>"$dir/ready"
	local store=(--store "${stored:-$dir/store}")
	[ $# -eq 0 ] || store=()
	"$agent" --socket "$SHARDKEEP_SOCKET" "${store[@]}" "${keeper[@]}" \
		--memory 256M --log-level error --ready-fd 9 &
	pid=$!
	read -r -t 60 -n 1 _ <&9 || fail "the agent did not start"
	exec 9>&-
}

# Who unmounts the store next finds nothing of the agent's open there.
stopped() {
	! readlink "/proc/$pid/fd/"* 2>/dev/null | grep -q "^$dir/store" ||
		fail "it has stopped, and has its store open"
}

# ---- where nothing can be printed ----
for command in --help --version 'list --help'; do
	# shellcheck disable=SC2086
	"$cachectl" $command >/dev/full 2>"$dir/err"
	[ $? -eq 1 ] || fail "$command printed nothing, and was fine"
	complains 'cannot print: No space left'
	# shellcheck disable=SC2086
	"$cachectl" $command >&- 2>"$dir/err"
	[ $? -eq 1 ] || fail "$command: without output, and fine"
	complains 'cannot print: Bad file descriptor'
done
"$cachectl" version >/dev/full 2>"$dir/err"
[ $? -eq 1 ] || fail "version printed nothing, and that is no agent's"
complains 'cannot print: No space left'

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
complains 'list has no option --force'
expect 2 stats --json --prometheus
expect 2 evict a --wait
expect 2 export --shard-size 5X a "$dir/exported"
expect 2 export a
complains 'SNAPSHOT PATH'
expect 2 export --shard-size 1M a one.safetensors
complains 'directory'
for wrong in --nonsense --socket --p -Z 'list --memory=3'; do
	# shellcheck disable=SC2086
	expect 2 $wrong
	complains 'cachectl --help says more'
done
expect 0 --help
says '^usage: cachectl'
for command in $("$cachectl" --complete "" | cut -f1); do
	expect 0 "$command" --help
	says "^usage: cachectl $command"
	says '^for example:'
	says '^exit codes:'
	fits
	# Each option that it names it takes, or says that a value lacks.
	for option in $(grep -oE -- '^ +(-.,)? *--[a-z-]+' "$dir/out" |
			grep -oE -- '--[a-z-]+'); do
		"$cachectl" "$command" "$option" >"$dir/out" 2>"$dir/err"
		! grep -qE 'has no option|unrecognized' "$dir/err" ||
			fail "$command does not take $option"
	done
	expect 0 --help
	says "^  $command "
done

# What makes no sense is said before anybody is asked.
for command in show pin unpin evict flush list verify; do
	expect 2 $command 'no name'
	complains 'JOB@RUN/STEP'
	expect 2 $command a/latest/3
	expect 2 $command a/-1
	expect 2 $command a@x/1
	expect 2 $command a@0/1
done
expect 2 verify a 'no name'
expect 2 export 'no name' "$dir/exported"

# ---- nothing there yet ----
start_agent
either "0 7" --json status
json "d['store_size_bytes'] > 0 and d['store_free_bytes'] > 0"
SHARDKEEP_STORE=/elsewhere expect 0 list
complains 'SHARDKEEP_STORE is /elsewhere, but .* writes to'
SHARDKEEP_STORE=$dir/store expect 0 list
! [ -s "$dir/err" ] || fail "a warning without a reason"
expect 0 list
expect 0 --json list
json "d['snapshots'] == []"
expect 4 show nobody
expect 4 verify nobody
expect 4 evict nobody/3
expect 0 version
says "$SHARDKEEP_SOCKET"

# ---- snapshots of four ranks; every second step goes to disk ----
"$trainer" --mesh 2x2 --steps 5 --flush-every 2 --job a --log "$dir/log" \
	>/dev/null || fail "the trainer failed"
"$trainer" --mesh 3 --steps 2 --flush-every 1 --job b --log "$dir/log2" \
	>/dev/null || fail "the trainer failed"
long=job-$(printf 'x%.0s' {1..80})-end
"$trainer" --mesh 2 --steps 2 --flush-every 1 --job "$long" --log "$dir/log3" \
	>/dev/null || fail "the trainer failed"
expect 0 list
says '^a .*complete'
fits
says '^b .*3/3'
says '^job[-.]+.*x-end '
# The newest first, whoever's it is.
before '^job[-.]' '^b '
before '^b ' '^a '
expect 0 --json list
json "[s['age_s'] for s in d['snapshots']] == sorted(s['age_s'] for s in d['snapshots'])"
expect 0 list -v
fits
expect 0 show "$long"
sed -i 1d "$dir/out"	# the one place where the name is whole
fits
expect 0 verify "$long"
fits
expect 0 export "$long" "$dir/exported"
fits
expect 0 --json list a
json "all(s['job'] == 'a' for s in d['snapshots'])"
json "d['snapshots'][0]['step'] == max(s['step'] for s in d['snapshots'])"
json "any('newest' in s['state'] for s in d['snapshots'])"
newest=$(python3 -c "
import json; print(json.load(open('$dir/out'))['snapshots'][0]['step'])")
# The newest one, where a job alone is all of its snapshots.
for latest in a/latest a@1/latest; do
	expect 0 --json list $latest
	json "[(s['job'], s['step']) for s in d['snapshots']] == [('a', $newest)]"
	expect 0 --json verify $latest
	json "{(i['job'], i['step']) for i in d['images']} == {('a', $newest)}"
done
expect 0 list nobody/latest
says '^no snapshots of nobody/latest$'
expect 4 verify nobody/latest
expect 4 verify nobody/latest b/latest
says '^b .* good$'
expect 2 retain a/latest

expect 0 show a
says 'dp 2 x tp 2'
says 'S\(0\)|S\(1\)'
fits
before '^Tensors' '^Images'
expect 0 --json show a
json "d['world'] == 4 and d['step'] == $newest"
json "{i['rank'] for i in d['images']} == {0, 1, 2, 3}"
json "all(t['dtype'] and t['shape'] for t in d['tensors'] if t['kind'] == 'tensor')"
# A tensor has the bytes that it has, however many hold it.
json "all(t['bytes'] == 4 * __import__('math').prod(t['shape'])
	for t in d['tensors'] if t['dtype'] == 'F32')"
json "any('R' in t['placements'] for t in d['tensors'])"
tensor=$(python3 -c "
import json
print(next(t['name'] for t in json.load(open('$dir/out'))['tensors']
           if t['placements'] == 'S(0) S(1)' or 'S(' in t['placements']))")
expect 0 show a "$tensor"
says "$tensor"
fits
before '^ +0 .*\|' '^Boxes'
expect 0 --json show a "$tensor"
json "len(d['boxes']) >= 2"
expect 4 show a no.such.tensor
expect 4 show a/999
expect 4 show "a@77/$newest"

# ---- what stays on disk ----
expect 0 retain a
says '^a keeps the newest 4 \(default\)$'
expect 0 list -v
says '^a keeps the newest 4 \(default\)$'
expect 0 retain a --last 3 --every 1000 --age 7200 --bytes 2G
says '^a keeps the newest 3, every multiple of 1000, none .*2h.*, at most 2'
expect 0 --json retain a
promised retain
json "d['said_by'] == 'operator' and d['keep_last'] == 3"
json "d['keep_every'] == 1000 and d['keep_age_s'] == 7200"
json "d['keep_bytes'] == 2 << 30"
expect 0 --json list a
json "[r['keep_last'] for r in d['retention']] == [3]"
expect 2 retain a --last 3 --default
expect 2 retain a --last three
expect 2 retain a --every -1
expect 2 retain a --bytes much
# Two terabytes, two bytes: all but the newest would go.
expect 2 retain a --bytes 2
complains 'is a K, M, G or T missing'
expect 2 retain a/3 --last 3
expect 2 retain
expect 4 retain nobody
expect 0 retain a --last 0
says '^a keeps everything \(operator\)$'
expect 0 retain a --default
says '^a keeps the newest 4 \(default\)$'
# One that makes no sense is damage, and no answer; it is written anew.
cp "$dir/store/a/.retain" "$dir/retain"
echo nonsense >"$dir/store/a/.retain"
for form in '' --json; do
	# shellcheck disable=SC2086
	expect 5 $form retain a
	complains '/a/\.retain makes no sense.* "cachectl retain a" with what'
	! [ -s "$dir/out" ] || fail "an answer that is none"
done
expect 0 retain a --default
cmp -s "$dir/store/a/.retain" "$dir/retain" || fail "it is not as it was"
expect 0 retain --help
says '5 something is damaged \(verify, export, retain\)'

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
# From disk, from memory, or from both, whatever either has.
expect 0 evict --disk b/1
expect 0 --json list b/1
json "d['snapshots'][0]['memory_bytes'] > 0 and d['snapshots'][0]['disk_bytes'] == 0"
expect 0 evict --disk --memory b/1
expect 0 --json list b/1
json "not d['snapshots']"
expect 0 --json list "$long/1"
json "d['snapshots'][0]['memory_bytes'] > 0 and d['snapshots'][0]['disk_bytes'] > 0"
expect 0 evict --memory --disk "$long/1"
expect 0 --json list "$long/1"
json "not d['snapshots']"
expect 4 evict --memory --disk "$long/1"

# ---- where nothing can be printed, with an agent ----
for command in list 'show a' stats status version 'pin a' 'verify b'; do
	# What is printed would be a request of the socket that has its number.
	# shellcheck disable=SC2086
	"$cachectl" $command >&- 2>"$dir/err"
	[ $? -eq 1 ] || fail "$command: without output, and fine"
	complains 'cannot print: Bad file descriptor'
done
expect 0 unpin a

# ---- verify: good, then a damaged file ----
expect 0 verify
says 'good'
expect 0 --json verify b
json "len(d['images']) >= 3 and all(i['bad'] == 0 for i in d['images'])"
file=$(find "$dir/store/a" -name 'rank-00001*.safetensors' | sort | tail -n 1)
# What is replaced all the while is verified or said not to be, never left out.
expect 0 --json verify a
images=$(python3 -c "import json; print(len(json.load(open('$dir/out'))['images']))")
python3 - "$file" <<'EOF' &
import os, shutil, sys
while os.path.exists(os.path.dirname(sys.argv[1])):
    shutil.copyfile(sys.argv[1], sys.argv[1] + ".back")
    os.rename(sys.argv[1] + ".back", sys.argv[1])
EOF
replacer=$!
for _ in 1 2 3 4 5 6; do
	if "$cachectl" --json verify a >"$dir/out" 2>"$dir/err"; then
		json "len(d['images']) == $images"
	else
		complains 'not verified, of rank 1 of'
	fi
done
kill "$replacer"
wait "$replacer" 2>/dev/null
rm -f "$file.back"
python3 - "$file" <<'EOF'
import os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
size = os.fstat(fd).st_size
byte = os.pread(fd, 1, size - 1)[0]
os.pwrite(fd, bytes([byte ^ 1]), size - 1)
EOF
expect 5 export a "$dir/damaged"
complains 'its bytes are not what was sealed'
! [ -s "$dir/out" ] || fail "a table of nothing"
# So it is to who comes after it was noticed.
step=$(basename "$(dirname "$file")")
expect 5 export "a/$((10#${step#step-}))" "$dir/damaged"
complains 'damaged on disk'
# What is not there hides neither what was verified, nor what comes after it.
expect 4 verify b nobody
says '^b .*good'
complains 'nobody'
expect 5 verify nobody a b
says 'BAD'
says '^b .*good'
complains 'set aside; .*nobody'
expect 5 --json verify a nobody
json "any(i['bad'] for i in d['images'])"
expect 5 verify a
says 'BAD'
complains 'set aside'
# How far a job is goes back with that: as far as the list says.
expect 0 --json list
cp "$dir/out" "$dir/listed"
either "0 7" --json status
json "(lambda listed: all(
	[s['step'] for s in listed if s['job'] == j['job'] and of in s['state']
	 ][:1] == ([] if j[of + '_step'] is None else [j[of + '_step']])
	for j in d['jobs'] for of in ('complete', 'durable'))
	)(json.load(open('$dir/listed'))['snapshots'])"
json "any(j['job'] == 'a' for j in d['jobs'])"

# ---- how the agent and the machine are ----
either "0 7" status
says '^agent +[0-9]'
says '^memory .* of '
says '^disk .* free of '
fits
either "0 7" --json status
json "all(s['remedy'] for s in d['degraded'])"
json "any(j['memory_bytes'] > 0 for j in d['jobs'])"
either "0 7 8" doctor
says '^agent +ok '
says '^store +ok |^store +warn '
fits
either "0 7 8" --json doctor
promised doctor
json "{c['check'] for c in d['checks']} >= {'agent', 'kernel', 'memlock',
	'huge pages', 'io_uring', 'cgroup', 'store', 'cuda', 'nccl', 'clock'}"
json "all(bool(c['remedy']) == (c['verdict'] != 'ok') for c in d['checks'])"
expect 2 status extra
expect 2 doctor --prometheus

# ---- again and again ----
expect 0 top -n 2 -i 1
[ "$(grep -c '^JOB ' "$dir/out")" -eq 2 ] || fail "top: not two tables"
! grep -q $'\033' "$dir/out" || fail "top: escapes in a pipe"
fits
expect 0 --json top -n 1
json "d['memory_budget_bytes'] > 0 and d['jobs'][0]['memory_bytes'] > 0"
expect 2 top -n 0
expect 2 top -i x
expect 2 list -n 1
"$cachectl" --json watch watched >"$dir/watched" 2>&1 &
watcher=$!
told() {
	local event
	for event in sealed complete durable; do
		grep -q "\"event\":\"$event\",\"job\":\"watched\"" \
			"$dir/watched" || return
	done
}
# A trainer that comes before its first look is no event; the next one is.
for step in {1..20}; do
	"$trainer" --mesh 1 --steps "$step" --flush-every 1 --job watched \
		--log "$dir/log5" >/dev/null || fail "the trainer failed"
	for _ in {1..30}; do
		! told || break 2
		read -r -t 0.1 _ <>"$dir/ready"
	done
done
told || fail "watch says no more than: $(cat "$dir/watched")"
kill "$watcher" && wait "$watcher" 2>/dev/null
expect 0 evict --memory --force watched

# An older step that goes to disk later takes the newest nothing of its word.
"$trainer" --mesh 1 --steps 2 --flush-every 2 --job order --log "$dir/log6" \
	>/dev/null || fail "the trainer failed"
expect 0 flush --wait order/2
expect 0 flush --wait order/1
either "0 7" --json status
json "[j['durable_step'] for j in d['jobs'] if j['job'] == 'order'] == [2]"

# ---- counters ----
expect 0 stats
says '^images_sealed_total '
says '^registrations_refused_memory_total '
fits
says ' [0-9]+ '
! grep -qE ' [0-9.]+e\+[0-9]' "$dir/out" || fail "a number that nobody reads"
expect 0 --json stats
json "all(isinstance(s['value'], int) for s in d['stats']
	if s['kind'] == 'counter' and 'seconds' not in s['name'])"
expect 0 --json stats
json "d"
expect 0 stats --prometheus
says '^# TYPE shardkeep_.* (counter|gauge)$'
says '^shardkeep_[a-z_]+ [0-9.e+]+$'
says '^shardkeep_job_images_sealed_total\{job=".*",uid="[0-9]+"\} [1-9]'
says '^shardkeep_refusals_total\{reason="busy"\} '

# ---- pins of what memory alone has say where they stand ----
"$trainer" --mesh 1 --steps 3 --flush-every -1 --job apart --log "$dir/log9" \
	>/dev/null || fail "the trainer failed"
expect 0 --json pin apart/2
json "d['stands'] == 'memory'"
expect 0 pin apart/2
says '^pinned apart@1/2 in memory alone; .*cachectl flush$'
expect 0 flush --wait apart/2
expect 0 --json pin apart/2
json "d['stands'] == 'disk'"
expect 0 pin apart/2
says '^pinned apart@1/2$'
"$trainer" --mesh 1 --steps 3 --flush-every 1000 --job sent --log "$dir/log9" \
	>/dev/null || fail "the trainer failed"
expect 0 --json list sent/2
json "d['snapshots'][0]['disk_bytes'] == 0"
expect 0 --json pin sent/2
json "d['stands'] in ('to-disk', 'disk')"
# Nobody asked for it beside.
until "$cachectl" list sent/2 | grep -q durable; do
	:
done
expect 0 --json pin sent/2
json "d['stands'] == 'disk'"

# ---- the end ----
expect 0 stop --wait
stopped
wait "$pid" || fail "the agent ended badly"
pid=
expect 3 list
expect 3 status
either 8 doctor
says 'none answers'

# ---- without a store: what is lost is said, and not "to-flush" ----
start_agent --no-store
"$trainer" --mesh 2 --steps 2 --flush-every 1 --job gone --log "$dir/log4" \
	>/dev/null || fail "the trainer failed"
expect 0 --json list
json "not any('to-flush' in s['state'] for s in d['snapshots'])"
expect 1 flush gone
complains 'no store'
expect 0 pin gone/1
says 'in memory alone; .*the agent needs a --store'
expect 0 unpin gone/1
# Of both places, of what one alone has: that is it. What is protected there
# stays.
expect 0 evict --memory --disk gone/1
expect 0 --json list gone/1
json "not d['snapshots']"
expect 1 evict --disk --memory gone/2
complains 'newest'
expect 4 evict --disk gone/2
complains 'nothing of it is on disk'
expect 6 --json stop --wait
json "d['result'] == 'stopped' and 'step 2 of job \"gone\"' in d['lost']"
complains 'lost'
wait "$pid" && pid= || fail "the agent had no store to fail on"
start_agent --no-store
"$trainer" --mesh 2 --steps 1 --job gone --log "$dir/log4" >/dev/null
expect 0 stop
says 'lost with the agent: step 1 of job "gone" \(the agent has no store\)'
wait "$pid" && pid=

# ---- a variable that is not set names no other agent than was meant ----
expect 2 --socket '' stop
complains 'the path of --socket is empty'

# ---- who is not the agent's user does not judge by what it may itself ----
stranger=(setpriv --reuid=65534 --regid=65534 --clear-groups)
if [ "$(id -u)" -eq 0 ] && "${stranger[@]}" test -x "$cachectl" 2>/dev/null; then
	start_agent
	chmod 755 "$dir" "$dir/store"
	"${stranger[@]}" "$cachectl" doctor >"$dir/out" 2>"$dir/err"
	says "^store +(ok|warn) "
	! grep -q "give it to the agent's user" "$dir/out" ||
		fail "another user is told to take the store"
	"${stranger[@]}" "$cachectl" stop >"$dir/out" 2>"$dir/err"
	[ $? -eq 1 ] || fail "a stranger stops the agent"
	complains 'only uid 0 may stop'
	chmod 700 "$dir"
	expect 0 stop --wait
	wait "$pid" && pid=
fi

# ---- a terminal that can do nothing gets one table after the other ----
start_agent
TERM=dumb script -qec "$cachectl top -n 1" /dev/null </dev/null >"$dir/out" 2>&1
says 'copied/s'
! grep -q $'\e' "$dir/out" || fail "a dumb terminal is told what it cannot do"
expect 0 stop --wait
wait "$pid" && pid=

# ---- a terminal sees that we wait; what is not one, nothing ----
keeper=(--flush-rate 256K)
start_agent
keeper=()
kill -STOP "$pid"
# The agent goes on when the terminal has said it.
script -qec "$cachectl list" /dev/null </dev/null 2>&1 |
	while read -r -d $'\e' line || [ -n "$line" ]; do
		printf '%s\n' "$line"
		[[ $line != *'for the agent, '*' s' ]] || kill -CONT "$pid"
	done >"$dir/out"
kill -CONT "$pid"
says 'waiting for the agent, [1-9][0-9]* s'
# One that hangs is told from none: another one could not be started. So it is
# where it hangs in the middle of what was asked.
"$trainer" --mesh 1 --steps 1 --flush-every 2 --job slow --log "$dir/log8" \
	>/dev/null || fail "the trainer failed"
"$cachectl" flush --wait slow >"$dir/flushed" 2>&1 &
flusher=$!
"$cachectl" top -i 1 -n 3 >"$dir/top" 2>&1 &
top=$!
until grep -q '^JOB ' "$dir/top" && "$cachectl" --json list slow |
	grep -q '"flushing"'; do
	:
done
kill -STOP "$pid"
"$cachectl" doctor >"$dir/doctor" 2>&1 &
doctor=$!
expect 3 list
complains "the agent at $SHARDKEEP_SOCKET does not answer: it hangs"
wait "$doctor"
[ $? -eq 8 ] || fail "doctor does not mind an agent that hangs"
for asker in $top $flusher; do
	timeout 70 tail --pid="$asker" -f /dev/null ||
		fail "it waits for one that hangs for ever"
	kill "$asker" 2>/dev/null
	wait "$asker"
	got=$?
	[ $got -eq 3 ] || fail "top, or flush --wait: $got, not 3"
done
cp "$dir/doctor" "$dir/out"
says 'SIGCONT it, or end it'
kill -CONT "$pid"
expect 0 stop --wait
! [ -s "$dir/err" ] || fail "progress where nobody looks"
wait "$pid" && pid=

# ---- a store whose path is longer than an agent tells ----
stored=$dir/$(printf '%0200d/%0100d' 0 0)
mkdir -p "$stored"
start_agent
either "0 7" --json doctor
says 'its path is longer than an agent tells'
SHARDKEEP_STORE=$stored either "0 7" --json doctor
says '"check": "room"'
! grep -q 'longer than an agent' "$dir/out" || fail "it was told"
! [ -s "$dir/err" ] || fail "another store is said to be there"
stored=
expect 0 stop --wait
wait "$pid" && pid=

# ---- the agent goes under them, and another one takes its place ----
# The keeper has the socket: who connects meanwhile waits.
keeper=(--keeper)
start_agent
keeper=()
"$cachectl" --json watch -n 1 over >"$dir/watched" 2>&1 &
watcher=$!
"$cachectl" top -i 1 >"$dir/top" 2>&1 &
top=$!
# Both, and who asks.
until "$cachectl" --json stats | grep -A8 '"shardkeep_clients"' |
	grep -q '"value": 3'; do
	:
done
# How far a job is the next agent says as this one did, and how old that is.
"$trainer" --mesh 2 --steps 2 --flush-every 1 --job far --log "$dir/log7" \
	>/dev/null || fail "the trainer failed"
expect 0 flush --wait far
either "0 7" --json status
json "[(j['sealed_step'], j['complete_step'], j['durable_step'])
	for j in d['jobs'] if j['job'] == 'far'] == [(2, 2, 2)]"
kill -9 "$(python3 -c "import json; print(json.load(open('$dir/out'))['pid'])")"
"$trainer" --mesh 1 --steps 1 --job over --log "$dir/log6" >/dev/null ||
	fail "the trainer failed"
wait "$watcher" || fail "watch ended with the agent: $(cat "$dir/watched")"
# It looks at the store beside everything else.
until "$cachectl" --json status | grep -A12 '"job": "far"' |
	grep -q '"durable_step": 2'; do
	:
done
either "0 7" --json status
json "[(j['sealed_step'], j['complete_step'], j['durable_step'])
	for j in d['jobs'] if j['job'] == 'far'] == [(2, 2, 2)]"
json "all(0 <= j['durable_age_s'] < 300 for j in d['jobs'] if j['job'] == 'far')"
grep -q '"event":"sealed","job":"over"' "$dir/watched" ||
	fail "watch told of what was not: $(cat "$dir/watched")"
kill -0 "$top" || fail "top ended with the agent: $(tail -n 3 "$dir/top")"
expect 0 stop --wait
wait "$pid" && pid=
# A terminal that becomes wider has more room, from the next table on.
start_agent
"$trainer" --mesh 1 --steps 1 --job "wide-$long" --log "$dir/log6" >/dev/null ||
	fail "the trainer failed"
python3 - "$cachectl" "wide-$long" >"$dir/out" 2>&1 <<'EOP' ||
import fcntl, os, pty, select, struct, sys, termios
def size(fd, columns):
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
pid, fd = pty.fork()
if pid == 0:
    size(1, 80)
    os.execv(sys.argv[1], [sys.argv[1], "top", "-i", "1"])
said = b""
while sys.argv[2].encode() not in said:
    assert select.select([fd], [], [], 60)[0], said
    said += os.read(fd, 65536)
    # One table for 80 columns has been.
    if b"COPIED/S" in said:
        size(fd, 250)
    assert len(said) < 1 << 15, "it stays as it was"
os.kill(pid, 9)
os.waitpid(pid, 0)
EOP
	fail "top does not follow its terminal"
expect 0 stop --wait
wait "$pid" && pid=
# Without another one it says so.
wait "$top"
[ $? -eq 3 ] || fail "top does without an agent: $(tail -n 3 "$dir/top")"
grep -q '^cachectl: ' "$dir/top" || fail "top says nothing of it"

# ---- what scripts are promised ----
expect 0 --json version
promised 'version, no agent'
start_agent
"$trainer" --mesh 2x2 --steps 4 --flush-every 2 --job j --log "$dir/log5" \
	>/dev/null || fail "the trainer failed"
"$trainer" --mesh 2 --steps 4 --flush-every 2 --job older --log "$dir/log6" \
	>/dev/null || fail "the trainer failed"
for command in list 'show j' 'verify j' 'pin j' 'unpin j' 'flush --wait j' \
	"export j $dir/j" stats version 'evict --disk --force j/2'; do
	# shellcheck disable=SC2086
	expect 0 --json $command
	promised "${command%% *}"
done
expect 0 --json show j model.head.weight
promised 'show TENSOR'

# ---- what lies on disk as an image and is none ----
cut=$(ls "$dir"/store/older/step-*2/rank-00001-*)
cp "$cut" "$dir/kept"
truncate -s 100 "$cut"
expect 5 verify older
complains 'rank 1 of 2, is damaged: '
says '^older .* good'
expect 5 verify
expect 5 --json verify older/2
expect 0 verify older/4
cat "$dir/kept" >"$cut"
expect 0 verify older

# ---- files of one export, never of two ----
sums() {
	(cd "$dir/$1" && sha256sum -- *)
}
expect 0 export --shard-size 4K j "$dir/cut"
[ -s "$dir/cut/model.safetensors.index.json" ] || fail "no index"
expect 0 export --shard-size 4K j "$dir/cut"
sums cut >"$dir/sums"
# Others' would be loaded with it, or in its place.
expect 1 export j "$dir/cut"
complains 'of another export'
expect 1 export --shard-size 64K j "$dir/cut"
complains 'of another export'
expect 0 export j "$dir/whole"
expect 0 export j "$dir/whole"
expect 1 export --shard-size 4K j "$dir/whole"
complains 'model.safetensors of another export'
# One that fails half-way leaves the one before, and nothing of its own.
(ulimit -f 6 && expect 1 export --shard-size 4K j "$dir/cut" &&
	complains 'File too large' && exit "$failed") || failed=1
sums cut | cmp -s - "$dir/sums" || fail "two exports in one directory"
# So does one that is interrupted.
python3 - "$cachectl" --json export --shard-size 4K j "$dir/cut" \
	>"$dir/out" 2>"$dir/err" <<'EOP'
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
os.kill(os.getpid(), signal.SIGINT)     # pending, over exec() as well
os.execv(sys.argv[1], sys.argv[1:])
EOP
[ $? -eq 1 ] || fail "an export that is interrupted"
complains 'interrupted'
sums cut | cmp -s - "$dir/sums" || fail "an interrupted export left something"
# Not one whose signals are ignored, as nohup and a script's "&" have it.
python3 - "$cachectl" --json export --shard-size 4K j "$dir/cut" \
	>"$dir/out" 2>"$dir/err" <<'EOP'
import os, signal, sys
ending = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
for number in ending:
    signal.signal(number, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, ending)
for number in ending:
    os.kill(os.getpid(), number)
os.execv(sys.argv[1], sys.argv[1:])
EOP
[ $? -eq 0 ] || fail "an export that ignores signals"
expect 0 --json stop --wait
promised stop
wait "$pid" && pid=

# What was durable is there for the next agent, and of what it has not been
# asked about it does not take another for the newest.
start_agent
expect 0 evict --disk older/2
expect 1 evict --disk older/4
complains 'newest'
expect 0 --json list b
json "d['snapshots'] and 'durable' in d['snapshots'][0]['state']"
expect 0 evict --disk --force b
expect 0 --json list b
json "all(s['step'] != 2 or s['disk_bytes'] == 0 for s in d['snapshots'])"
expect 0 stop --wait
wait "$pid" && pid=
# ---- the command of the guide, for a node: other users must reach it ----
# A container's own layers are no place for a store.
mkdir "$dir/layers"
layers='mount -t tmpfs none "$1" && cd "$1" && mkdir lower upper work all &&
	mount -t overlay -o lowerdir=lower,upperdir=upper,workdir=work \
		overlay all'
if unshare -m bash -c "$layers" _ "$dir/layers" 2>/dev/null; then
	found=$(unshare -m bash -c "$layers"' && SHARDKEEP_SOCKET=none \
		SHARDKEEP_STORE=$1/all "$2" --json doctor' _ "$dir/layers" \
			"$(realpath "$cachectl")" |
		python3 -c 'import json, sys
print(*("{verdict} {found} {remedy}".format(**c)
        for c in json.load(sys.stdin)["checks"] if c["check"] == "store"))')
	[[ $found == warn*overlayfs*volume* ]] || fail "doctor says: $found"
fi
if unshare -m mount -t tmpfs none /run 2>/dev/null; then
	mode=$(unshare -m bash -c '
		mount -t tmpfs none /run
		mkfifo /run/ready
		exec 9<>/run/ready
		"$1" --socket /run/shardkeep/agent.sock --memory 16M \
			--log-level error --ready-fd 9 &
		read -r -t 60 -n 1 _ <&9
		stat -c %a /run/shardkeep
		kill $! && wait $!' _ "$agent")
	[ "$mode" = 755 ] || fail "/run/shardkeep has mode $mode"
fi
[ "$failed" -eq 0 ] && echo "cachectl does what it says"
exit "$failed"
