# SPDX-License-Identifier: Apache-2.0
# bash completion for cachectl, which says itself what a word may become.

_cachectl()
{
	local line=${COMP_LINE:0:COMP_POINT} words word value before
	local IFS=$' \t\n'

	# By words as they were typed: bash itself also breaks at : and @.
	read -ra words <<<"$line"
	[[ $line == *[[:space:]] ]] && words+=("")
	word=${words[-1]}
	before=${word%"${word##*["${COMP_WORDBREAKS//[\"\'[:space:]]/}"]}"}
	COMPREPLY=()
	while IFS=$'\t' read -r value _; do
		if [[ $value == :files ]]; then
			compopt -o default
			COMPREPLY=()
			return
		fi
		COMPREPLY+=("${value#"$before"}")
	done < <("${words[0]}" --complete "${words[@]:1}" 2>/dev/null)
}
complete -F _cachectl cachectl
