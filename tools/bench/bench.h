/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shardkeep-bench: each phase of a checkpoint beside its ceiling, in one run.
 *
 * The program forks the ranks; they meet at barriers in a shared mapping and
 * leave start and end times there (CLOCK_MONOTONIC, comparable across
 * processes). A phase lasts from the first start to the last end. A phase and
 * its ceiling alternate within a round, so that drift of the machine hits
 * both; what is reported is the median over the rounds, and the median of the
 * ratios round by round.
 */
#ifndef SK_BENCH_H
#define SK_BENCH_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define BENCH_RANKS_MAX 16
#define BENCH_PROCESSES_MAX 64	/* ranks of whatever is measured */
#define BENCH_ROUNDS_MAX 64

struct options {
	int ranks, rounds;
	int nodes;		/* that phase nodes spreads the ranks over */
	bool more_meshes;	/* of it, which take more memory */
	uint64_t bytes;		/* a rank's state */
	int tensors;
	uint32_t threads;	/* that copy, per rank */
	unsigned step_ms;	/* of the compute loop */
	const char *dir;	/* where the store and the files lie */
	const char *agent;	/* path of shardkeepd */
	int world;		/* ranks to simulate; 0: phases are measured */
	int spread;		/* nodes that one's model goes to, and that
				 * one; 0: the same */
	int attack;		/* processes that attack the agent; 0: the
				 * same */
	int kept, jobs;		/* steps of a job on disk, or jobs beside it;
				 * 0: the same */
	int crowd;		/* ranks of one job; 0: the same */
	const char *models, *meshes;	/* lists; NULL: all */
	bool json;
};

/* A series of one figure over the rounds, nanoseconds unless said. */
struct series {
	double v[BENCH_ROUNDS_MAX];
	int n;
};

enum phase {
	PHASE_COPY_IN,		/* ceiling: memory -> warm memfd */
	PHASE_COPY_OUT,		/* ceiling: warm memfd -> memory */
	PHASE_HASH,		/* ceiling: XXH3 over the bytes */
	PHASE_CALL,		/* sk_snapshot() */
	PHASE_SAFE,		/* call to fence */
	PHASE_SEALED,		/* call to seal */
	PHASE_DURABLE,		/* call to durable */
	PHASE_FLUSH,		/* complete to durable */
	PHASE_WRITE,		/* ceiling: direct io_uring write + fsync */
	PHASE_READ,		/* ceiling: direct io_uring read */
	PHASE_FIRST_CALL,
	PHASE_FIRST_SAFE,
	PHASE_MANY_CALL,
	PHASE_MANY_SAFE,
	PHASE_ONE_SAFE,
	PHASE_STEP,		/* compute loop alone */
	PHASE_STEP_SNAPSHOT,	/* with a snapshot every step */
	PHASE_RESTORE_SAME,
	PHASE_RESTORE_SAME_PLAIN,	/* without checksums */
	PHASE_RESTORE_COLUMNS,
	PHASE_RESTORE_COLUMNS_PLAIN,
	PHASE_RESTORE_FEWER,
	PHASE_RESTORE_DISK,
	PHASE_RESTORE_DISK_COLUMNS,
	PHASE_NODES_COLUMNS,
	PHASE_NODES_COLUMNS_COMM,	/* ceiling: its exchange */
	PHASE_NODES_MOVED,
	PHASE_NODES_MOVED_COMM,
	PHASE_NODES_WITHIN,
	PHASE_NODES_WITHIN_COMM,
	PHASE_NODES_ACROSS,
	PHASE_NODES_ACROSS_COMM,
	PHASE_ROUND_TRIP,
	PHASE_PLAN_1K,
	PHASE_PLAN_16K,
	PHASE_COUNT
};

/* Lies in memory shared by all processes. */
struct shared {
	pthread_barrier_t all;		/* the ranks and the parent */
	struct {
		uint64_t start, end;
	} mark[BENCH_PROCESSES_MAX];
	int failed[BENCH_PROCESSES_MAX];
	char why[BENCH_PROCESSES_MAX][512];
	uint64_t slot_bytes[BENCH_PROCESSES_MAX];
	uint64_t extra[BENCH_PROCESSES_MAX];	/* bytes, see memory.c */
	double pss_shmem[BENCH_PROCESSES_MAX];
};

