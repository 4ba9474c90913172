/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The demo's trainer: a character-level language model, sharded over a mesh
 * of processes, whose losses do not depend on that mesh, bit for bit.
 *
 * A batch is a fixed number of micro-batches. Each is computed whole by one
 * rank from the gathered parameters, into a gradient buffer of its own; then
 * every rank sums the micro-batches in order, for the elements it owns.
 */
#ifndef SK_TRAINER_H
#define SK_TRAINER_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CONTEXT 16
#define VOCABULARY 96
#define EMBED 24
#define INPUT (CONTEXT * EMBED)
#define HIDDEN 256
#define MICRO 12		/* micro-batches in a batch */
#define SAMPLES 16		/* samples in a micro-batch */
#define TENSORS 7
#define RANKS_MAX 16
#define NODES_MAX RANKS_MAX

struct tensor {
	const char *name;
	int ndim;
	int64_t shape[2];
	size_t at;		/* in the vector of all parameters */
};

extern const struct tensor tensors[TENSORS];
size_t parameter_count(void);

/* ---- model.c ---- */

/* Characters of the text as indices below VOCABULARY. */
struct text {
	uint8_t *v;
	size_t n;
};
int text_load(const char *path, struct text *ret);
char text_char(uint8_t index);

void model_init(float *parameters);
/* Adds nothing, sets @gradient; returns the mean loss of micro-batch @micro
 * of the batch of @step. */
float model_gradient(const float *parameters, const struct text *text,
		     uint64_t step, int micro, float *gradient);
void model_sample(const float *parameters, const struct text *text, char *out,
		  int n);

/* ---- rank.c ---- */

struct options {
	int ranks, rows, columns;	/* mesh; columns 0: one dimension */
	uint64_t steps;
	int64_t kill_at;		/* -1: never */
	const char *log, *job, *path;
	const char *nodes[NODES_MAX];	/* sockets of agents; ranks in blocks */
	int n_nodes;			/* 0: the agent that there is */
	bool snapshots, sample;
	unsigned flush_every;
};

/* From where bytes of a restore came. */
enum { CAME_MEMORY, CAME_DEVICE, CAME_HOST, CAME_DISK, CAME_WAYS };

/* In memory shared by the ranks and the launcher. */
struct shared {
	pthread_barrier_t barrier;
	unsigned at_kill;		/* ranks in the middle of that step */
	uint64_t came[CAME_WAYS];	/* bytes, to all ranks */
	float loss[MICRO];
	float data[];			/* parameters, then MICRO gradients */
};

struct seats;
int rank_run(const struct options *o, struct shared *s,
	     const struct text *text, struct seats *seats, int rank);

#endif
