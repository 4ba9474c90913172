# SPDX-License-Identifier: Apache-2.0
# bash completion for cachectl: commands, options, snapshots of the agent.

_cachectl()
{
	local cur=${COMP_WORDS[COMP_CWORD]} i command=
	local commands

	commands=$(cachectl --commands 2>/dev/null)
	for ((i = 1; i < COMP_CWORD; i++)); do
		case ${COMP_WORDS[i]} in
		-s | --socket) ((i++)) ;;
		-*) ;;
		*) command=${COMP_WORDS[i]}; break ;;
		esac
	done
	if [[ $cur == -* ]]; then
		COMPREPLY=($(compgen -W "--help --version --json --socket
			--verbose --force --memory --disk --wait
			--prefix --shard-size --prometheus" -- "$cur"))
	elif [[ -z $command ]]; then
		COMPREPLY=($(compgen -W "$commands" -- "$cur"))
	else
		COMPREPLY=($(compgen -W "$(cachectl list 2>/dev/null |
			awk 'NR > 1 && NF > 3 {
				print $1; print $1 "/" $3 }' |
			sort -u)" -- "$cur"))
	fi
}
complete -F _cachectl cachectl
