#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# An agent in a user namespace sees all users that this has no number for as
# one. It refuses them, says why, and serves those that it can tell.
# Usage: userns.sh AGENT CACHECTL
set -eu
agent=$1 cachectl=$2
LC_ALL=C
export LC_ALL

if [ "$(id -u)" != 0 ] || ! unshare -Ur true 2>/dev/null ||
   ! setpriv --reuid=4711 --clear-groups true 2>/dev/null; then
	echo "needs root, user namespaces and setpriv"
	exit 77
fi

fail() { echo "userns.sh: $*" >&2; exit 1; }

dir=$(mktemp -d /tmp/shardkeep-userns-XXXXXX)
pid=
trap '[ -z "$pid" ] || kill "$pid" 2>/dev/null; rm -rf "$dir"' EXIT
chmod 755 "$dir"
cp "$cachectl" "$dir/cachectl"		# where everybody may read it
mkfifo "$dir/ready"
unshare -Ur "$agent" --socket "$dir/agent.sock" --memory 64M --no-keeper \
	--ready-fd 5 --log-level error 5>"$dir/ready" &
pid=$!
[ "$(head -c 1 "$dir/ready")" ] || fail "the agent did not start"

as_stranger() {
	setpriv --reuid=4711 --clear-groups "$dir/cachectl" \
		--socket "$dir/agent.sock" "$@"
}

"$cachectl" --socket "$dir/agent.sock" list >/dev/null ||
	fail "its own user is refused"
if as_stranger list >/dev/null 2>"$dir/why"; then
	fail "a stranger is served"
fi
grep -q "user namespace and sees this user, and others, as" "$dir/why" ||
	fail "it says: $(cat "$dir/why")"
