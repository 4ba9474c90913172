#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# shardkeep-bench: what it is not told well it does not measure. Argument: path
# of shardkeep-bench.
set -euo pipefail

bench=$1
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

# refuses WORDS OPTION...: exit code 2, a line that has the words, nothing left.
refuses()
{
	local words=$1 r=0
	shift
	"$bench" --dir "$dir" "$@" >"$dir/out" 2>"$dir/err" || r=$?
	if [ "$r" != 2 ] || ! grep -qF -- "$words" "$dir/err" ||
	   [ -s "$dir/out" ]; then
		echo "shardkeep-bench $*: exit code $r, said:" >&2
		cat "$dir/out" "$dir/err" >&2
		exit 1
	fi
	rm "$dir/out" "$dir/err"
	rmdir "$dir"
	mkdir "$dir"
}

! "$bench" --help >/dev/full || {
	echo "help that nobody has got was given" >&2
	exit 1
}
refuses '"snap" is none of the names that -p has' --phases snap
refuses '"" is none of the names that -p has' --phases ''
refuses '"" is none of the names that -p has' --phases small,
refuses '"restores" is none' --phases small,restores,nodes
refuses '"gpt" is none of the names that -M has' --world 16 --models llama,gpt
refuses '"dp" is none of the names that -x has' --world 16 --meshes dp
refuses 'no multiple of 16' --world 17
refuses '"0" is not a value for -n' --rounds 0
refuses '"1" is not a value for -N' --nodes 1
refuses '"0" is not a value for -A' --attack 0
refuses '"9" is not a value for -k' --kept 9
refuses 'one after the other' --kept 10 --jobs 10
refuses 'no multiple of 8' --crowd 9
refuses '5 ranks are not on 2 nodes alike' --nodes 2 --ranks 5
refuses 'shardkeep-bench --help shows how' --no-such-option
refuses 'shardkeep-bench --help shows how' a-word

# Told to end, it leaves nothing: ends NAME, of a signal, which whoever began
# this may have had ignored.
ends()
{
	local pid r=0
	env --default-signal="$1" \
		"$bench" --crowd 8 -t 500 -n 30 --dir "$dir" >/dev/null 2>&1 &
	pid=$!
	for _ in $(seq 500); do
		[ -S "$(echo "$dir"/*/agent.sock)" ] && break
		sleep 0.02
	done
	kill -s "$1" "$pid"
	wait "$pid" || r=$?
	if [ "$r" = 0 ] || [ -n "$(ls "$dir")" ]; then
		echo "SIG$1: exit code $r, left: $(ls "$dir")" >&2
		exit 1
	fi
}

ends TERM
ends HUP
