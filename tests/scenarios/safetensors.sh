#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What the agent flushed and cachectl exported is opened by the safetensors
# package. Arguments: shardkeepd, shardkeep-trainer, a directory for the Python
# packages, cachectl.
set -eu
here=$(cd -- "$(dirname -- "$0")" && pwd)
agent=$1 trainer=$2 venv=$3 cachectl=$4

if ! "$venv/bin/python" -c 'import safetensors, numpy, xxhash' 2>/dev/null; then
	python3 -m venv "$venv" >/dev/null &&
		"$venv/bin/python" -m pip install -q --disable-pip-version-check \
			safetensors numpy xxhash >/dev/null || exit 77
fi

dir=$(mktemp -d)
pid=
trap '[ -z "$pid" ] || kill -9 "$pid" 2>/dev/null; rm -rf "$dir"' EXIT
export SHARDKEEP_SOCKET=$dir/agent.sock
mkfifo "$dir/ready"
exec 9<>"$dir/ready"
"$agent" --socket "$SHARDKEEP_SOCKET" --store "$dir/store" --memory 256M \
	--log-level warning --ready-fd 9 &
pid=$!
read -r -t 60 -n 1 _ <&9
exec 9>&-
"$trainer" --mesh 2x2 --steps 4 --flush-every 2 --log "$dir/log"
"$cachectl" export demo "$dir/whole.safetensors" >/dev/null
"$cachectl" export --prefix model. --shard-size 100K demo "$dir/model" >/dev/null
kill -TERM "$pid"
wait "$pid"
pid=
"$venv/bin/python" "$here/safetensors-read.py" "$dir/store/demo" \
	"$dir/whole.safetensors" "$dir/model"
