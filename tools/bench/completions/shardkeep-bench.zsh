#compdef shardkeep-bench
# SPDX-License-Identifier: Apache-2.0

_arguments \
	'(-r --ranks)'{-r,--ranks}'[processes that snapshot]:ranks' \
	'(-b --bytes)'{-b,--bytes}'[state of each]:size' \
	'(-t --tensors)'{-t,--tensors}'[that the state is cut into]:tensors' \
	'(-n --rounds)'{-n,--rounds}'[of every phase]:rounds' \
	'(-T --threads)'{-T,--threads}'[that copy, per rank]:threads' \
	'(-m --step-ms)'{-m,--step-ms}'[length of a compute step]:ms' \
	'(-d --dir)'{-d,--dir}'[filesystem to measure]:directory:_files -/' \
	'(-a --agent)'{-a,--agent}'[shardkeepd]:file:_files' \
	'(-p --phases)'{-p,--phases}'[that are measured]:phases:(small snapshot many step restore nodes)' \
	'(-N --nodes)'{-N,--nodes}'[agents that the ranks are spread over]:nodes:' \
	'(-w --world)'{-w,--world}'[ranks to simulate]:ranks' \
	'(-M --models)'{-M,--models}'[that are simulated]:models:(llama experts)' \
	'(-x --meshes)'{-x,--meshes}'[that they lie on]:meshes:(fsdp hsdp tp)' \
	'(-s --spread)'{-s,--spread}'[nodes that one of them has a model for]:nodes:' \
	'(-A --attack)'{-A,--attack}'[processes that keep the agent busy]:processes:' \
	'(-k --kept)'{-k,--kept}'[steps of a job on disk]:steps:' \
	'(-J --jobs)'{-J,--jobs}'[jobs beside it]:jobs:' \
	'(-c --crowd)'{-c,--crowd}'[ranks of one job]:ranks:' \
	'(-j --json)'{-j,--json}'[one JSON document]' \
	'(-h --help)'{-h,--help}'[what there is]'
