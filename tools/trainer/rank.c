/* SPDX-License-Identifier: Apache-2.0 */
/* One rank: its shards, its snapshots, its steps. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "seat.h"
#include "shardkeep.h"
#include "trainer.h"

#define WAIT_MS 60000

/* A rectangle of a tensor (a vector is one column of it). */
struct shard {
	int64_t row, rows, column, columns;
	float *v[3];		/* parameter, Adam's m and v */
};

struct rank {
	const struct options *o;
	struct shared *s;
	const struct text *text;
	struct seat *seat;
	int rank;
	struct shard shards[TENSORS];
	struct sk *sk;
	struct sk_mesh *mesh;
	struct sk_state *state;
	uint64_t step;		/* done so far */
	FILE *log;
};

static const char *const parts[3] = { "model", "optim.m", "optim.v" };

/* torch.chunk's arithmetic, as the placements mean it. */
static void chunk(int64_t n, int64_t k, int64_t i, int64_t *at, int64_t *size)
{
	int64_t c = (n + k - 1) / k;

	*at = i * c < n ? i * c : n;
	*size = n - *at < c ? n - *at : c;
}

static int cut(struct rank *r)
{
	int columns = r->o->columns ? r->o->columns : 1;

	for (int t = 0; t < TENSORS; t++) {
		const struct tensor *w = &tensors[t];
		struct shard *s = &r->shards[t];

		chunk(w->shape[0], r->o->rows, r->rank / columns, &s->row,
		      &s->rows);
		s->columns = 1;
		if (w->ndim > 1)
			chunk(w->shape[1], columns, r->rank % columns,
			      &s->column, &s->columns);
		for (int k = 0; k < 3; k++) {
			s->v[k] = calloc((size_t)(s->rows * s->columns) + 1,
					 sizeof(float));
			if (!s->v[k])
				return -1;
		}
	}
	return 0;
}

/* The place of element (i, j) of a shard in the vector of all. */
static size_t place(const struct tensor *w, const struct shard *s, int64_t i,
		    int64_t j)
{
	int64_t width = w->ndim > 1 ? w->shape[1] : 1;

	return w->at + (size_t)((s->row + i) * width + s->column + j);
}

static void scatter(struct rank *r, const float *all)
{
	for (int t = 0; t < TENSORS; t++) {
		struct shard *s = &r->shards[t];

		for (int64_t i = 0; i < s->rows; i++)
			for (int64_t j = 0; j < s->columns; j++)
				s->v[0][i * s->columns + j] =
					all[place(&tensors[t], s, i, j)];
	}
}

static void gather(struct rank *r)
{
	for (int t = 0; t < TENSORS; t++) {
		struct shard *s = &r->shards[t];

		/* Of vectors all columns hold the same: one writes. */
		if (tensors[t].ndim == 1 && r->o->columns &&
		    r->rank % r->o->columns)
			continue;
		for (int64_t i = 0; i < s->rows; i++)
			for (int64_t j = 0; j < s->columns; j++)
				r->s->data[place(&tensors[t], s, i, j)] =
					s->v[0][i * s->columns + j];
	}
}

static void meet(struct rank *r)
{
	pthread_barrier_wait(&r->s->barrier);
}

/* ---- learning ---- */

static void adam(struct rank *r, int t)
{
	const size_t n = parameter_count();
	struct shard *s = &r->shards[t];
	double step = (double)r->step + 1;
	float c1 = (float)(1 - pow(0.9, step));
	float c2 = (float)(1 - pow(0.99, step));

	for (int64_t i = 0; i < s->rows; i++)
		for (int64_t j = 0; j < s->columns; j++) {
			const float *g = r->s->data + n +
					 place(&tensors[t], s, i, j);
			int64_t k = i * s->columns + j;
			float sum = 0;

			for (int m = 0; m < MICRO; m++)
				sum += g[(size_t)m * n];
			s->v[1][k] = 0.9f * s->v[1][k] + 0.1f * sum;
			s->v[2][k] = 0.99f * s->v[2][k] + 0.01f * sum * sum;
			s->v[0][k] -= 3e-3f * (s->v[1][k] / c1) /
				      (sqrtf(s->v[2][k] / c2) + 1e-8f);
		}
}

