#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What `meson install` puts into an empty prefix serves a stranger: a C and a
# C++ program build by pkg-config alone and run against an agent that they
# start from there. Arguments: meson, the build directory, the version, libdir,
# the sections of man pages that were made ("" where scdoc is missing), the
# compilers for C and C++ ("" where there is none).
set -eu
here=$(cd -- "$(dirname -- "$0")" && pwd)
meson=$1 build=$2 version=$3 libdir=$4 sections=$5 cc=$6 cxx=$7

dir=$(mktemp -d)
installed=$dir/moved/prefix
finish() {
	SHARDKEEP_SOCKET=$dir/run/shardkeep/agent.sock \
		"$installed/bin/cachectl" stop >/dev/null 2>&1 || true
	rm -rf "$dir"
}
trap finish EXIT
fail() {
	echo "FAIL: $*" >&2
	exit 1
}

# Nothing of the build tree, of the user's own agent, or of another install.
[ ! -S /run/shardkeep/agent.sock ] || {
	echo "this node's agent would be found instead: not tested"
	exit 77
}
unset SHARDKEEP_AGENT SHARDKEEP_SOCKET SHARDKEEP_STORE LD_LIBRARY_PATH
export XDG_RUNTIME_DIR=$dir/run SHARDKEEP_MEMORY=64M
mkdir "$dir/run" "$dir/moved"

DESTDIR=$dir/root $meson install --no-rebuild -C "$build" >"$dir/log" 2>&1 || {
	cat "$dir/log"
	fail "meson install"
}
! find "$dir/root" -name '*vcuda*' | grep . ||
	fail "the simulated driver is a test's"
manifest=$(cd "$dir/root" && find . -name shardkeep.h)
prefix=${manifest#.}
prefix=${prefix%/include/shardkeep.h}
[ -n "$prefix" ] || fail "no shardkeep.h was installed"
# Somewhere else than where it was built for: a package may be unpacked there.
mv "$dir/root$prefix" "$installed"

# ---- all is in its place ----
expected=(
	bin/cachectl bin/shardkeep-bench bin/shardkeepd
	include/shardkeep.h include/shardkeep-types.h
	include/shardkeep-version.h
	"$libdir/libshardkeep.so" "$libdir/libshardkeep.so.0"
	"$libdir/pkgconfig/shardkeep.pc"
	lib/systemd/system/shardkeepd.service
	lib/systemd/user/shardkeepd.service
	share/bash-completion/completions/cachectl
)
for section in $sections; do
	expected+=("share/man/man${section#*.}/$section")
done
for file in "${expected[@]}"; do
	[ -e "$installed/$file" ] || fail "$file was not installed"
done
grep -q "^ExecStart=$prefix/bin/shardkeepd " \
	"$installed/lib/systemd/system/shardkeepd.service" ||
	fail "the unit starts another agent"
if [ -n "$(find "$dir/root" -type f)" ]; then
	fail "files outside the prefix: $(find "$dir/root" -type f)"
fi

# ---- programs ----
export PKG_CONFIG_LIBDIR=$installed/$libdir/pkgconfig PKG_CONFIG_PATH=
pkg=(pkg-config "--define-variable=prefix=$installed")
[ "$("${pkg[@]}" --modversion shardkeep)" = "$version" ] ||
	fail "shardkeep.pc is of another version"
read -ra flags < <("${pkg[@]}" --cflags --libs shardkeep)
warn=(-Wall -Wextra -pedantic -Werror)

# use LANGUAGE-OF-GCC STANDARD COMPILER...
use() {
	local language=$1 std=$2
	shift 2
	"$@" -std="$std" "${warn[@]}" -x "$language" "$here/use.c" -x none \
		-o "$dir/use" "${flags[@]}" || fail "it does not build as $std"
	[ "$(LD_LIBRARY_PATH=$installed/$libdir "$dir/use")" = "$version 7" ] ||
		fail "the program in $std failed"
}
read -ra cc <<<"$cc"
use c c11 "${cc[@]}"
if [ -n "$cxx" ]; then
	read -ra cxx <<<"$cxx"
	use c++ c++11 "${cxx[@]}"
fi
# As README says it of a folder of one's own, without a word for the loader.
"${cc[@]}" "$here/use.c" -o "$dir/use" "${flags[@]}" \
	"-Wl,-rpath,$("${pkg[@]}" --variable=libdir shardkeep)" ||
	fail "it does not build with an rpath"
[ "$("$dir/use")" = "$version 7" ] || fail "the program with an rpath failed"
"$installed/bin/cachectl" list | grep -q '^installed ' ||
	fail "cachectl does not see the snapshots"
