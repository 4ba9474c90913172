#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# shardkeepd --config and --check-config. Argument: shardkeepd.
set -u
agent=$(realpath "$1")
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
unset SHARDKEEP_SOCKET SHARDKEEP_STORE SHARDKEEP_MEMORY SHARDKEEP_DEVICE_MEMORY
failed=0
fail() {
	echo "FAIL: $*" >&2
	cat "$dir/out" >&2
	failed=1
}

# expect CODE ARGUMENT...
expect() {
	local want=$1
	shift
	"$agent" --check-config "$@" >"$dir/out" 2>&1
	[ $? -eq "$want" ] || fail "$*: not $want"
}
says() { grep -qaE -- "$1" "$dir/out" || fail "no \"$1\""; }

cat >"$dir/conf" <<-EOF
	# of this node
	memory = 64M
	  store=/srv/a b	# a disk of this node

	keep-last = 7   #as ever
	no-direct = yes
	seal-writes = no
EOF
expect 0 --config "$dir/conf"
! grep "cannot" "$dir/out" || fail "something is said of a file that is fine"
says "^memory = 64M	# $dir/conf:2$"
says "^store = /srv/a b	# $dir/conf:3$"
says "^no-direct = yes	# $dir/conf:6$"
says "^seal-writes = no	# $dir/conf:7$"
says '^# scrub-rate: default$'

# As some editors begin it, and end lines.
printf '\xef\xbb\xbfmemory = 64M\r\nkeep-last = 7\r\n' >"$dir/marked"
expect 0 --config "$dir/marked"
says "^memory = 64M	# $dir/marked:1$"
says "^keep-last = 7	# $dir/marked:2$"
# What no socket can have is found here, and not when the agent starts.
long=/run/$(printf '%0103d' 0)
printf 'socket = %s\n' "${long%0}" >"$dir/socket"
expect 0 --config "$dir/socket"
printf 'socket = %s\n' "$long" >"$dir/socket"
expect 2 --config "$dir/socket"
says 'no more than 107 bytes'
says "$dir/socket:1: \"socket\" is not taken"
SHARDKEEP_SOCKET=$long expect 2
says '^shardkeepd: SHARDKEEP_SOCKET .* no more than 107 bytes'
expect 2 --takeover --socket "$long"
# The command line goes before the environment, and that before the file.
SHARDKEEP_MEMORY=1G expect 0 --config="$dir/conf"
says '^memory = 1G	# SHARDKEEP_MEMORY$'
SHARDKEEP_MEMORY=1G expect 0 --config "$dir/conf" --memory 2G
says '^memory = 2G	# command line$'
# One of them alone counts, in a file too; the command line goes before it.
printf 'keeper = yes\nno-keeper = yes\n' >"$dir/keepers"
expect 2 --config "$dir/keepers"
says 'contradict each other'
printf 'keeper = yes\nno-keeper = no\n' >"$dir/keepers"
expect 0 --config "$dir/keepers" --no-keeper
# What is overruled does not hold, and is not said to: what is printed is a file
# that is taken.
says '^no-keeper = yes	# command line$'
grep -q '^keeper = ' "$dir/out" && fail 'both hold'
printf 'keep-last = 7\nkeep-every = 10\n' >"$dir/keeps"
expect 0 --config "$dir/keeps" --keep-last 2 --keep-age 60
says '^keep-last = 2	# command line$'
says '^keep-age = 60	# command line$'
grep -q '^keep-every = ' "$dir/out" && fail 'what is no longer said'
# Of two lines of one name the last one holds, flags too.
printf 'keeper = yes\nkeeper = no\nno-keeper = yes\n' >"$dir/keepers"
expect 0 --config "$dir/keepers"
says '^no-keeper = yes	'
# What the collector would never read is said, and written all the same.
expect 0 --metrics-file "$dir/figures.txt"
says "reads \*\.prom alone"
expect 0 --metrics-file "$dir/figures.prom"
grep -q alone "$dir/out" && fail 'a name that is read'
# Who exports it for clients means the agent, too.
printf 'socket = /of/file\n' >"$dir/socket"
SHARDKEEP_SOCKET=/of/all expect 0 --config "$dir/socket"
says '^socket = /of/all	# SHARDKEEP_SOCKET$'
SHARDKEEP_SOCKET= expect 0 --config "$dir/socket"
says "^socket = /of/file	# $dir/socket:1$"
SHARDKEEP_SOCKET=/of/all expect 0 --config "$dir/socket" --socket /said
says '^socket = /said	# command line$'
# A name that is shortened is the same name, wherever it stands.
expect 0 --conf "$dir/conf"
says "^memory = 64M	# $dir/conf:2$"
expect 0 --memory 2G --con="$dir/conf" --no-direct
says "^store = /srv/a b	# $dir/conf:3$"
expect 2 --conf "$dir/none"
says 'there is no such file'
# None that is named is not none.
expect 2 --config=
says 'it is a path'
for wrong in --config --nonsense --keep; do
	expect 2 "$wrong"
	says "^Try 'shardkeepd --help'"
	[ "$(wc -l <"$dir/out")" -eq 2 ] || fail "$wrong is said twice"
