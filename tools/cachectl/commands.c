/* SPDX-License-Identifier: Apache-2.0 */
/* What cachectl can do: the table behind arguments, help and completion. */
#include "commands.h"

#include <string.h>

#include "base/util.h"

const struct option_info option_infos[] = {
	{ 's', true, "socket", "PATH", "where the agent listens; else "
	  "$SHARDKEEP_SOCKET,\n/run/shardkeep, $XDG_RUNTIME_DIR" },
	{ 'j', true, "json", NULL, "one JSON document, exact numbers" },
	{ 'v', true, "verbose", NULL, "say what is missing, and why" },
	{ 'f', true, "force", NULL, "evict what is protected as well" },
	{ 'm', true, "memory", NULL, "evict from memory (without --disk, the "
	  "default)" },
	{ 'd', true, "disk", NULL, "delete from disk" },
	{ 'w', true, "wait", NULL, "wait until it is done" },
	{ 'x', false, "prefix", "TEXT", "only names that begin so, without it" },
	{ 'S', false, "shard-size", "SIZE", "most bytes in a file, such as 5G" },
	{ 'l', false, "last", "N", "keep the newest N complete ones; 0: all" },
	{ 'e', false, "every", "N", "and those of steps that are multiples" },
	{ 'a', false, "age", "SECONDS", "none that is so much older than the "
	  "newest" },
	{ 'b', false, "bytes", "SIZE", "no more than that, the newest first" },
	{ 'D', false, "default", NULL, "leave it to the job and the agent" },
	{ 'i', true, "interval", "SECONDS", "time between two looks" },
	{ 'n', true, "count", "N", "end after so many looks, or events" },
	{ 'p', false, "prometheus", NULL, "Prometheus text format" },
	{ 'h', true, "help", NULL, "this; COMMAND --help for one command" },
	{ 'V', true, "version", NULL, "this program's version" },
};
const size_t n_option_infos = SK_ARRAY_SIZE(option_infos);

