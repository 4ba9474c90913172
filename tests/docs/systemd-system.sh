#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The node's unit under a systemd that is process 1, in namespaces of its own:
# what docs/deploy.md says of it. Trainers find it without a word; kills,
# restarts lose nothing, and a stop flushes.
# Arguments: the unit, shardkeepd, cachectl, shardkeep-trainer.
set -u
here=$(dirname -- "$(realpath "$0")")
self=$here/$(basename "$0")
systemd=/lib/systemd/systemd
"$here/../support/need" systemctl unshare || exit
none() {
	echo "$*: not tested"
	exit 77
}

# ---- outside: a control group, and a process 1 in it ----

outside() {
	[ "$(id -u)" = 0 ] && [ -x "$systemd" ] ||
		none "needs root, and systemd"
	at=$(awk '$3 == "cgroup2" { print $2; exit }' /proc/self/mounts)
	[ -n "$at" ] || none "no cgroup v2 here"
	group=$at/shardkeep-test-$$
	mkdir "$group" 2>/dev/null || none "no control group can be made here"
	dir=$(mktemp -d /tmp/shardkeep-pid1-XXXXXX)
	trap 'find "$group" -depth -type d -exec rmdir {} + 2>/dev/null
		rm -rf "$dir"' EXIT
	export SK_PID1=$dir
	(
		echo "$BASHPID" >"$group/cgroup.procs" || exit 77
		exec unshare -m -u -i -C -p -f --kill-child "$self" "$@"
	) >"$dir/log" 2>&1
	if [ -f "$dir/result" ]; then
		cat "$dir/said"
		return "$(cat "$dir/result")"
	fi
	tail -n 5 "$dir/log"
	none "no systemd starts here as process 1"
}

# ---- process 1: it sees a /run and a /var/lib of its own, and the units of the
# test alone, and writes nowhere else: those of the machine would set it up once
# more, and empty its /tmp ----

put() { printf '%s\n' "${@:2}" >"$1"; }

become_systemd() {
	mount --make-rprivate / && mount --bind "$SK_PID1" "$SK_PID1" &&
		mount -t proc proc /proc &&
		mount -t tmpfs none /run && mount -t tmpfs none /var/lib &&
		mount -o remount,bind,ro / || exit 77
	[ ! -w /tmp ] && [ ! -w /etc ] && [ ! -w /var ] || exit 77
	mountpoint -q /sys/fs/cgroup && umount -R /sys/fs/cgroup
	mount -t cgroup2 none /sys/fs/cgroup || exit 77
	units=$SK_PID1/units
	mkdir -p "$units" /run/systemd/system
	for target in sysinit basic shutdown multi-user exit; do
		put "$units/$target.target" '[Unit]' DefaultDependencies=no
	done
	put "$units/exit.target" '[Unit]' DefaultDependencies=no \
		Requires=systemd-exit.service After=systemd-exit.service
	put "$units/systemd-exit.service" '[Unit]' DefaultDependencies=no \
		Requires=shutdown.target After=shutdown.target \
		SuccessAction=exit-force '[Service]' Type=oneshot \
		ExecStart=/bin/true
	settings="SHARDKEEP_MEMORY=256M SHARDKEEP_STORE=$SK_PID1/store"
	ln -s "$(realpath "$2")" "$units/shardkeepd"
	sed -e "s,^ExecStart=.*/shardkeepd\"\? ,ExecStart=$units/shardkeepd ," \
		-e "s,^Type=.*,&\nEnvironment=$settings," \
		"$1" >"$units/shardkeepd.service"
	SK_PID1_INSIDE=1 "$self" "$@" >"$SK_PID1/said" 2>&1 &
	SYSTEMD_UNIT_PATH=$units container=shardkeep-test exec "$systemd" \
		--system --unit=basic.target --log-target=console \
		--show-status=no
}

# ---- beside it: an operator ----

fail() {
	echo "FAIL: $*"
	systemctl --no-pager status shardkeepd
	tail -n 20 "$SK_PID1/log"
	exit 1
}

# What there was is there, in memory. Who connects while there is no agent
# waits for the next.
check() {
	"$cachectl" --json list u >"$SK_PID1/list" || fail "$1: list"
	grep -q '"step": 3' "$SK_PID1/list" || fail "$1: step 3 is gone"
	"$cachectl" verify u/3 | grep -q 'memory.*good' ||
		fail "$1: memory is gone"
}

# What an upgrade does, and what kills; then what lets go.
operate() {
	cachectl=$3 trainer=$4
	until systemctl list-units >/dev/null 2>&1; do
		sleep 0.1
	done
	systemctl start shardkeepd || fail "start"
	"$trainer" --mesh 2 --steps 3 --flush-every 0 --job u \
		--log "$SK_PID1/trained" >/dev/null || fail "the trainer failed"
	check "trained"
	[ "$(stat -c %U /run/shardkeep)" = root ] || fail "whose is /run/shardkeep"
	systemctl reload shardkeepd || fail "reload"
	check "reloaded"
	for i in {1..6}; do
		systemctl kill -s KILL shardkeepd || fail "kill $i"
		check "killed $i"
		systemctl restart shardkeepd || fail "restart $i"
		check "restarted $i"
	done
	systemctl stop shardkeepd || fail "stop"
	ls "$SK_PID1"/store/u/step-*/rank-*.safetensors >"$SK_PID1/list" 2>&1 ||
		fail "stop did not flush"
	systemctl start shardkeepd || fail "started after a stop"
	"$cachectl" verify u/3 | grep -q 'disk.*good' || fail "the disk"
	echo "the node's unit loses nothing"
}

if [ -n "${SK_PID1_INSIDE:-}" ]; then
	export NO_COLOR=1
	unset SHARDKEEP_SOCKET SHARDKEEP_STORE SHARDKEEP_MEMORY
	(operate "$@")
	echo $? >"$SK_PID1/result.part"
	mv "$SK_PID1/result.part" "$SK_PID1/result"
	systemctl exit 0
elif [ -n "${SK_PID1:-}" ]; then
	become_systemd "$@"
else
	outside "$@"
fi
