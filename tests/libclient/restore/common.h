/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the restore scenarios share: an agent of their own in a directory of
 * their own, ranks as processes, tensors whose values are a function of the
 * name, the step and the global index.
 *
 * Checks end the process with a sentence; the parent of ranks passes on that
 * one of them failed.
 */
#ifndef SK_TESTS_RESTORE_COMMON_H
#define SK_TESTS_RESTORE_COMMON_H

#include <stdbool.h>
#include <stdio.h>
#include <sys/types.h>

#include "state/names.h"
#include "state/state.h"

#define CHECK(what, ...) do {						\
	if (!(what))							\
		scene_fail(__FILE__, __LINE__, #what, " " __VA_ARGS__);	\
} while (0)

void scene_fail(const char *file, int line, const char *what,
		const char *fmt, ...)
	__attribute__((noreturn, format(printf, 4, 5)));

struct scene {
	char dir[64];
	char socket[96];
	char store[96];		/* "": none */
	const char *program;
	const char *cachectl;	/* the second argument, or NULL */
	const char *flush_rate;	/* of the agent; NULL: no limit */
	const char *scrub_rate;	/* the same; NULL: as ever */
	const char *memory;	/* its budget; NULL: 1G */
	bool keeper;		/* it has one, which is the process below */
	pid_t agent;
	/* Where there are several nodes, this is the first of them: */
	struct scene *nodes;
	int n_nodes;
	const int *node_of;	/* per rank; NULL: as many on each */
	uint32_t job_flags;	/* of all ranks */
	uint32_t slots;		/* the same; 0: as ever */
	bool has_threads;	/* as many as the library takes; else one */
};

/** A directory and an agent in it; the first argument, else
 * $SHARDKEEP_AGENT, names the program. Both go with this process. */
void scene_open(struct scene *scene, int argc, char **argv);
void scene_start_agent(struct scene *scene);
/** Further nodes: an agent each, with a socket of its own and the store of
 * the scene, or a store of its own. @nodes has @n, the first is the scene's. */
void scene_add_nodes(struct scene *scene, struct scene *nodes, int n,
		     bool own_stores);
/** SIGTERM, and waits; or SIGKILL. */
void scene_stop_agent(struct scene *scene, int sig);
/** What cachectl says of the scene's agent to @words, which are as a shell reads
 * them; to be closed with pclose(). */
FILE *scene_ask(const struct scene *scene, const char *words);
/** Stops the agent and removes the directory. */
void scene_close(struct scene *scene);

/** One rank's process. */
struct rank {
	struct scene *scene;
	int rank, world;
	const char *job;
	struct sk *sk;
	struct sk_state *state;
	const void *arg;
};

typedef void (*rank_fn)(struct rank *rank);
/** Runs @fn in @world processes, each with a state of @job; waits for all,
 * and CHECKs that all ended in order. */
void scene_ranks(struct scene *scene, const char *job, int world, rank_fn fn,
		 const void *arg);
/** The two halves of it: starts them, one process id each; waits for all. */
void scene_ranks_start(struct scene *scene, const char *job, int world,
		       rank_fn fn, const void *arg, pid_t *ret_pids);
void scene_ranks_end(const char *job, int world, const pid_t *pids);
/** The same, but kills all with SIGKILL once each has said rank_ready(). */
void scene_ranks_killed(struct scene *scene, const char *job, int world,
			rank_fn fn, const void *arg);
/** Says that this rank may be killed, and waits for it. */
void rank_ready(struct rank *rank);

/** Memory full of @fill that goes with the process; NULL of 0 bytes. */
char *rank_memory(size_t bytes, int fill);
/** Bytes of a tensor that this rank holds. */
uint64_t rank_bytes(const struct rank *rank, const struct sk_tensor *tensor);
/** Describes a tensor with memory for what this rank holds of it, full of
 * @fill. Returns the memory, NULL where it holds nothing; it goes with the
 * process. */
char *rank_tensor(struct rank *rank, const struct sk_tensor *tensor,
		  int fill);
/** Describes a small model: "wq" of @rows rows that all ranks share, "norm"
 * that each has, both of 900 columns of F32, and "rng", which is its own. */
void rank_model(struct rank *rank, int64_t rows);
/** Describes "w", 60 rows of 90 of F32, the whole of which is rank 0's, and "rng",
 * which is each one's own: what the others describe is another thing. */
void rank_whole(struct rank *rank);
/** Writes the values of @step into all tensors and blobs of the state. */
void rank_write(struct rank *rank, int64_t step);
/** Elements that are not those of @step, over all tensors and blobs. Local
 * blobs count as those of rank @local; -1: not at all. */
uint64_t rank_wrong(struct rank *rank, int64_t step, int local);
/** Prints what is wrong, and which step's values are there instead. */
void rank_tell_wrong(const struct rank *rank, int64_t step, int owner);
/** The same of what is called @name. */
uint64_t rank_wrong_in(struct rank *rank, int64_t step, const char *name);
/** Takes a snapshot and waits until this rank's part of it is SK_SEALED, or
 * the whole of it SK_COMPLETE or SK_DURABLE. */
void rank_snapshot(struct rank *rank, int64_t step, int until);
/** What the rank's agent says of that step: SK_SNAP_... */
uint32_t rank_flags_of(struct rank *rank, int64_t step);
/** Sends it a message about that step: @type is SK_MSG_PIN and the like. */
void rank_manage(struct rank *rank, int64_t step, uint32_t type,
		 uint32_t flags);
/** Has it have that step in memory no more. */
void rank_evict(struct rank *rank, int64_t step);
/** sk_restore() with the agent's comm. */
int rank_restore(struct rank *rank, int64_t step, uint32_t flags,
		 struct sk_report *ret_report);

/** A mesh of two dimensions, or one where @b is 0. */
struct sk_mesh *mesh_of(int64_t a, int64_t b, const int32_t *ranks,
			const char *const *names);

#endif
