#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# An agent of a user, not root's: that user may do with it what root may, others
# may not. Usage: own-user.sh AGENT CACHECTL
set -eu
agent=$1 cachectl=$2
LC_ALL=C
export LC_ALL

if [ "$(id -u)" != 0 ] ||
   ! setpriv --reuid=4711 --clear-groups true 2>/dev/null; then
	echo "needs root and setpriv"
	exit 77
fi

fail() { echo "own-user.sh: $*" >&2; exit 1; }

dir=$(mktemp -d /tmp/shardkeep-own-XXXXXX)
pid=
trap '[ -z "$pid" ] || kill "$pid" 2>/dev/null; rm -rf "$dir"' EXIT
chmod 755 "$dir"
export HOME="$dir"
cp "$agent" "$dir/shardkeepd"		# where everybody may read them
cp "$cachectl" "$dir/cachectl"
mkdir -m 755 "$dir/run"
chown 4711 "$dir/run"
mkfifo "$dir/ready"
# as UID COMMAND...
as() {
	uid=$1
	shift
	setpriv --reuid="$uid" --regid="$uid" --clear-groups "$@"
}
asks() { as "$1" "$dir/cachectl" --socket "$dir/run/agent.sock" "$2"; }

as 4711 "$dir/shardkeepd" --socket "$dir/run/agent.sock" --memory 64M \
	--no-keeper --ready-fd 5 --log-level error 5>"$dir/ready" &
pid=$!
[ "$(head -c 1 "$dir/ready")" ] || fail "the agent did not start"
if asks 4712 stop >/dev/null 2>"$dir/why"; then
	fail "another user stops it"
fi
grep -q "only uid 0 or 4711 may" "$dir/why" ||
	fail "it says: $(cat "$dir/why")"
asks 4711 stop >/dev/null || fail "its own user may not stop it"
wait "$pid" || fail "it ended with $?"
pid=
