# SPDX-License-Identifier: Apache-2.0
# bash completion for shardkeep-bench

_shardkeep_bench()
{
	local word=${COMP_WORDS[COMP_CWORD]} options

	options='--ranks --bytes --tensors --rounds --threads --step-ms --dir
		--agent --phases --nodes --world --models --meshes --spread
		--attack --kept --jobs --crowd --json --help'
	case ${COMP_WORDS[COMP_CWORD - 1]} in
	-d | --dir | -a | --agent)
		compopt -o default
		COMPREPLY=()
		return ;;
	-p | --phases) options='small snapshot many step restore nodes' ;;
	-M | --models) options='llama experts' ;;
	-x | --meshes) options='fsdp hsdp tp' ;;
	esac
	mapfile -t COMPREPLY < <(compgen -W "$options" -- "$word")
}
complete -F _shardkeep_bench shardkeep-bench
