/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A simulated world: layouts of any number of ranks, of which one or two are
 * processes. The others' images are files of zeros that lie in the store as
 * they would lie in one that all nodes share, and their words in a restore are
 * what the one real rank says.
 */
#ifndef SK_BENCH_WORLD_H
#define SK_BENCH_WORLD_H

#include "bench.h"
#include "model.h"

/** What one rank's restore took. */
struct world_restore {
	uint64_t wall_ns, cpu_ns, plan_ns;
	uint64_t agent_ns;	/* CPU of the agent meanwhile */
	uint64_t needed, read;	/* bytes: of tensors, and of all that came */
	uint64_t told;		/* bytes that the ranks' words came to */
	uint64_t peak;		/* resident, tensors included */
};

/** What is measured of one world; times are of one rank, or of the agent. */
struct world_figures {
	uint64_t describe_ns;	/* CPU: describing all tensors */
	uint64_t layout_ns;	/* CPU: laying a rank's image out */
	uint64_t header_bytes;
	uint64_t parse_ns;	/* CPU: reading its header as JSON */
	uint64_t cover_ns;	/* CPU: what all images cover; 0: too many */
	uint64_t register_ns;	/* of the first real rank, slots included */
	uint64_t list_ns;	/* the agent's first list */
	uint64_t list_cpu_ns;	/* of the agent, in it */
	uint64_t again_ns;	/* the second */
	uint64_t next_cpu_ns;	/* of the next agent, in its first */
	uint64_t agent_bytes;	/* its peak, without slots */
	struct world_restore near, disk, half;
	char failed[200];	/* "": all was measured */
};

/** The run that the real ranks were let into. */
struct world_run {
	uint64_t number, id;
};

/** One world in the store. */
struct world {
	struct bench *bench;
	struct model model;
	char job[64];
	int32_t steps;		/* simulated, from WORLD_STEP on */
	uint32_t keep_last;	/* as in sk_job */
	/* In memory that is shared by the processes: */
	struct world_figures *figures;
	struct world_run *run;
	/* Pipes: a byte from each real rank that has sealed; and what ends
	 * when they may end. */
	int sealed[2], go[2];
};

#define WORLD_STEP 1
/* A first list of 16,384 ranks reads all headers. */
#define WORLD_WAIT_MS 900000

/* ---- world.c ---- */

/** In a process of its own; 0, or -1 where @body fails or it is killed. */
int world_apart(struct world *w, int (*body)(struct world *w, int arg),
		int arg);
/** Memory for what is measured of it; 0 or -1. */
int world_open(struct world *w);

/* ---- simulate.c: the images ---- */

/** Writes the images of all ranks and steps, of the run in @w->run. 0 or -1,
 * said in the figures. For a process of its own. */
int world_simulate(struct world *w);

/* ---- member.c: a rank that is a process ---- */

struct world_member {
	struct sk *sk;
	struct sk_state *state;
	struct model_tensors tensors;
	char *memory;			/* of all of them */
	uint64_t describe_ns;		/* CPU */
};

/** Describes all tensors as rank @rank of @ranks, in @w->job, in memory of its
 * own. 0 or -1, said in the figures. */
int world_member_open(struct world *w, int rank, int32_t ranks,
		      struct world_member *ret);
void world_member_close(struct world_member *m);

/* ---- live.c: the real ranks and the agent ---- */

/** In a process of its own: describes, registers, seals the step, says so, and
 * stays until it may go. */
int world_save(struct world *w, int rank);
/** In processes of their own: what the agent lists; one restore. */
int world_list(struct world *w);
/** The first list of an agent that comes after it. */
int world_list_next(struct world *w);
int world_restore(struct world *w, int32_t ranks, uint32_t flags,
		  struct world_restore *ret);

int world_fail(struct world *w, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
uint64_t cpu_ns(void);
/** Nanoseconds that the agent's threads have run, ended ones as well. */
uint64_t agent_cpu_ns(const struct bench *b);
/** The most that a process had resident without shared memory; 0: self. */
uint64_t peak_bytes(pid_t pid);

/* ---- world-output.c ---- */

int world_print(const struct bench *b, const struct world *worlds, int n);

#endif
