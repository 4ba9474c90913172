#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What cannot be built is refused when it is set up, not in the midst of it.
# Arguments: meson, the source.
set -eu
meson=$1 source=$2

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
fail() {
	echo "FAIL: $*" >&2
	exit 1
}

# ---- a folder whose name says something to systemd ----
there="$dir/My own 100% ü"
says="\"$dir/My own 100%% ü/bin/shardkeepd\" --socket"
"$meson" setup "$dir/build" "$source" -Dtests=false --prefix "$there" \
	>"$dir/said" 2>&1 || { cat "$dir/said"; fail "it is not set up there"; }
for unit in shardkeepd shardkeepd-user; do
	grep -qF "ExecStart=$says" "$dir/build/agent/$unit.service" ||
		fail "$(grep ExecStart= "$dir/build/agent/$unit.service")"
done
if command -v systemd-analyze >/dev/null; then
	mkdir -p "$there/bin"
	ln -s /bin/true "$there/bin/shardkeepd"
	cp "$dir/build/agent/shardkeepd.service" "$dir"
	XDG_RUNTIME_DIR=$dir systemd-analyze verify --man=no \
		"$dir/shardkeepd.service" >"$dir/said" 2>&1 ||
		{ cat "$dir/said"; fail "systemd does not take its unit"; }
fi
rm -rf "$dir/build"

# ---- what is refused ----
# refused COMPILER WHAT-IT-SAYS OPTION...
refused() {
	local cc=$1 says=$2
	shift 2
	! CC=$cc "$meson" setup "$dir/build" "$source" -Dtests=false "$@" \
		>"$dir/said" 2>&1 || fail "$cc builds with $*"
	grep -q -- "ERROR: .*$says" "$dir/said" || {
		cat "$dir/said"
		fail "$cc with $* does not say \"$says\""
	}
	rm -rf "$dir/build"
}
refused gcc "-Dfuzzing=true needs clang" -Dfuzzing=true
if command -v clang >/dev/null; then
	refused clang "-Dfuzzing=true needs -Db_lundef=false" -Dfuzzing=true
fi
