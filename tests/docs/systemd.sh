#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The unit of a user in a systemd of its own: what docs/deploy.md says of it.
# Kills and restarts, however many follow each other, lose nothing; what cannot
# start because of its configuration is there again once that is mended.
# Arguments: the unit, shardkeepd, cachectl, shardkeep-trainer.
set -u
unit=$1 agent=$2 cachectl=$3 trainer=$4
systemd=/lib/systemd/systemd
"$(dirname -- "$0")/../support/need" systemctl unshare || exit
none() {
	echo "$*: not tested"
	exit 77
}
[ "$(id -u)" = 0 ] && [ -x "$systemd" ] || none "needs root, and systemd"

# ---- a manager, which sees a /run and control groups of its own ----

if [ -z "${SK_SYSTEMD_INSIDE:-}" ]; then
	SK_SYSTEMD_INSIDE=1 exec unshare -m "$0" "$@"
fi
mount -t tmpfs none /run 2>/dev/null && mkdir -p /run/systemd/system ||
	none "no mounts here"
mountpoint -q /sys/fs/cgroup && umount -R /sys/fs/cgroup
mount -t cgroup2 none /sys/fs/cgroup 2>/dev/null || none "no cgroup v2 here"
group=/sys/fs/cgroup/shardkeep-test-$$
mkdir "$group" 2>/dev/null && echo $$ >"$group/cgroup.procs" 2>/dev/null ||
	none "no control group can be made here"

dir=$(mktemp -d /tmp/shardkeep-systemd-XXXXXX)
export HOME=$dir/home XDG_RUNTIME_DIR=$dir/run NO_COLOR=1
unset SHARDKEEP_SOCKET SHARDKEEP_STORE SHARDKEEP_MEMORY XDG_CONFIG_HOME
mkdir -p "$HOME/.config/systemd/user" "$XDG_RUNTIME_DIR/systemd/user"
"$systemd" --user --log-target=console >"$dir/log" 2>&1 &
manager=$!
finish() {
	systemctl --user exit 2>/dev/null
	wait "$manager"
	# Its groups are empty; this one has us, and is left to its parent.
	echo $$ >/sys/fs/cgroup/cgroup.procs 2>/dev/null
	find "$group" -depth -type d -exec rmdir {} + 2>/dev/null
	rm -rf "$dir"
}
trap finish EXIT
fail() {
	echo "FAIL: $*" >&2
	systemctl --user status shardkeepd >&2
	tail -n 20 "$dir/log" >&2
	exit 1
}
until systemctl --user list-units >/dev/null 2>&1; do
	kill -0 "$manager" 2>/dev/null || none "no systemd starts here"
	sleep 0.1
done

# ---- the unit, with the programs that were built ----

settings() { echo "Environment=SHARDKEEP_MEMORY=$1 SHARDKEEP_STORE=$dir/store"; }
install_unit() {
	ln -sf "$(realpath "$agent")" "$dir/shardkeepd"
	sed -e "s,^ExecStart=.*/shardkeepd\"\? ,ExecStart=$dir/shardkeepd ," \
		-e "s,^Type=.*,&\n$(settings "$1")," "$unit" \
		>"$HOME/.config/systemd/user/shardkeepd.service"
	systemctl --user daemon-reload || fail "daemon-reload"
}
# What there was is there: steps, and what was in memory alone is in memory.
# Who connects while there is no agent waits for the next.
check() {
	"$cachectl" --json list u >"$dir/list" || fail "$1: list"
	grep -q '"step": 3' "$dir/list" || fail "$1: step 3 is gone"
	"$cachectl" verify u/3 | grep -q 'memory.*good' ||
		fail "$1: memory is gone"
}

install_unit 256M
systemctl --user enable --now shardkeepd 2>/dev/null || fail "enable"
"$trainer" --mesh 2 --steps 3 --flush-every 0 --job u --log "$dir/trained" \
	>/dev/null || fail "the trainer failed"
check "trained"
systemctl --user reload shardkeepd || fail "reload"
check "reloaded"
for i in {1..12}; do
	systemctl --user kill -s KILL shardkeepd || fail "kill $i"
	check "killed $i"
done
for i in {1..20}; do
	systemctl --user restart shardkeepd || fail "restart $i"
done
check "restarted"

# An operator who sets sizes wrongly, and tries, and sees.
install_unit 256Q
systemctl --user restart shardkeepd 2>/dev/null && fail "256Q bytes"
for _ in {1..8}; do
	systemctl --user restart shardkeepd 2>/dev/null
done
install_unit 256M
systemctl --user restart shardkeepd || fail "it was mended"
check "mended"

"$cachectl" stop --wait >/dev/null || fail "stop --wait"
echo "the unit loses nothing"
