# SPDX-License-Identifier: Apache-2.0
# bash completion for cachectl, which says itself what a word may become.

# The words of a line, without the quotes, as the shell would have them; the last
# one may have its quote open.
__cachectl_words()
{
	local line=$1 word= quote= c i in=

	words=()
	for ((i = 0; i < ${#line}; i++)); do
		c=${line:i:1}
		if [[ $c == "$quote" ]]; then
			quote=
		elif [[ $c == \\ && $quote != \' ]]; then
			i=$((i + 1)) in=yes
			word+=${line:i:1}
		elif [[ -z $quote && $c == [\"\'] ]]; then
			in=yes quote=$c
		elif [[ -z $quote && $c == [[:space:]] ]]; then
			[[ -z $in ]] || words+=("$word")
			in= word=
		elif [[ -z $in && $c == "~" && ${line:i+1:1} == [/[:space:]] ]]; then
			in=yes word=$HOME
		else
			in=yes word+=$c
		fi
	done
	words+=("$word")
}

_cachectl()
{
	local line=${COMP_LINE:0:COMP_POINT} words word value before
	local IFS=$' \t\n'

	# By words as they were typed: bash itself also breaks at : and @.
	__cachectl_words "$line"
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