/* The launcher kills all ranks once all are here: in mid-step. Whoever looks at
 * what is left counts on the last snapshot; that it has let go of the tensors
 * does not say that it is sealed. */
static void wait_for_death(struct rank *r)
{
	if (r->state)
		(void)sk_wait(r->state, (int64_t)r->step, SK_SEALED, 10000);
	__atomic_add_fetch(&r->s->at_kill, 1, __ATOMIC_SEQ_CST);
	for (;;)
		pause();
}

static int update(struct rank *r)
{
	for (int t = 0; t < TENSORS; t++) {
		if ((int64_t)r->step == r->o->kill_at && t == TENSORS / 2)
			wait_for_death(r);
		adam(r, t);
	}
	r->step++;
	return 0;
}

static void log_loss(struct rank *r)
{
	float loss = 0;

	for (int m = 0; m < MICRO; m++)
		loss += r->s->loss[m];
	loss /= MICRO;
	if (!r->log)
		return;
	fprintf(r->log, "%llu %a %.4f\n", (unsigned long long)r->step,
		(double)loss, (double)loss);
	(void)fflush(r->log);
}

static int train_step(struct rank *r)
{
	const size_t n = parameter_count();

	gather(r);
	meet(r);
	for (int m = r->rank; m < MICRO; m += r->o->ranks)
		r->s->loss[m] = model_gradient(r->s->data, r->text, r->step,
					       m, r->s->data + n +
					       (size_t)m * n);
	meet(r);
	log_loss(r);
	/* The last snapshot must have let go before anything changes. */
	if (r->state && sk_fence(r->state)) {
		fprintf(stderr, "rank %d: fence: %s\n", r->rank, sk_error());
		return -1;
	}
	return update(r);
}

/* ---- snapshots ---- */

static size_t shard_bytes(const struct shard *s)
{
	return (size_t)(s->rows * s->columns) * sizeof(float);
}

static int describe(struct rank *r)
{
	char name[64];
	int e = 0;

	for (int k = 0; k < 3; k++)
		for (int t = 0; t < TENSORS && !e; t++) {
			const struct tensor *w = &tensors[t];
			struct sk_tensor d = {
				.name = name, .dtype = SK_F32,
				.ndim = w->ndim,
				.shape = { w->shape[0], w->shape[1] },
				.mesh = r->mesh, .data = r->shards[t].v[k],
				.placements = { SK_SHARD(0), w->ndim > 1 ?
						SK_SHARD(1) : SK_REPLICATE },
				.local_shape = (int64_t[]){
					r->shards[t].rows,
					r->shards[t].columns },
			};

			(void)snprintf(name, sizeof(name), "%s.%s", parts[k],
				       w->name);
			seat_tensor(r->seat, &d, shard_bytes(&r->shards[t]));
			e = sk_state_tensor(r->state, &d);
		}
	return e ? e : sk_state_blob(r->state, "step", &r->step,
				     sizeof(r->step));
}

static int open_state(struct rank *r)
{
	int64_t shape[2] = { r->o->rows, r->o->columns };
	const char *const names[] = { "dp", "tp" };
	int ndim = r->o->columns ? 2 : 1;
	const struct sk_job job = { .name = r->o->job, .rank = r->rank,
				    .world = r->o->ranks,
				    .flush_every = r->o->flush_every };
	const struct sk_options opts = { .socket = seat_socket(r->seat) };

	if (sk_open(&opts, &r->sk))
		return -1;
	if (!r->rank && sk_error()[0])
		fprintf(stderr, "trainer: %s\n", sk_error());
	return sk_mesh_create(ndim, shape, NULL, names, &r->mesh) ||
	       sk_state_create(r->sk, &job, &r->state) || describe(r);
}

