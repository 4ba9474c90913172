#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Whether the toolkit's assembler, which is what drivers compile PTX with, takes
# ours for each generation of GPUs that it knows, without a byte on the stack.
# 77 where there is none. Argument: the PTX.
set -eu
ptx=$1
assemblers=$(type -ap ptxas || true)
[ -x /usr/local/cuda/bin/ptxas ] && assemblers+=" /usr/local/cuda/bin/ptxas"
if [ -z "${assemblers// /}" ]; then
	echo "there is no ptxas"
	exit 77
fi
out=$(mktemp)
trap 'rm -f "$out"' EXIT
for ptxas in $assemblers; do
	for gpu in sm_75 sm_80 sm_86 sm_89 sm_90 sm_100 sm_120; do
		"$ptxas" --help | grep -q "'$gpu'" || continue
		said=$("$ptxas" -v --gpu-name "$gpu" "$ptx" -o "$out" 2>&1) || {
			echo "$ptxas does not take it for $gpu: $said" >&2
			exit 1
		}
		if grep -E "stack frame" <<<"$said" |
		   grep -vE " 0 bytes stack frame, 0 bytes spill"; then
			echo "$ptxas has kernels spill for $gpu" >&2
			exit 1
		fi
		tried=1
	done
done
[ -n "${tried:-}" ] || { echo "no ptxas knows a GPU of ours" >&2; exit 77; }