/* Bytes between nodes in one kind of restore: of the round with most. */
struct traffic {
	uint64_t needed, received, sent, passed;
	uint64_t most;		/* that one rank sent */
	double hashed;		/* by all, times what there is of the model */
};
#define NODES_KINDS 4

struct bench {
	struct options o;
	char dir[256];			/* temporary, removed at the end */
	char socket[300], store[300];
	pid_t agent;
	const char *log_level;		/* of the agent; NULL: warning */
	struct shared *shared;
	struct series series[PHASE_COUNT];
	struct traffic traffic[NODES_KINDS];
	uint64_t beyond;		/* memory beyond the slots, bytes */
	uint64_t slots;			/* bytes of all slots */
	unsigned write_block, write_depth;	/* of the ceiling */
	int failures;
};

uint64_t now_ns(void);
void series_add(struct series *s, double v);
double series_median(const struct series *s);
double series_min(const struct series *s);
double series_max(const struct series *s);
/* Median of a[i] / b[i]. */
double series_ratio(const struct series *a, const struct series *b);
void note(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* ---- process.c ---- */

int agent_start(struct bench *b);
int agent_stop(struct bench *b);	/* SIGTERM, waits */
/* Forks @ranks children that run @body(b, rank), runs @lead in the parent
 * beside them, waits for all; a child's failure is printed and counted. */
int run_ranks(struct bench *b, int ranks,
	      int (*body)(struct bench *b, int rank),
	      void (*lead)(struct bench *b, int ranks));
int fail(struct bench *b, int rank, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
/* Barrier of the ranks and the parent. */
void meet(struct bench *b);
void mark_start(struct bench *b, int rank);
void mark_end(struct bench *b, int rank);
/* In the parent, after a meet(): first start to last end. */
double marked(struct bench *b, int ranks);

/* ---- system.c ---- */

/* That stands after @key at the beginning of a line; 0: nowhere. */
uint64_t first_number(const char *path, const char *key);
/* Memory that forked processes share; NULL: none. */
void *share(size_t bytes);
/* The folder with all that is in it. */
void remove_tree(const char *path);

/* ---- ceiling.c ---- */

/* Copies with @threads threads and streaming stores. */
void copy_parallel(void *dst, const void *src, uint64_t bytes,
		   unsigned threads);
uint64_t hash_parallel(const void *src, uint64_t bytes, unsigned threads);
/* One file written (then fsync'ed) or read with O_DIRECT through io_uring. */
int file_pass(const char *path, void *buf, uint64_t bytes, bool write,
	      unsigned block, unsigned depth);
/* Faulted in, in huge pages from end to end where the kernel has them: what is
 * measured against has no smaller pages than what is measured. */
void *warm_memfd(uint64_t bytes);
void *warm_memory(uint64_t bytes);

/* ---- list.c: names with commas between them; NULL: all there are ---- */

bool list_has(const char *list, const char *name);
/* That each is @name(i) for some i, which is NULL behind the last; else says
 * which is not, of which option. */
int list_check(const char *list, char option, const char *(*name)(int i));

/* ---- phases ---- */

int phase_snapshot(struct bench *b);	/* snapshot.c */
int phase_many(struct bench *b);	/* snapshot.c */
int phase_step(struct bench *b);	/* step.c */
int phase_restore(struct bench *b);	/* restore.c */
int phase_nodes(struct bench *b);	/* nodes.c; nodes.h */
int phase_small(struct bench *b);	/* small.c: planner, round trip */
void measure_memory(struct bench *b, int rank, uint64_t tensors);
uint64_t agent_extra(struct bench *b, double *ret_shmem);

/* ---- world.c: measures and prints ---- */

int phase_world(struct bench *b);

/* ---- spread.c: the same ---- */

int phase_spread(struct bench *b);

/* ---- attacked.c: the same ---- */

int phase_attacked(struct bench *b);

/* ---- growth.c: the same ---- */

int phase_growth(struct bench *b);

/* ---- crowd.c: the same ---- */

int phase_crowd(struct bench *b);

/* ---- output.c ---- */

int print_results(const struct bench *b);

#endif