done
# What is printed is a file that says the same.
"$agent" --check-config --config "$dir/conf" >"$dir/again"
expect 0 --config "$dir/again"
says "^store = /srv/a b	# $dir/again:"
says "^keep-last = 7	# $dir/again:"
# A comment has a space before it; a name may well have none.
printf 'store = /srv/a#b\n' >"$dir/hash"
expect 0 --config "$dir/hash"
says "^store = /srv/a#b	# $dir/hash:1$"
# However long it is, and whatever stands in it.
long=/srv/$(printf '%0300d' 0)
printf 'store = %s\n' "$long" >"$dir/long"
expect 0 --config "$dir/long"
says "^store = $long	# $dir/long:1$"
expect 0 --store "$(printf '/srv/a\nmemory = 1G')"
says '^store = "/srv/a\\x0amemory = 1G"	# command line$'
# Whatever was said where no file is, a file says as well: that is printed.
odd=('/srv/a #b' '#a' ' a' 'a ' ' ' '"a"' "'a'" 'a"b\' '\x41' 'a\"' 'a=b' \
	$'a\tb' $'a\t' $'\na\r' $'a\x1b[2Jb' $'\xff #\x7f' 'a  # b # c' '"' '\' \
	$'ä\u2028 #')
for store in "${odd[@]}"; do
	SHARDKEEP_STORE=$store expect 0 --metrics-file "$store.prom"
	grep -aE '^(store|metrics-file) = ' "$dir/out" >"$dir/odd"
	LC_ALL=C grep -q "[^[:print:][:space:]$(printf '\x80-\xff')]" \
		"$dir/odd" && fail "a terminal would obey $(printf %q "$store")"
	expect 0 --config "$dir/odd"
	cut -f1 "$dir/out" | grep -aE '^(store|metrics-file) = ' >"$dir/again"
	cut -f1 "$dir/odd" | diff - "$dir/again" ||
		fail "$(printf %q "$store") is read as another"
done
cp "$dir/conf" "$dir/"$'conf\nmemory = 1G'
expect 0 --config "$dir/"$'conf\nmemory = 1G'
says '^memory = 64M	# .*/conf[?]memory = 1G:2$'
# A quotation mark begins one that ends.
for line in 'store = "/srv/a b"' 'store ="/srv/a b"# no' \
	'store = "/srv/a b"  # yes' 'store = "/srv/\x61 \x62"'; do
	printf '%s\n' "$line" >"$dir/quoted"
	case $line in *no) expect 2 --config "$dir/quoted"; continue ;; esac
	expect 0 --config "$dir/quoted"
	says "^store = /srv/a b	# $dir/quoted:1$"
done
# What cannot be printed is no success.
for option in --check-config --help --version; do
	"$agent" $option >/dev/full 2>"$dir/out"
	[ $? -eq 1 ] || fail "$option printed nothing, and was fine"
	says '^shardkeepd: cannot print: No space left'
