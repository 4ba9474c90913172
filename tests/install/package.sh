#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Debian packages of a build directory, installed into an empty root, used
# there, and removed without a trace. Arguments: tools/package, the build
# directory.
set -eu
package=$1 build=$2
"$(dirname -- "$0")/../support/need" dpkg dpkg-deb dpkg-shlibdeps \
	dpkg-architecture || exit
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
fail() {
	echo "FAIL: $*" >&2
	exit 1
}

# ---- whose they are ----
mkdir "$dir/home"
printf '[user]\n\tname = Git User\n\temail = git@example.org\n' \
	>"$dir/gitconfig"
# is WHO [NAME=VALUE...]: with nothing else in the environment.
is() {
	local who=$1 said
	shift
	said=$(env -i PATH="$PATH" HOME="$dir/home" GIT_CONFIG_NOSYSTEM=1 \
		GIT_CONFIG_GLOBAL="$dir/gitconfig" GIT_DIR=/nonexistent "$@" \
		"$package" --maintainer 2>&1) || said="refused: $said"
	case $said in
	"$who"*) ;;
	*) fail "maintainer with $*: $said" ;;
	esac
}
is 'Ann Packager <ann@example.org>' DEBFULLNAME='Ann Packager' \
	DEBEMAIL=ann@example.org
is 'Bob <bob@example.org>' DEBEMAIL='Bob <bob@example.org>'
is 'Ann <bob@example.org>' DEBFULLNAME=Ann DEBEMAIL='Bob <bob@example.org>'
is 'Git User <mail@example.org>' EMAIL=mail@example.org
if command -v git >/dev/null; then
	is 'Git User <git@example.org>'
	is 'Ann <git@example.org>' DEBFULLNAME=Ann
fi
: >"$dir/gitconfig"
is "$(env -i PATH="$PATH" id -un) <" DEBFULLNAME="$(id -un)"
is 'refused: no maintainer' DEBFULLNAME=Ann DEBEMAIL=nobody
is 'refused: no maintainer' DEBFULLNAME='Ann <x>' DEBEMAIL=ann@example.org
is 'refused: no maintainer' DEBFULLNAME=$'Ann\nDepends: x' \
	DEBEMAIL=ann@example.org

DEBFULLNAME="Ann O'Packager" DEBEMAIL=ann@example.org \
	"$package" --from "$build" "$dir/debs" >"$dir/made" ||
	fail "tools/package"
mapfile -t debs <"$dir/made"
[ "${#debs[@]}" -ge 3 ] || fail "packages: ${debs[*]}"
for deb in "${debs[@]}"; do
	who=$(dpkg-deb -f "$deb" Maintainer)
	[ "$who" = "Ann O'Packager <ann@example.org>" ] ||
		fail "$deb is of $who"
done

# ---- Python's is for the Python that it was built for ----
mkdir "$dir/python"
(cd "$dir/python" && touch shardkeep.h _core.cpython-399-any.so &&
	echo 'Version: 1.2.3' >shardkeep.pc)
cat >"$dir/python/meson.build" <<'END'
project('shardkeep')
install_data('shardkeep.h', install_dir: 'include')
install_data('shardkeep.pc', install_dir: 'lib/pkgconfig')
install_data('_core.cpython-399-any.so',
  install_dir: 'lib/python3.99/site-packages/shardkeep')
END
if ! { meson setup "$dir/python/build" "$dir/python" &&
	"$package" --from "$dir/python/build" "$dir/python"; } >"$dir/log" 2>&1
then
	cat "$dir/log"
	fail "the Python package"
fi
needs=$(dpkg-deb -f "$dir"/python/python3-shardkeep_*.deb Depends)
[ "$needs" = 'python3 (>= 3.99), python3 (<< 3.100), shardkeep' ] ||
	fail "the Python package needs $needs"

