#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# tools/abi-check notices what breaks programs, and nothing else: on a library
# of three functions, in a repository of its own. Argument: abi-check.
set -eu
check=$1
"$(dirname -- "$0")/../support/need" abidiff git meson || exit
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
fail() {
	echo "FAIL: $*" >&2
	cat "$dir/out" >&2
	exit 1
}
run() {
	tools/abi-check >"$dir/out" 2>&1
}

mkdir -p "$dir/repo/"{tools,libclient,cache}
cd "$dir/repo"
git init -q
git config user.name test
git config user.email test@example.invalid
cp "$check" "${check%/*}/together" tools
echo "option('tests', type: 'boolean', value: true)" >meson_options.txt
cat >meson.build <<'EOF'
project('shardkeep', 'c', default_options: 'buildtype=debugoptimized')
subdir('libclient')
EOF
cat >libclient/meson.build <<'EOF'
shared_library('shardkeep', 'lib.c', soversion: '0',
  include_directories: include_directories('../cache'))
EOF
touch cache/shardkeep-types.h
cat >libclient/shardkeep.h <<'EOF'
#include <stdint.h>
struct sk;
struct sk_options {
	uint64_t flags;
	uint64_t reserved[2];
};
int sk_open(const struct sk_options *opts, struct sk **ret_sk);
int sk_flush(struct sk *sk, int64_t step);
void sk_close(struct sk *sk);
EOF
cat >libclient/lib.c <<'EOF'
#include <stdlib.h>
#include "shardkeep.h"
struct sk {
	int64_t step;
};
int sk_open(const struct sk_options *opts, struct sk **ret_sk)
{
	*ret_sk = calloc(1, sizeof(**ret_sk));
	return *ret_sk && !opts->flags ? 0 : -1;
}
int sk_flush(struct sk *sk, int64_t step)
{
	sk->step = step;
	return 0;
}
void sk_close(struct sk *sk)
{
	free(sk);
}
EOF
git add .
git commit -qm first
run || fail "it fails without a tag"
grep -q 'no tag' "$dir/out" || fail "it does not say that there is no tag"
git tag v0.1.0
run || fail "the same is not compatible"
[ "$(git worktree list | wc -l)" -eq 1 ] || fail "its worktree is left"

# One break through all of it, and then each kind without meson.
sed -i 's/sk_flush/sk_flash/' libclient/lib.c libclient/shardkeep.h
if run; then fail "the tag is not compared with"; fi
grep -q 'may break' "$dir/out" || fail "it fails for another reason"
git checkout -q .

# library DIRECTORY SONAME
library() {
	mkdir -p "$1/include"
	cp libclient/shardkeep.h "$1/include"
	gcc -g -shared -fPIC -Wl,-soname="$2" -Icache libclient/lib.c \
		-o "$1/libshardkeep.so"
}
library "$dir/old" libshardkeep.so.0

# try SONAME EXPRESSION FILE...: sets what became of it.
try() {
	local soname=$1 expression=$2
	shift 2
	sed -i "$expression" "$@"
	rm -rf "$dir/new"
	library "$dir/new" "$soname"
	status=0
	tools/abi-check "$dir/old" "$dir/new" >"$dir/out" 2>&1 || status=$?
	git checkout -q .
}
breaks() {
	local what=$1
	shift
	try libshardkeep.so.0 "$@"
	if [ "$status" -eq 0 ] || ! grep -q 'may break' "$dir/out"; then
		fail "not noticed: $what"
	fi
}
keeps() {
	local what=$1
	shift
	try "$@"
	[ "$status" -eq 0 ] || fail "taken for a break: $what"
}

lib=libclient/lib.c header=libclient/shardkeep.h
breaks "a function that is gone" 's/sk_flush/sk_flash/' $lib $header
breaks "another parameter" 's/int64_t step)/int32_t step)/' $lib $header
breaks "a struct that grew" 's/reserved\[2\]/reserved[3]/' $header
breaks "a field that moved" \
	's/uint64_t flags;/uint64_t before;\n\tuint64_t flags;/' $header
keeps "nothing changed" libshardkeep.so.0 's/x/x/' $lib
keeps "a function more" libshardkeep.so.0 \
	'1i int sk_more(void);\nint sk_more(void) { return 0; }' $lib
keeps "what is private" libshardkeep.so.0 \
	's/^\tint64_t step;/\tint64_t last, step;/' $lib
keeps "another soname" libshardkeep.so.1 's/sk_flush/sk_flash/' $lib $header
