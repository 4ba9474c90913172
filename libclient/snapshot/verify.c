/* SPDX-License-Identifier: Apache-2.0 */
#include "snapshot/verify.h"

#include <assert.h>
#include <string.h>

#include "base/util.h"
#include "bytes/checksum.h"
#include "snapshot/copying.h"

/* The tensors as they are now, those of GPUs when the lanes get there, by all
 * threads. */
struct hashing {
	struct sk_task task;
	const struct sk_copying *c;
	uint64_t *const *sums;
	pthread_mutex_t lock;		/* of lanes, while their bytes are
					 * waited for, and of: */
	int failed;			/* the first error, */
	struct sk_err err;		/* and its sentence */
};

static void fail(struct hashing *h, int r, const struct sk_err *err)
{
	(void)pthread_mutex_lock(&h->lock);
	if (h->failed >= 0) {
		h->failed = r;
		h->err = *err;
	}
	(void)pthread_mutex_unlock(&h->lock);
}

/* The bytes [from, to) of a tensor, as they lie in an image, at @buf. */
static int fetch_from_gpu(struct hashing *h, const struct sk_op *op,
			  const struct sk_copy *copy,
			  const struct sk_chunk *chunk, struct sk_err *err)
{
	struct sk_cuda_lane *lane = h->c->state->gpus.v[op->gpu].lane;
	int r;

	(void)pthread_mutex_lock(&h->lock);
	r = sk_cuda_lane_out(lane, copy, chunk->from, chunk->to, NULL, err);
	if (r >= 0)
		r = sk_cuda_lane_finish(lane, err);
	(void)pthread_mutex_unlock(&h->lock);
	return r;
}

static int fetch(struct hashing *h, const struct sk_op *op,
		 const struct sk_chunk *chunk, char *buf, struct sk_err *err)
{
	struct sk_copy copy = op->copy;

	if (chunk->from == chunk->to)
		return 0;
	/* dst is where byte 0 would be: only [from, to) is written */
	copy.dst = (char *)((uintptr_t)buf - chunk->from);
	for (int d = 0; d < copy.ndim; d++)
		assert(copy.dst_stride[d] >= 0);
	if (op->gpu >= 0)
		return fetch_from_gpu(h, op, &copy, chunk, err);
	sk_copy_run_range(&copy, chunk->from, chunk->to);
	return 0;
}

static void hash_unit(struct sk_task *task, size_t i)
{
	struct hashing *h = (struct hashing *)task;
	const struct sk_unit *u = &h->c->work->units[i];
	_cleanup_free_ char *buf = malloc(SK_SUM_CHUNK + SK_PAGE);
	struct sk_err err = { "out of memory for verification" };
	int r = buf ? 0 : -ENOMEM;

	assert(i < h->c->work->n_units);
	for (uint32_t k = u->first; k < u->last && r >= 0; k++) {
		const struct sk_op *op = &h->c->work->ops[k];
		struct sk_chunk chunk = sk_copying_chunk(op, u);

		r = fetch(h, op, &chunk, buf, &err);
		if (r >= 0)
			h->sums[op->kind][chunk.sum] =
				sk_xxh3(buf, chunk.to - chunk.from);
	}
	if (r < 0)
		fail(h, r, &err);
}

/* Into both of @sums, by kind; said as a pointer, for link-time optimization
 * takes the bound of an array in a struct that it has split for none. */
static int hash_tensors(const struct sk_copying *c, uint64_t *const *sums,
			struct sk_err *err)
{
	struct hashing h = {
		.task = { .units = c->work->n_units, .run = hash_unit },
		.c = c, .sums = sums,
	};

	(void)pthread_mutex_init(&h.lock, NULL);
	sk_pool_run(c->state->sk->pool, &h.task);
	(void)pthread_mutex_destroy(&h.lock);
	if (h.failed < 0 && err)
		*err = h.err;
	return h.failed;
}

int sk_verify_before(struct sk_copying *c, struct sk_err *err)
{
	return hash_tensors(c, c->before, err);
}

/* The first tensor whose sums differ, or NULL. */
static const char *first_changed(const struct sk_copying *c,
				 uint64_t *const a[2], uint64_t *const b[2])
{
	for (uint32_t i = 0; i < c->work->n_ops; i++) {
		const struct sk_op *op = &c->work->ops[i];

		if (memcmp(&a[op->kind][op->first_sum],
			   &b[op->kind][op->first_sum],
			   op->n_sums * sizeof(uint64_t)))
			return c->state->locals[op->item].item.spec.name;
	}
	return NULL;
}

/* What the trainer has queued since counts as well. The stream that it had at
 * the snapshot may be gone, or another one of that name: only one that is
 * given in this call is followed. Beside a capture nobody can be. */
static int follow(const struct sk_copying *c, uint64_t stream,
		  struct sk_err *err)
{
	int r = sk_gpus_follow(c->state, c->work->gpus, stream, err);

	return r == -EBUSY ? 0 : r;
}

/* What was copied is what was there before, and is there still. */
static int compare(struct sk_copying *c, uint64_t stream,
		   const char **ret_changed, struct sk_err *err)
{
	_cleanup_free_ uint64_t *primary = NULL;
	_cleanup_free_ uint64_t *replica = NULL;
	int r;

	*ret_changed = first_changed(c, c->before, c->sums);
	if (*ret_changed)
		return 0;
	primary = calloc(c->work->n_sums[0] + 1u, sizeof(*primary));
	replica = calloc(c->work->n_sums[1] + 1u, sizeof(*replica));
	if (!primary || !replica)
		return sk_err_set(err, -ENOMEM, "out of memory for "
				  "verification");
	r = follow(c, stream, err);
	if (r >= 0)
		r = hash_tensors(c, (uint64_t *[]){ primary, replica }, err);
	if (r >= 0)
		*ret_changed = first_changed(c, (uint64_t *[]){ primary,
					     replica }, c->sums);
	return r;
}

void sk_verify_judge(struct sk_pending *p, uint64_t stream)
{
	struct sk_copying *c = (struct sk_copying *)p;
	const char *name = NULL;
	int r = compare(c, stream, &name, &p->err);

	assert(p->verify && p->hashed);
	if (name)
		r = sk_err_set(&p->err, -ECANCELED, "tensor \"%s\" changed "
			       "before the fence of step %lld; the snapshot is "
			       "refused", name, (long long)p->step);
	if (r < 0)
		sk_copying_refuse(c, r);
	else
		sk_copying_seal(c);
}