root=$dir/root
mkdir -p "$root/var/lib/dpkg/info" "$root/var/lib/dpkg/updates"
: >"$root/var/lib/dpkg/status"
# What other packages bring is the outer system's.
in_root() {
	PATH=$PATH:/usr/sbin:/sbin dpkg --root="$root" --force-not-root \
		--force-depends --log=/dev/null "$@" >"$dir/log" 2>&1 || {
		cat "$dir/log"
		fail "dpkg $1"
	}
}
in_root --install "${debs[@]}"
for package in "${debs[@]}"; do
	package=${package##*/}
	dpkg-query --admindir="$root/var/lib/dpkg" -W -f '${Status}\n' \
		"${package%%_*}" | grep -q '^install ok installed$' ||
		fail "$package is not installed"
done

# ---- all is in its place, and works from there ----
lib=$root/usr/lib/$(dpkg-architecture -qDEB_HOST_MULTIARCH)
for file in etc/shardkeep/shardkeepd.conf usr/bin/shardkeepd usr/bin/cachectl \
	usr/include/shardkeep.h usr/lib/systemd/system/shardkeepd.service \
	usr/lib/systemd/user/shardkeepd.service \
	usr/share/bash-completion/completions/cachectl; do
	[ -f "$root/$file" ] || fail "no /$file"
done
[ -e "$lib/libshardkeep.so.0" ] || fail "no library"
for unit in "$root"/usr/lib/systemd/*/shardkeepd.service; do
	grep -q '^ExecStart=/usr/bin/shardkeepd ' "$unit" ||
		fail "$unit starts another agent"
done
if command -v systemd-analyze >/dev/null; then
	for kind in system user; do
		# The program is where the package has it.
		sed "s|=/usr/bin/shardkeepd|=$root/usr/bin/shardkeepd|" \
			"$root/usr/lib/systemd/$kind/shardkeepd.service" \
			>"$dir/shardkeepd.service"
		XDG_RUNTIME_DIR=$dir systemd-analyze verify --man=no \
			"--$kind" "$dir/shardkeepd.service" >"$dir/log" 2>&1 ||
			{ cat "$dir/log"; fail "systemd-analyze, $kind"; }
		! grep -q "$dir/shardkeepd.service\|^shardkeepd.service" \
			"$dir/log" || { cat "$dir/log"; fail "$kind unit"; }
	done
fi
unset SHARDKEEP_STORE SHARDKEEP_MEMORY
"$root/usr/bin/shardkeepd" --check-config \
	--config "$root/etc/shardkeep/shardkeepd.conf" >/dev/null ||
	fail "the configuration makes no sense"
# Its proposals are options, too.
sed 's/^# \([a-z-]* = \)/\1/' "$root/etc/shardkeep/shardkeepd.conf" \
	>"$dir/all.conf"
# -Dmetrics=disabled knows no port.
"$root/usr/bin/shardkeepd" --check-config --metrics 9477 >"$dir/log" 2>&1 ||
	sed -i '/^metrics /d' "$dir/all.conf"
grep -q '^memory' "$dir/all.conf" || fail "it proposes nothing"
"$root/usr/bin/shardkeepd" --check-config --config "$dir/all.conf" >"$dir/log" ||
	fail "what the configuration proposes makes no sense"
flags=$(PKG_CONFIG_LIBDIR=$lib/pkgconfig PKG_CONFIG_SYSROOT_DIR=$root \
	pkg-config --cflags --libs shardkeep)
case $flags in
*"$root/usr/"*|*-lshardkeep*) ;;
*) fail "pkg-config says $flags" ;;
esac

# ---- what an administrator wrote stays until it is purged ----
echo 'memory = 1G' >>"$root/etc/shardkeep/shardkeepd.conf"
names=()
for deb in "${debs[@]}"; do
	deb=${deb##*/}
	names+=("${deb%%_*}")
done
in_root --remove "${names[@]}"
grep -q '^memory = 1G' "$root/etc/shardkeep/shardkeepd.conf" ||
	fail "it is gone with the package"
in_root --purge "${names[@]}"
left=$(find "$root" -path "$root/var" -prune -o -type f -print)
[ -z "$left" ] || fail "left behind: $left"
