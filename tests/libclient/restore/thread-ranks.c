/* SPDX-License-Identifier: Apache-2.0 */
#include "thread-ranks.h"

#include <criterion/criterion.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/util.h"
#include "bytes/copy.h"
#include "comm/comm.h"
#include "stub-agent.h"
#include "tensor/dtype.h"

struct meeting {
	pthread_barrier_t barrier;
	int world;
	char *all;
};

static int allgather(void *ctx, const void *in, size_t bytes, void *out,
		     uint32_t timeout_ms)
{
	struct rank *r = ctx;
	struct meeting *m = r->meeting;

	(void)timeout_ms;
	r->gathers++;
	r->gathered += bytes;
	if (!r->rank)
		m->all = malloc(bytes * (size_t)m->world);
	pthread_barrier_wait(&m->barrier);
	/* Before anybody hears it, also this rank. */
	if (r->lie)
		r->lie((void *)in, bytes);
	memcpy(m->all + bytes * (size_t)r->rank, in, bytes);
	pthread_barrier_wait(&m->barrier);
	memcpy(out, m->all, bytes * (size_t)m->world);
	pthread_barrier_wait(&m->barrier);
	if (!r->rank)
		free(m->all);
	return 0;
}

char *take_memory(struct rank *r, size_t bytes)
{
	char *p = malloc(bytes ? bytes : 1);

	memset(p, 0xee, bytes);
	r->memory[r->n_memory++] = p;
	return p;
}

static void describe_parts(struct rank *r, const struct tensor *t,
			   struct sk_tensor *st)
{
	struct sk_part parts[8] = { 0 };
	struct sk_box boxes[8];
	unsigned size = sk_dtype_bits(t->source.dtype) / 8;
	char *data;

	st->n_parts = (uint32_t)own_boxes(t, r->rank, boxes);
	data = take_memory(r, (size_t)size * 1000000);
	for (uint32_t i = 0; i < st->n_parts; i++) {
		parts[i].box = boxes[i];
		parts[i].data = data;
		data += (size_t)size *
			(size_t)sk_box_volume(st->ndim, &boxes[i]);
	}
	st->parts = parts;
	cr_assert(!sk_state_tensor(r->state, st), "%s", sk_error());
}

/* Sometimes with gaps between rows, sometimes transposed. */
static void choose_strides(struct rank *r, struct sk_tensor *st,
			   const struct sk_box *box, uint64_t *elements)
{
	int64_t padded[SK_MAX_DIMS];

	*elements = 1;
	for (int d = 0; d < st->ndim; d++) {
		padded[d] = box->size[d] + d % 2 + 1;
		*elements *= (uint64_t)padded[d];
	}
	sk_dense_strides(st->ndim, padded, st->strides);
	if (st->ndim == 2 && r->rank % 2) {
		st->strides[0] = 1;
		st->strides[1] = padded[0];
	}
}

static void describe_tensor(struct rank *r, const struct tensor *t)
{
	unsigned size = sk_dtype_bits(t->source.dtype) / 8;
	struct sk_tensor st = {
		.name = t->name, .dtype = (int32_t)t->target.dtype,
		.ndim = t->target.ndim, .mesh = t->target.mesh,
	};
	uint64_t elements = 0;
	struct sk_box *boxes;
	int n;

	memcpy(st.shape, t->target.shape, sizeof(st.shape));
	memcpy(st.placements, t->target.placements, sizeof(st.placements));
	if (t->explicit_target) {
		describe_parts(r, t, &st);
		return;
	}
	if (!describes(t, &t->target, t->everywhere[1], r->rank))
		return;
	cr_assert(!sk_spec_boxes(&t->target, r->rank, &boxes, &n, NULL));
	for (int i = 0; i < n; i++)
		elements += (uint64_t)sk_box_volume(st.ndim, &boxes[i]);
	if (elements && n == 1 && st.ndim && r->test->strided)
		choose_strides(r, &st, &boxes[0], &elements);
	free(boxes);
	if (elements)
		st.data = take_memory(r, elements * size);
	cr_assert(!sk_state_tensor(r->state, &st), "%s", sk_error());
}

static void describe_all(struct rank *r)
{
	uint64_t own = 40 + (uint64_t)(r->rank * r->test->own_more);

	for (int i = 0; i < r->test->n; i++)
		describe_tensor(r, &r->test->tensors[i]);
	cr_assert(!sk_state_blob(r->state, "config", take_memory(r, 100),
				 100));
	cr_assert(!sk_state_blob_local(r->state, "rng", take_memory(r, own),
				       own));
}

static void count_abort(void *ctx)
{
	struct rank *r = ctx;

	r->aborts++;
}

static int count_begin(void *ctx, uint32_t timeout_ms)
{
	struct rank *r = ctx;

	(void)timeout_ms;
	r->devices++;
	return -EIO;
}

static int count_end(void *ctx)
{
	struct rank *r = ctx;

	r->devices++;
	return 0;
}

static int count_exchange(void *ctx, const struct sk_comm_part *sends,
			  size_t n_sends, const struct sk_comm_part *receives,
			  size_t n_receives, uint32_t timeout_ms)
{
	(void)sends;
	(void)n_sends;
	(void)receives;
	(void)n_receives;
	return count_begin(ctx, timeout_ms);
}

