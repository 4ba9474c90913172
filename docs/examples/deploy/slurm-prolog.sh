#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Prolog= of slurm.conf, with PrologFlags=Alloc: a node whose agent does not
# answer is drained, and the job goes elsewhere. Not by a list, for which an agent
# that has just begun may look at a large store first. Slurm promises no PATH.
exec /usr/bin/cachectl --socket /run/shardkeep/agent.sock stats >/dev/null