const struct command commands[] = {
	{ "list", "[JOB[/STEP]]", "list snapshots, newest first",
	  "Lists what is in memory and on disk. IMAGES says of how many ranks, "
	  "STATE what has become of it. With -v, says of incomplete snapshots "
	  "what is missing and of failed flushes why.",
	  "cachectl list -v llama\n"
	  "cachectl --json list | jq '.snapshots[0].step'",
	  "v", 0, 1, command_list,
	  .again = true },
	{ "show", "SNAPSHOT [TENSOR]",
	  "show tensors and images, or who holds a tensor",
	  "Shows every tensor with dtype, global shape, mesh and placements, "
	  "and the images of each rank. With TENSOR, draws to scale which "
	  "rank holds which part of it, and lists the boxes.",
	  "cachectl show llama\n"
	  "cachectl show llama/1200 layers.0.wq",
	  "", 1, 2, command_show,
	  .again = true },
	{ "verify", "[SNAPSHOT...]", "check every byte against its checksum",
	  "Reads images in memory and on disk, all or those of the snapshots "
	  "named; of a JOB all of its snapshots. Bad ones are set aside: "
	  "restores use another holder. Exit code 5 if any is bad.",
	  "cachectl verify llama || alert \"checkpoint damaged\"",
	  "", 0, 1000, command_verify },
	{ "pin", "SNAPSHOT", "keep it until unpinned",
	  "A pinned snapshot is not evicted from memory or deleted from disk. "
	  "On disk a pin is kept for all agents and times; what memory alone "
	  "has is written there for that, unless the agent has no store or "
	  "the job never has its steps written: then the pin keeps a slot of "
	  "each rank, and ends with the agent. Of a job on several nodes each "
	  "agent is asked for its part.",
	  "cachectl pin llama/1200",
	  "", 1, 1, command_pin },
	{ "unpin", "SNAPSHOT", "undo pin",
	  "The snapshot may be evicted again, as any other.",
	  "cachectl unpin llama/1200",
	  "", 1, 1, command_unpin },
	{ "evict", "SNAPSHOT", "free its memory, or delete it from disk",
	  "Frees the memory that it takes, or with --disk deletes its files, "
	  "and with --memory --disk both, of what either has. "
	  "Refuses, and says why, what is protected: the newest complete "
	  "snapshot, on disk the newest durable one as well (where none is "
	  "whole there, the newest of which it has a part), a pinned one, one "
	  "in use by a restore, one not yet durable where a store is "
	  "configured. --force overrides all but use by a restore, and a flush.",
	  "cachectl evict llama/1100\n"
	  "cachectl evict --disk llama@3/1000",
	  "fmd", 1, 1, command_evict },
	{ "flush", "SNAPSHOT", "write it to disk now",
	  "Asks the agent to make it durable; --wait waits for that and shows "
	  "progress.",
	  "cachectl flush --wait llama",
	  "w", 1, 1, command_flush },
	{ "retain", "JOB", "say what is to stay of a job on disk",
	  "Without options, says what stays and by whose word. With some, says "
	  "it anew; what is not given does not count. The job's own word and "
	  "the agent's options are not heard until --default. Whatever is "
	  "said, the newest complete snapshot stays, and what is pinned, in "
	  "use, or not durable yet.",
	  "cachectl retain llama --last 3 --every 1000\n"
	  "cachectl retain llama --bytes 2T\n"
	  "cachectl retain llama --default",
	  "leabD", 1, 1, command_retain,
	  .again = true },
	{ "export", "SNAPSHOT PATH", "write whole tensors as safetensors",
	  "Puts the tensors together, verified, into PATH if that ends in "
	  ".safetensors, else into a directory: model.safetensors or, with "
	  "--shard-size, several files and an index. Blobs stay out. --prefix "
	  "takes the tensors whose names begin with it, and leaves it out of "
	  "the names. Of a JOB that is the newest complete one, unless a newer "
	  "one is damaged.",
	  "cachectl export llama out/ --prefix model. --shard-size 5G",
	  "xS", 2, 2, command_export,
	  .again = true },
	{ "status", "", "one screen: memory, disk, jobs, what is wrong",
	  "Says since when the agent runs, what of its budget is taken and by "
	  "which jobs, how far each is sealed, complete and durable, and all "
	  "that is not as it should be, with what to do about it. Exit code 7 "
	  "if there is any of that.",
	  "cachectl status || alert \"$(cachectl status)\"\n"
	  "cachectl --json status | jq -r '.degraded[].remedy'",
	  "", 0, 0, command_status },
	{ "top", "", "jobs and rates, again and again",
	  "Shows memory against the budget, how far each job is, what is "
	  "copied and flushed in a second and how long its ranks are kept "
	  "waiting, every 2 s, until it is interrupted. In a pipe one table "
	  "follows the other; with --json one document does.",
	  "cachectl top\n"
	  "cachectl top -i 10 -n 6 > minute.txt",
	  "in", 0, 0, command_top, true },
	{ "watch", "[JOB[/STEP]]", "a line for each event",
	  "Says when snapshots are sealed, complete, durable, evicted, "
	  "deleted, pinned or found damaged, and when flushes fail, from now "
	  "on until it is interrupted. With --json a line is a document. What "
	  "begins and ends between two looks (half a second) is not seen.",
	  "cachectl watch llama\n"
	  "cachectl --json watch | jq -r 'select(.event == \"damaged\")'",
	  "in", 0, 1, command_watch, true },
	{ "doctor", "", "check this machine: limits, kernel, store, GPUs",
	  "Checks what helps or hinders, with or without an agent: limits of "
	  "locked memory, files and cgroups, huge pages, io_uring, the "
	  "store's filesystem and room, the CUDA driver and NCCL. Each check "
	  "says ok, warn or fail, and what to do. Exit code 7 if one warns, 8 "
	  "if one fails.",
	  "cachectl doctor\n"
	  "SHARDKEEP_STORE=/mnt/ckpt cachectl doctor",
	  "", 0, 0, command_doctor },
	{ "stats", "", "counters and gauges",
	  "With --prometheus, in Prometheus' text format: serve it with a node "
	  "exporter's textfile collector.",
	  "cachectl stats --prometheus > shardkeep.prom",
	  "p", 0, 0, command_stats },
	{ "version", "", "versions of this program and of the agent",
	  "Also where the agent listens, its budget and its store. Without an "
	  "agent, our own version alone.",
	  "cachectl version", "", 0, 0, command_version },
	{ "stop", "", "flush what is not durable, then end the agent",
	  "The newest complete snapshot of every job is written first. What is "
	  "in memory only, and has no store to go to, is lost.",
	  "cachectl stop --wait",
	  "w", 0, 0, command_stop },
};
const size_t n_commands = SK_ARRAY_SIZE(commands);

const struct command *find_command(const char *name)
{
	for (size_t i = 0; i < n_commands; i++)
		if (strcmp(commands[i].name, name) == 0)
			return &commands[i];
	return NULL;
}

const struct option_info *find_option(int letter)
{
	for (size_t i = 0; i < n_option_infos; i++)
		if (option_infos[i].letter == letter)
			return &option_infos[i];
	return NULL;
}

bool takes_option(const struct command *c, int letter)
{
	return strchr("jshV", letter) || (c && strchr(c->options, letter));
}
