#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The recipes for Slurm with its own daemons: two nodes of this machine. A node
# whose agent does not answer is drained; a training step that is killed goes on
# from memory; a job whose time is over flushes, and comes back from disk.
# Arguments: the folder of the recipes, shardkeepd, cachectl, shardkeep-trainer.
set -u
folder=$1
"$(dirname -- "$0")/../support/need" slurmctld slurmd sbatch || exit
plugins=$(dirname -- "$(find /usr/lib -name auth_none.so -path '*slurm*' \
	2>/dev/null | head -n 1)")
[ "$(id -u)" = 0 ] && [ -e "$plugins/cred_none.so" ] || {
	echo "needs root, and Slurm's plugins for no authentication: not tested"
	exit 77
}

dir=$(mktemp -d /tmp/shardkeep-slurm-XXXXXX)
agent=
finish() {
	[ -z "$agent" ] || kill "$agent"
	for pid in "$dir"/*.pid; do
		[ ! -s "$pid" ] || kill -9 "$(cat "$pid")" 2>/dev/null
	done
	rm -rf "$dir" /tmp/shardkeep-"${job:-none}"
}
trap finish EXIT
fail() {
	echo "FAIL: $*" >&2
	tail -n 40 "$dir"/*.log "$dir"/*.txt >&2
	exit 1
}
# until_true WHAT COMMAND...: asked for a minute, for nobody tells.
until_true() {
	local what=$1
	shift
	timeout 60 bash -c 'until "$@"; do sleep 0.1; done' - "$@" ||
		fail "not $what"
}

# ---- a cluster ----

mkdir "$dir/bin" "$dir/state"
for program in "${@:2}"; do
	ln -s "$(realpath "$program")" "$dir/bin/"
done
export PATH=$dir/bin:$PATH SLURM_CONF=$dir/slurm.conf
export SHARDKEEP_STORE=$dir/store
unset SHARDKEEP_SOCKET
mapfile -t ports < <(python3 -c '
import socket
held = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
for s in held:
    print(s.getsockname()[1])')
host=$(hostname -s)
# Numbers of its own: the recipe names a directory of the machine after them.
cat >"$SLURM_CONF" <<EOF
ClusterName=test
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
AuthType=auth/none
CredType=cred/none
SlurmctldPort=${ports[0]}
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool-%n
SlurmctldPidFile=$dir/slurmctld.pid
SlurmdPidFile=$dir/slurmd-%n.pid
SlurmctldLogFile=$dir/slurmctld.log
SlurmdLogFile=$dir/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
PrologFlags=Alloc
Prolog=$dir/prolog
FirstJobId=$((RANDOM * 1000 + $$ % 1000 + 1))
NodeName=n1 NodeHostname=$host NodeAddr=127.0.0.1 Port=${ports[1]} CPUs=2
NodeName=n2 NodeHostname=$host NodeAddr=127.0.0.1 Port=${ports[2]} CPUs=2
PartitionName=all Nodes=ALL Default=YES State=UP MaxTime=INFINITE
EOF
sed -e "s|/usr/bin/cachectl|$dir/bin/cachectl|" \
	-e "s|/run/shardkeep/agent.sock|$dir/agent.sock|" \
	"$folder/slurm-prolog.sh" >"$dir/prolog"
chmod +x "$dir/prolog"
slurmctld && slurmd -N n1 && slurmd -N n2 || fail "no cluster"
is_idle() { [ "$(sinfo -h -o %T)" = idle ]; }
export -f is_idle
until_true "two idle nodes" is_idle

# ---- the prolog ----

is_drained() { sinfo -h -N -o %T | grep -q drain; }
export -f is_drained
job=$(sbatch --parsable --nodes=1 -o "$dir/prolog.txt" \
	--wrap "echo it ran") || fail "sbatch"
until_true "drained for want of an agent" is_drained
[ ! -s "$dir/prolog.txt" ] || fail "the job ran on a node without an agent"
scancel "$job"
mkfifo "$dir/ready"
exec 9<>"$dir/ready"
shardkeepd --socket "$dir/agent.sock" --memory 64M --no-keeper \
	--log-level error --ready-fd 9 &
agent=$!
read -r -N 1 -t 60 -u 9 _ || fail "no agent"
scontrol update NodeName="$(sinfo -h -t drain -o %n | paste -sd,)" State=RESUME
until_true "two idle nodes again" is_idle
srun -N2 -o "$dir/ran.txt" echo ran || fail "refused on nodes with an agent"
[ "$(grep -c ran "$dir/ran.txt")" = 2 ] || fail "not on both"

# ---- a job with agents of its own ----

# Killed in its first step of Slurm's, then until its time is said to be over.
cat >"$dir/train" <<'EOF'
#!/bin/bash
echo begun >>begun.txt
case $(grep -c . begun.txt) in
1) steps=(--steps 60 --kill-at 30) ;;
2) steps=(--steps 100000) ;;
*) steps=(--steps $(($(tail -n 1 loss.txt | cut -d ' ' -f 1) + 20))) ;;
esac
exec shardkeep-trainer --mesh 2 --job "train-$SLURM_JOB_ID" --log loss.txt \
	--text "$0" --flush-every 100000 "${steps[@]}"
EOF
chmod +x "$dir/train"
cd "$dir" || exit
: >begun.txt
: >loss.txt
job=$(sbatch --parsable --nodes=1 -o "$dir/job.txt" --open-mode=append \
	"$folder/slurm-job.sh" "$dir/train") || fail "sbatch"
has_trained() { [ "$(wc -l <loss.txt)" -gt 40 ]; }
export -f has_trained
until_true "trained beyond its death" has_trained
grep -q 'restored step 30, run 1' job.txt || fail "not from memory"
scancel --batch --signal=TERM "$job"
is_pending() { squeue -h -j "$1" -o %T | grep -q PENDING; }
export -f is_pending
until_true "requeued" is_pending "$job"
grep -q 'the agent has stopped' job.txt || fail "the agent did not end"
step=$(find "$SHARDKEEP_STORE" -name 'step-*' | sort | tail -n 1)
step=$((10#${step##*step-}))
[ "$step" -gt 40 ] || fail "step $step is the last on disk"
# In another second than it was killed in: what begins in the same one is
# taken for what was killed.
scontrol update JobId="$job" StartTime=now+2
is_over() { ! squeue -h -j "$1" 2>/dev/null | grep -q .; }
export -f is_over
until_true "over" is_over "$job"
grep -q "restored step $step, run 2" job.txt || fail "not from disk"
scontrol show job "$job" | grep -q 'JobState=COMPLETED' || fail "it failed"