done
# Wrong lines, by their number.
for line in 'memory = lots' 'colour = red' 'no-direct = maybe' 'memory' \
	'ready-fd = 3' 'takeover = yes' '= 3' 'help = yes' 'keep-last = -1' \
	'log-level = loud' 'admin-uid = 4294967295' 'admin-uid = -1' \
	'store = "/srv/ckpt' 'store = "/srv" b' 'store = "\x00"' \
	'store = "\q"' 'store = "\x4' 'store = "a\' 'store = ""' \
	"store = '/srv/ckpt'" 'flush-rate = 500' \
	'scrub-rate = 16' 'user-memory = 7' 'user-layouts = 64' \
	'device-memory = 2' \
	'store = # none' 'metrics = 0.0.0.0:1'; do
	printf '# x\n%s\n' "$line" >"$dir/bad"
	expect 2 --config "$dir/bad"
	[ "$line" = 'metrics = 0.0.0.0:1' ] || says "$dir/bad:2"
done
expect 0 --admin-uid 4294967294
# One that has no effect beside another is told, and holds nobody up.
expect 0 --seal-writes --device-memory 2G
says 'device-memory has no effect with --seal-writes'
expect 0 --device-memory 2G
! grep -q 'no effect' "$dir/out" || fail "it has an effect"
expect 2 --stop-timeout 99999999999
says 'from 0 to 1073741824'
# A rate in digits is one, but for so few that a unit is what it lacks.
for rate in --flush-rate --scrub-rate; do
	for digits in 500 4095 16; do
		expect 2 "$rate" "$digits"
		says "^shardkeepd: $rate \"$digits\" makes no sense; "
		says 'is a K, M or G missing'
	done
	for digits in 4096 500000 1048576 2K; do
		expect 0 "$rate" "$digits"
	done
done
expect 0 --scrub-rate 0
expect 2 --config "$dir/none"
says 'there is no such file'
head -c 70000 /dev/zero | tr '\0' '#' >"$dir/large"
expect 2 --config "$dir/large"
# What a power loss leaves of a file says nothing, and is not taken for none.
for zeros in '%b\0\0' '\0%b' '%bx\0y\n'; do
	# shellcheck disable=SC2059
	printf "$zeros" 'memory = 1G\n' >"$dir/zeros"
	expect 2 --config "$dir/zeros"
	says "^shardkeepd: $dir/zeros has bytes of zero: that is no text"
done
# The usual place is read where there is one.
if [ "$(id -u)" -ne 0 ]; then
	mkdir -p "$dir/xdg/shardkeep"
	echo 'memory = 3G' >"$dir/xdg/shardkeep/shardkeepd.conf"
	XDG_CONFIG_HOME="$dir/xdg" expect 0
	says '^memory = 3G'
fi
# A store that cannot be found, for where we are is gone.
mkdir "$dir/gone"
(cd "$dir/gone" && rmdir "$dir/gone" &&
	exec "$agent" --socket "$dir/sock" --store here --memory 64M) \
	>"$dir/out" 2>&1 && fail 'it serves from nowhere'
says 'cannot find the store here: No such file'
# Whoever cannot have its store does not serve without it.
touch "$dir/file"
for keeper in --no-keeper --keeper; do
	timeout 60 "$agent" --socket "$dir/sock" --store "$dir/file" \
		--memory 64M "$keeper" >"$dir/out" 2>&1
	status=$?
	[ $status -eq 1 ] || fail "$keeper: it ended with $status"
	says 'file": Not a directory'
	[ ! -e "$dir/sock" ] || fail "$keeper: its socket is left"
done
# Started without any of the three, it opens nothing of its own in their place.
for keeper in --no-keeper --keeper; do
	"$agent" --socket "$dir/sock" --memory 64M "$keeper" \
		<&- >"$dir/out" 2>&- &
	pid=$!
	until [ -S "$dir/sock" ] || ! kill -0 "$pid"; do sleep 0.02; done
	for of in "$pid" $(cat "/proc/$pid/task/$pid/children"); do
		for fd in 0 2; do
			to=$(readlink "/proc/$of/fd/$fd")
			[ "$to" = /dev/null ] || fail "$keeper: $fd is $to"
		done
	done
	kill "$pid"
	wait "$pid" || fail "$keeper: it ended with $?"
done
exit "$failed"
