#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A rank of mpirun that is killed, or does not come: the others are through.
# What mpirun itself says of it depends on its version; so does whether the
# others may live: without an Open MPI 4 that lets them, it is left out.
# Arguments: mpirun, the program, the agent.
set -eu
mpirun=$1
program=$2
agent=$3
ranks=4

"$mpirun" --version | grep -q 'Open MPI) 4' || exit 77
for mode in absent before within stopped; do
	said=$("$mpirun" --allow-run-as-root --oversubscribe \
		--enable-recovery -n $ranks "$program" "$agent" $mode 2>&1) ||
		true
	through=$(grep -c 'is through' <<<"$said") || true
	# One that goes on hears of the others' end as well.
	[ $mode = stopped ] && dead=0 || dead=1
	if [ "$through" -ne $((ranks - dead)) ]; then
		echo "$mode: $through ranks are through"
		echo "$said"
		exit 1
	fi
done
