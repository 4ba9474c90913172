# SPDX-License-Identifier: Apache-2.0
# fish completion for shardkeep-bench

complete -c shardkeep-bench -f
complete -c shardkeep-bench -s r -l ranks -x -d 'processes that snapshot'
complete -c shardkeep-bench -s b -l bytes -x -d 'state of each'
complete -c shardkeep-bench -s t -l tensors -x -d 'that the state is cut into'
complete -c shardkeep-bench -s n -l rounds -x -d 'of every phase'
complete -c shardkeep-bench -s T -l threads -x -d 'that copy, per rank'
complete -c shardkeep-bench -s m -l step-ms -x -d 'length of a compute step'
complete -c shardkeep-bench -s d -l dir -r -F -d 'filesystem to measure'
complete -c shardkeep-bench -s a -l agent -r -F -d shardkeepd
complete -c shardkeep-bench -s p -l phases -x -a 'small snapshot many step restore nodes' -d 'that are measured'
complete -c shardkeep-bench -s N -l nodes -x -d 'agents that the ranks are spread over'
complete -c shardkeep-bench -s w -l world -x -d 'ranks to simulate'
complete -c shardkeep-bench -s M -l models -x -a 'llama experts' -d 'that are simulated'
complete -c shardkeep-bench -s x -l meshes -x -a 'fsdp hsdp tp' -d 'that they lie on'
complete -c shardkeep-bench -s s -l spread -x -d 'nodes that one of them has a model for'
complete -c shardkeep-bench -s A -l attack -x -d 'processes that keep the agent busy'
complete -c shardkeep-bench -s k -l kept -x -d 'steps of a job on disk'
complete -c shardkeep-bench -s J -l jobs -x -d 'jobs beside it'
complete -c shardkeep-bench -s c -l crowd -x -d 'ranks of one job'
complete -c shardkeep-bench -s j -l json -d 'one JSON document'
complete -c shardkeep-bench -s h -l help -d 'what there is'