static void add_up(struct rank *r, const struct sk_report *rep)
{
	const uint64_t came[CAME_WAYS] = {
		[CAME_MEMORY] = rep->bytes_memory,
		[CAME_DEVICE] = rep->bytes_device,
		[CAME_HOST] = rep->bytes_received - rep->bytes_device,
		[CAME_DISK] = rep->bytes_disk,
	};

	for (int i = 0; i < CAME_WAYS; i++)
		__atomic_add_fetch(&r->s->came[i], came[i], __ATOMIC_SEQ_CST);
	meet(r);
}

static void tell_restored(const struct rank *r, const struct sk_report *rep)
{
	const uint64_t *came = r->s->came;

	if (r->rank)
		return;
	printf("  restored step %lld, run %llu, saved by %d ranks, onto %d: "
	       "%u tensors in %.1f ms\n", (long long)rep->step,
	       (unsigned long long)rep->run, rep->world, r->o->ranks,
	       rep->tensors, (double)rep->total_ns / 1e6);
	printf("  of all ranks, KiB: %.1f from this node's memory, %.1f from "
	       "other nodes by NCCL,\n  %.1f from other nodes by the host, "
	       "%.1f from disk\n", (double)came[CAME_MEMORY] / 1024,
	       (double)came[CAME_DEVICE] / 1024,
	       (double)came[CAME_HOST] / 1024,
	       (double)came[CAME_DISK] / 1024);
	if (seat_why(r->seat)[0])
		printf("  without NCCL: %s\n", seat_why(r->seat));
	(void)fflush(stdout);
}

static int come_back(struct rank *r)
{
	struct sk_report report;
	int e;

	if (open_state(r))
		return -1;
	e = sk_restore(r->state, SK_LATEST, seat_comm(r->seat, r->sk), NULL,
		       &report);
	if (e == -2)		/* -ENOENT: the first run */
		return 0;
	if (!e) {
		seat_get(r->seat);
		add_up(r, &report);
		tell_restored(r, &report);
	}
	return e;
}

static int save(struct rank *r)
{
	const struct sk_snapshot_options o = {
		.wait_ms = WAIT_MS, .stream = seat_put(r->seat) };

	if (!sk_snapshot(r->state, (int64_t)r->step, &o))
		return 0;
	/* A failed snapshot is no reason to stop training. */
	fprintf(stderr, "rank %d: snapshot: %s\n", r->rank, sk_error());
	return 0;
}

static int train(struct rank *r)
{
	while (r->step < r->o->steps) {
		if (train_step(r))
			return -1;
		if (r->state)
			(void)save(r);
	}
	return 0;
}

static void sample(struct rank *r)
{
	char out[161];

	gather(r);
	meet(r);
	if (r->rank || !r->o->sample)
		return;
	model_sample(r->s->data, r->text, out, 160);
	for (char *c = out; *c; c++)
		*c = *c == '\n' ? ' ' : *c;
	printf("  it writes: %s\n", out);
}

int rank_run(const struct options *o, struct shared *s,
	     const struct text *text, struct seats *seats, int rank)
{
	struct rank r = { .o = o, .s = s, .text = text, .rank = rank };
	uint64_t begun;

	if (cut(&r))
		return 1;
	if (o->snapshots)
		r.seat = seat_take(seats, o, rank);
	if (rank == 0)
		model_init(s->data);
	meet(&r);
	scatter(&r, s->data);
	meet(&r);
	if (o->snapshots && come_back(&r)) {
		fprintf(stderr, "rank %d: %s\n", rank, sk_error());
		return 1;
	}
	if (rank == 0)
		r.log = fopen(o->log, "we");
	begun = r.step;
	if (train(&r))
		return 1;
	sample(&r);
	/* Who had nothing to do has none of this run. That other nodes' ranks
	 * have sealed no agent knows. */
	if (r.state && r.step > begun &&
	    sk_wait(r.state, (int64_t)r.step, o->n_nodes > 1 ?
		    SK_SEALED : SK_COMPLETE, WAIT_MS)) {
		fprintf(stderr, "rank %d: %s\n", rank, sk_error());
		return 1;
	}
	sk_state_free(r.state);
	sk_mesh_release(r.mesh);
	sk_close(r.sk);
	if (r.log)
		fclose(r.log);
	return 0;
}
