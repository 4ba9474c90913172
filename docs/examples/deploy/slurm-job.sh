#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A job that brings its own agents, where no administrator runs one. They live
# in a step of their own, so that a training step that dies leaves them.
# Arguments: the training program and its own.
#SBATCH --nodes=4
#SBATCH --no-kill
#SBATCH --requeue
#SBATCH --signal=B:TERM@300
#SBATCH --exclusive
set -u
export SHARDKEEP_SOCKET=/tmp/shardkeep-$SLURM_JOB_ID/agent.sock
export SHARDKEEP_STORE=${SHARDKEEP_STORE:-$HOME/checkpoints}

# One process on each node, beside whatever else runs there.
on_nodes() {
	srun --overlap --ntasks-per-node=1 --mem=0 "$@"
}

# Not by a signal to srun, which kills its tasks: what is newest is flushed.
stop_agents() {
	on_nodes cachectl stop --wait
	wait "$agents"
}

# Slurm's TERM, five minutes before the time is over. Ranks that are killed take
# nothing along.
come_back() {
	trap '' TERM
	kill "${training:-$agents}" 2>/dev/null
	wait "${training:-}"
	stop_agents
	scontrol requeue "$SLURM_JOB_ID"
	exit 143
}
trap come_back TERM

on_nodes --kill-on-bad-exit=0 shardkeepd --socket "$SHARDKEEP_SOCKET" \
	--keeper --memory 60% &
agents=$!
on_nodes timeout 60 \
	sh -c 'until cachectl stats >/dev/null 2>&1; do sleep 0.2; done' || exit

status=1
for _ in 1 2 3; do
	srun --overlap --kill-on-bad-exit=1 "$@" &
	training=$!
	wait "$training"
	status=$?
	[ "$status" -ne 0 ] || break
done
stop_agents
exit "$status"
