#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The demo over several nodes, each an agent with a directory of its own, with
# a process for each simulated GPU. All are killed; back on another mesh, from
# the memory of this node and the others; killed again, with the memory of one
# node; back on a third mesh, from memory and disk. Every loss must equal that
# of a run nobody disturbed, bit for bit.
# Arguments: the agent, the trainer, the one with GPUs, cachectl, how many
# nodes, GPUs of each, steps. $SHARDKEEP_LIBCUDA and $SHARDKEEP_LIBNCCL name
# the simulation; without them it is the machine's driver and library.
set -eu
agent=$1 trainer=$2 on_gpus=$3 cachectl=$4 nodes=$5 gpus=$6 steps=$7
last=$((nodes - 1))
ranks=$((nodes * gpus))
first_kill=$((steps * 3 / 8))
second_kill=$((steps * 6 / 8))
export VCUDA_DEVICES=${VCUDA_DEVICES-$gpus}

dir=$(mktemp -d)
# The agents by their nodes, and a trainer, which runs beside us so that a
# signal is heard at once.
pids=()
running=
clean_up() {
	# Who is told twice does this once, and to its end.
	trap '' HUP INT TERM
	for pid in $running "${pids[@]}"; do
		{ kill -9 "$pid" && wait "$pid"; } 2>/dev/null || true
	done
	rm -rf "$dir"
}
trap clean_up EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM
started=$(date +%s)

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
fail() { echo "demo: $*" >&2; exit 1; }

mkfifo "$dir/pause"
on_nodes=()
for ((i = 0; i < nodes; i++)); do
	mkdir -p "$dir/$i/gpus"
	on_nodes+=(--node "$dir/$i/agent.sock")
done

start_agent() {
	mkfifo "$dir/ready"
	# It alone has the other end: where it ends, nobody waits for it.
	VCUDA_SESSION=$dir/$1/gpus "$agent" --socket "$dir/$1/agent.sock" \
		--store "$dir/$1/store" --memory 256M --device-memory 64M \
		--log-level warning --ready-fd 9 --no-keeper \
		9>"$dir/ready" &
	pids[$1]=$!
	read -r -t 60 -n 1 _ <"$dir/ready" || fail "an agent did not start"
	rm "$dir/ready"
}

run() {
	local got=0
	"$@" &
	running=$!
	wait "$running" || got=$?
	running=
	return $got
}

# Arguments: the exit code, the log, further ones of the trainer.
train() {
	local want=$1 log=$2 got=0
	shift 2
	run "$on_gpus" --steps "$steps" --log "$log" "${on_nodes[@]}" "$@" \
		>"$dir/said" || got=$?
	cat "$dir/said"
	[ "$got" -eq "$want" ] || fail "the trainer ended with $got, not $want"
}

# That a way of the last restore was used, or not: a word, yes or no.
came() {
	local bytes
	bytes=$(tr -d '\n' <"$dir/said" |
		sed -n "s/.* \([0-9.]*\) from $1.*/\1/p")
	[ -n "$bytes" ] || fail "nothing is said of $1"
	case $bytes in
	0.0) [ "$2" = no ] || fail "nothing came from $1" ;;
	*) [ "$2" = yes ] || fail "$bytes KiB came from $1" ;;
	esac
}

# Until a node has written its part of a step: that all have is not known to
# any of them alone. Arguments: the node, the step.
wait_written() {
	local i
	for ((i = 0; i < 300; i++)); do
		"$cachectl" --socket "$dir/$1/agent.sock" list "demo/$2" \
			>"$dir/listed"
		grep -q ' flushing \| 0 B ' "$dir/listed" || return 0
		read -r -t 0.1 <>"$dir/pause" || true
	done
	fail "node $1 did not write step $2"
}

say "1. The reference: $steps steps on $ranks processes, undisturbed"
run "$trainer" --mesh "${nodes}x$gpus" --steps "$steps" --no-snapshots \
	--log "$dir/reference"

say "2. $nodes nodes, $gpus GPUs each, a snapshot every step; all killed in step $first_kill"
for ((i = 0; i < nodes; i++)); do start_agent "$i"; done
train 137 "$dir/run1" --mesh "${nodes}x$gpus" --flush-every 0 \
	--kill-at "$first_kill"
for ((i = 0; i < nodes; i++)); do
	echo "  node $i has:"
	"$cachectl" --socket "$dir/$i/agent.sock" list demo
done

say "3. Back on another mesh, from memory; killed in step $second_kill, with node $last's memory"
train 137 "$dir/run2" --mesh "1x$ranks" --flush-every 1 \
	--kill-at "$second_kill"
came "this node's memory" yes
came "other nodes by NCCL" "$([ "$nodes" -gt 1 ] && echo yes || echo no)"
came disk no
wait_written "$last" "$second_kill"
kill -9 "${pids[last]}"
wait "${pids[last]}" 2>/dev/null || true
start_agent "$last"

say "4. Back on a third mesh, with node $last's part from its disk"
train 0 "$dir/run3" --mesh "$((gpus > 1 ? gpus - 1 : 1))x$nodes" --flush-every 1
[ "$nodes" -eq 1 ] || came "this node's memory" yes
came disk yes
for ((i = 0; i < nodes; i++)); do
	kill -TERM "${pids[i]}"
	wait "${pids[i]}" || fail "node $i could not make all durable"
done
pids=()

say "Every loss against the reference, bit for bit"
cat "$dir/run1" "$dir/run2" "$dir/run3" >"$dir/all"
awk 'FNR == NR { want[$1] = $2; n++; next }
	{
		seen[$1] = 1
		compared++
		if (want[$1] != $2) {
			bad++
			print "step " $1 ": " $2 ", the reference has " want[$1]
		}
	}
	END {
		for (s in want) if (!(s in seen)) missing++
		if (bad || missing || !compared) {
			printf "%d of %d losses differ, %d steps are missing\n",
				bad, compared, missing
			exit 1
		}
		printf "all %d losses of %d steps are equal\n", compared, n
	}' "$dir/reference" "$dir/all"
echo "done in $(($(date +%s) - started)) s"