/* Where they say their ranks, they could do more than gather. */
static struct sk_comm comm_of(struct rank *r)
{
	static const struct sk_comm_device device = {
		.begin = count_begin, .exchange = count_exchange,
		.end = count_end };

	if (!r->comm_world)
		return (struct sk_comm){ .ctx = r, .allgather = allgather };
	return (struct sk_comm){ .ctx = r, .allgather = allgather,
				 .exchange = count_exchange,
				 .abort = count_abort, .device = &device,
				 .world = r->comm_world, .rank = r->rank };
}

static void *rank_main(void *arg)
{
	struct rank *r = arg;
	struct sk_comm comm = comm_of(r);

	if (r->spoil)
		r->spoil(&comm);
	r->result = sk_restore(r->state, r->step, &comm, r->opts, &r->report);
	if (r->result < 0)
		(void)snprintf(r->text, sizeof(r->text), "%s", sk_error());
	return NULL;
}

void open_rank(struct rank *r, const struct test *test, int rank,
	       struct meeting *m)
{
	struct sk_job job = { .name = JOB, .world = test->world[1],
			      .rank = (rank + r->shift) % test->world[1] };

	r->test = test;
	r->rank = rank;
	r->meeting = m;
	r->sk.os = sk_os_linux();
	r->sk.pid = getpid();
	cr_assert(!sk_pool_new(2, -1, "test", &r->sk.pool, NULL));
	r->sk.recall = sk_recall_new();
	cr_assert(r->sk.recall);
	cr_assert(!sk_state_create(&r->sk, &job, &r->state));
	describe_all(r);
	if (r->more)
		r->more(r);
}

void restore(const struct test *test, struct rank *ranks)
{
	struct meeting m = { .world = test->world[1] };

	pthread_barrier_init(&m.barrier, NULL, (unsigned)m.world);
	for (int i = 0; i < m.world; i++)
		open_rank(&ranks[i], test, i, &m);
	for (int i = 0; i < m.world; i++)
		pthread_create(&ranks[i].thread, NULL, rank_main, &ranks[i]);
	for (int i = 0; i < m.world; i++)
		pthread_join(ranks[i].thread, NULL);
	pthread_barrier_destroy(&m.barrier);
}

void close_ranks(const struct test *test, struct rank *ranks)
{
	for (int i = 0; i < test->world[1]; i++) {
		sk_state_free(ranks[i].state);
		sk_pool_free(ranks[i].sk.pool);
		sk_recall_free(ranks[i].sk.recall);
		for (int k = 0; k < ranks[i].n_memory; k++)
			free(ranks[i].memory[k]);
		ranks[i] = (struct rank){ 0 };
	}
}

int run_plain(struct test *test, struct rank *ranks, int64_t step,
	      const struct sk_restore_options *o)
{
	for (int i = 0; i < test->world[1]; i++) {
		ranks[i].step = step;
		ranks[i].opts = o;
	}
	restore(test, ranks);
	return one_result(test, ranks, 0);
}

/* ---- comparing ---- */

struct comparing {
	const struct sk_part *part;
	const char *name;
	unsigned size;
	int ndim;
	uint64_t wrong;
};

static void compare_one(void *ctx, int64_t index, const int64_t *in)
{
	struct comparing *c = ctx;
	const char *at = c->part->data;
	char value[8];

	for (int d = 0; d < c->ndim; d++)
		at += in[d] * c->part->strides[d] * (int64_t)c->size;
	put_value(value, c->name, index, c->size);
	c->wrong += memcmp(at, value, c->size) != 0;
}

uint64_t wrong_in(const struct rank *r, const struct sk_local *local)
{
	char name[64];
	struct comparing c = {
		.name = local->item.spec.name,
		.size = sk_dtype_bits(local->item.spec.dtype) / 8,
		.ndim = local->item.spec.ndim,
	};

	if (local->item.kind == SK_ITEM_BLOB_LOCAL) {
		if (r->rank >= r->test->world[0])
			return 0;
		(void)snprintf(name, sizeof(name), "%s@%d", c.name, r->rank);
		c.name = name;
	}
	for (int i = 0; i < local->item.n_boxes; i++) {
		c.part = &local->parts[i];
		each(&local->item.spec, &c.part->box, compare_one, &c);
	}
	return c.wrong;
}

uint64_t wrong_elements(const struct test *test, struct rank *ranks)
{
	uint64_t wrong = 0;

	for (int i = 0; i < test->world[1]; i++)
		for (uint32_t k = 0; k < ranks[i].state->n_locals; k++)
			wrong += wrong_in(&ranks[i],
					  &ranks[i].state->locals[k]);
	return wrong;
}

int one_result(const struct test *test, const struct rank *ranks,
	       uint64_t seed)
{
	for (int i = 1; i < test->world[1]; i++)
		cr_assert(ranks[i].result == ranks[0].result,
			  "seed %" PRIu64 ": rank 0 has %d, rank %d %d", seed,
			  ranks[0].result, i, ranks[i].result);
	return ranks[0].result;
}
