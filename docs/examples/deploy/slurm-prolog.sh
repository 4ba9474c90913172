#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Prolog= of slurm.conf, with PrologFlags=Alloc: a node whose agent does not
# answer is drained, and the job goes elsewhere. Slurm promises no PATH.
exec /usr/bin/cachectl --socket /run/shardkeep/agent.sock list >/dev/null
