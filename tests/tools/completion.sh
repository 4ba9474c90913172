#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What bash, zsh and fish offer while a command line is typed, against a real
# agent. A shell that is not installed is passed over. Arguments: shardkeepd,
# shardkeep-trainer, cachectl, the directory of the completions.
set -u
agent=$1 trainer=$2 cachectl=$(realpath "$3")
export completions=$4

dir=$(mktemp -d)
pid=
trap '[ -z "$pid" ] || kill -9 "$pid" 2>/dev/null; rm -rf "$dir"' EXIT
export SHARDKEEP_SOCKET=$dir/agent.sock HOME=$dir XDG_CONFIG_HOME=$dir
mkdir "$dir/bin"
ln -s "$cachectl" "$dir/bin/cachectl"
export PATH=$dir/bin:$PATH
failed=0

start_agent() {
	mkfifo "$dir/ready"
	exec 9<>"$dir/ready"
	"$agent" --socket "$SHARDKEEP_SOCKET" --store "$dir/store" \
		--memory 256M --log-level error --ready-fd 9 &
	pid=$!
	read -r -t 60 -n 1 _ <&9
	exec 9>&-
}

# typed LINE: what each shell offers at its end, one a line, sorted.
in_bash() {
	LINE=$1 bash --norc -c '
		compopt() { :; }
		source "$completions/cachectl.bash"
		COMP_LINE=$LINE COMP_POINT=${#LINE}
		COMP_WORDBREAKS=$'"'"' \t\n"\x27@><=;|&(:'"'"'
		_cachectl
		# What readline keeps of the word: all up to the last break.
		word=${LINE##* }
		kept=${word%"${word##*[@:]}"}
		[ ${#COMPREPLY[@]} -eq 0 ] ||
			printf "$kept%s\n" "${COMPREPLY[@]}"'
}

in_zsh() {
	LINE=$1 zsh -f -c '
		compadd() { print -rl -- "${values[@]}" }
		_files() { print :files }
		words=(${(z)LINE}); [[ $LINE == *" " ]] && words+=("")
		CURRENT=$#words
		source "$completions/cachectl.zsh"'
}

in_fish() {
	LINE=$1 fish -N -c '
		source "$completions/cachectl.fish"
		complete -C "$LINE"' | cut -f1
}

# offers LINE WANT...: all shells offer exactly these.
offers() {
	local line=$1 shell want got
	shift
	want=$(printf '%s\n' "$@" | sort)
	for shell in bash zsh fish; do
		command -v $shell >/dev/null || continue
		got=$("in_$shell" "$line" 2>"$dir/err" | sort -u)
		[ "$got" = "$want" ] && ! [ -s "$dir/err" ] && continue
		echo "FAIL: $shell, \"$line\": ${got//$'\n'/ }" >&2
		echo "  not: ${want//$'\n'/ }" >&2
		sed 's/^/  err: /' "$dir/err" >&2
		failed=1
	done
}

# ---- nobody to ask ----
offers 'cachectl sho' show
offers 'cachectl st' stats status stop
offers 'cachectl show ' ''
offers 'cachectl evict --f' --force
offers 'cachectl list --f' ''

start_agent
"$trainer" --mesh 2 --steps 2 --job llama --log "$dir/log" >/dev/null
"$trainer" --mesh 2 --steps 1 --job other --log "$dir/log2" >/dev/null

offers 'cachectl show ' llama llama/1 llama/2 other other/1
offers 'cachectl --json show ll' llama llama/1 llama/2
offers 'cachectl show llama/' llama/1 llama/2
offers "cachectl --socket $dir/nowhere show ll" ''

# Whatever the path, and however it was typed.
mkdir "$dir/my agent's"
ln -s "$dir/agent.sock" "$cachectl" "$dir/my agent's"
unset SHARDKEEP_SOCKET
offers 'cachectl show ll' ''
for way in "'$dir/my agent'\\''s/agent.sock'" "\"$dir/my agent's/agent.sock\"" \
	"$dir/my\\ agent\\'s/agent.sock" '~'"/my\\ agent\\'s/agent.sock"; do
	offers "cachectl --socket $way show ll" llama llama/1 llama/2
	offers "$dir/my\\ agent\\'s/cachectl --socket $way show llama/2 st" step
done
export SHARDKEEP_SOCKET=$dir/agent.sock

offers 'cachectl show llama model.layers.0.' model.layers.0.bias \
	model.layers.0.weight
offers 'cachectl show llama/2 st' step
offers 'cachectl unpin ' ''
cachectl pin llama/1 >/dev/null
offers 'cachectl unpin llama/' llama/1
offers 'cachectl show llama step ' ''
offers 'cachectl stop ' ''

# Runs are offered to whoever asks for them.
offers 'cachectl show llama@' llama@1/1 llama@1/2
offers 'cachectl show llama@1/' llama@1/1 llama@1/2

# A path is the shell's own matter.
[ "$("$cachectl" --complete export llama ou)" = :files ] || failed=1
[ "$("$cachectl" --complete --socket '')" = :files ] || failed=1
touch "$dir/output"
for shell in zsh fish; do
	command -v $shell >/dev/null || continue
	cd "$dir" && "in_$shell" 'cachectl export llama outp' |
		grep -qE '^(output|:files)$' || {
		echo "FAIL: $shell completes no files" >&2
		failed=1
	}
done

kill "$pid" && wait "$pid"
pid=
[ "$failed" -eq 0 ] && echo "the shells know what cachectl takes"
exit "$failed"
