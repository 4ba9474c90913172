#compdef cachectl
# SPDX-License-Identifier: Apache-2.0
# zsh completion for cachectl, which says itself what a word may become.

_cachectl() {
	local -a lines values shown
	local line value typed=("${(@Q)words[1,CURRENT]/#\~\//$HOME/}")

	lines=("${(@f)$("$typed[1]" --complete "${(@)typed[2,-1]}" \
		2>/dev/null)}")
	if [[ $lines[1] == :files ]]; then
		_files
		return
	fi
	for line in "${(@u)lines}"; do
		[[ -n $line ]] || continue
		value=${line%%$'\t'*}
		values+=("$value")
		shown+=("$value  -- ${line#*$'\t'}")
	done
	compadd -l -d shown -a values
}

_cachectl "$@"
