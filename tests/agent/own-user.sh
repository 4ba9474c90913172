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

# A store that is not its user's to write to: said before anything is to be
# written, to root as well, who could write there.
mkdir -m 755 "$dir/store"
setpriv --reuid=4711 --regid=4711 --clear-groups "$dir/shardkeepd" \
	--socket "$dir/run/agent.sock" --memory 64M --store "$dir/store" \
	--no-keeper --ready-fd 5 --log-level error 5>"$dir/ready" &
pid=$!
[ "$(head -c 1 "$dir/ready")" ] || fail "it did not start on root's store"
root() { "$dir/cachectl" --socket "$dir/run/agent.sock" "$@"; }
root status >"$dir/why" && fail "a store without rights is fine"
grep -q "degraded: store-error" "$dir/why" || fail "it says: $(cat "$dir/why")"
root doctor >"$dir/why" && fail "doctor finds the store fine"
says() { tr -s ' \n' ' ' <"$dir/why" | grep -q "$1"; }
says "cannot be written to by the agent's user, 4711" ||
	fail "doctor says: $(cat "$dir/why")"
chown 4711 "$dir/store"
for i in $(seq 100); do
	root status >"$dir/why" || true
	grep -q "store-error" "$dir/why" || break
	sleep 0.1
done
grep -q "store-error" "$dir/why" && fail "it stays: $(cat "$dir/why")"
root doctor >"$dir/why" || true
says "can be written to" || fail "doctor says: $(cat "$dir/why")"
asks 4711 stop >/dev/null || fail "it is not stopped"
wait "$pid" || fail "it ended with $?"
pid=
