#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What docs/deploy.md says of containers, without a runtime of them: processes
# in namespaces of their own, with the seccomp profiles, the locked memory and
# the small /dev/shm that such a runtime gives. Trainers with the socket's
# directory mounted read-only meet an agent outside, and the next one; agents
# inside write by threads, and say so.
# Arguments: refuse, shardkeepd, cachectl, shardkeep-trainer.
set -u
refuse=$(realpath "$1") agent=$(realpath "$2") cachectl=$(realpath "$3")
trainer=$(realpath "$4")
"$(dirname -- "$0")/../support/need" unshare || exit
none() {
	echo "$*: not tested"
	exit 77
}
[ "$(id -u)" = 0 ] || none "needs root"
unshare -m -u -i -p -f true 2>/dev/null || none "no namespaces here"
"$refuse" EPERM true || none "no seccomp here"

dir=$(mktemp -d /tmp/shardkeep-containers-XXXXXX)
mkdir "$dir/run"
export NO_COLOR=1
export SHARDKEEP_SOCKET=$dir/run/agent.sock
unset SHARDKEEP_STORE SHARDKEEP_MEMORY
pid=
finish() {
	[ -z "$pid" ] || kill "$pid" 2>/dev/null
	wait
	rm -rf "$dir"
}
trap finish EXIT
fail() {
	echo "FAIL: $*" >&2
	tail -n 20 "$dir/log" >&2
	exit 1
}

# serve WITH...: an agent, by that launcher.
serve() {
	mkfifo "$dir/ready"
	"$@" "$agent" --memory 256M --store "$dir/store" --ready-fd 5 \
		--no-keeper 5>"$dir/ready" >>"$dir/log" 2>&1 &
	pid=$!
	[ "$(head -c 1 "$dir/ready")" ] || fail "no agent starts by $*"
	rm "$dir/ready"
}
leave() {
	"$cachectl" stop --wait >/dev/null || fail "stop"
	wait "$pid"
	pid=
}

# As docker run -v DIR:DIR:ro --shm-size 64k, with 8 MiB of locked memory.
# train JOB MESH MORE...
train() {
	local job=$1 mesh=$2
	shift 2
	# shellcheck disable=SC2016,SC2086
	unshare -m -u -i -p -f --mount-proc "$BASH" -c '
		mount --bind "$1/run" "$1/run" &&
			mount -o remount,bind,ro "$1/run" &&
			mount -t tmpfs -o size=64k none /dev/shm || exit 77
		touch "$1/run/file" 2>/dev/null && exit 1
		ulimit -l 8192
		shift
		exec "$@"' - "$dir" "$refuse" $old "$error" "$trainer" --job "$job" \
		--mesh "$mesh" "$@" --log "$dir/trained" >>"$dir/log" 2>&1
}

# through JOB: trainers and then an agent in containers.
through() {
	serve env
	train "$1" 2 --steps 3 || fail "a trainer in a container: $1"
	leave
	serve env			# the directory has another socket now
	train "$1" 3 --steps 6 || fail "the next agent: $1"
	"$cachectl" verify "$1/6" | grep -q good || fail "it is not there"
	leave
	# shellcheck disable=SC2086
	serve "$refuse" $old "$error"
	"$trainer" --job "in-$1" --mesh 2 --steps 3 --log "$dir/trained" \
		>>"$dir/log" 2>&1 || fail "an agent in a container: $1"
	"$cachectl" status >"$dir/status"
	grep -q no-io-uring "$dir/status" ||
		fail "it does not say that threads write"
	leave
	ls "$dir/store/in-$1"/step-*/rank-*.safetensors >/dev/null ||
		fail "nothing was written: $1"
}

for error in EPERM ENOSYS; do
	for old in '' --old; do
		through "$error$old"
	done
done
(ulimit -l 64 && serve env && "$trainer" --job locked --mesh 2 --steps 3 \
	--log "$dir/trained" >>"$dir/log" 2>&1 && leave) ||
	fail "with 64 KiB of locked memory"
echo "containers are served, and serve"
