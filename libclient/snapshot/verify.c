/* SPDX-License-Identifier: Apache-2.0 */
#include "snapshot/verify.h"

#include <assert.h>
#include <string.h>

#include "base/util.h"
#include "bytes/checksum.h"
#include "snapshot/copying.h"

/* The tensors as they are now, by all threads. */
struct hashing {
	struct sk_task task;
	const struct sk_copying *c;
	uint64_t *const *sums;
	bool no_memory;
};

static void hash_unit(struct sk_task *task, size_t i)
{
	struct hashing *h = (struct hashing *)task;
	const struct sk_unit *u = &h->c->work->units[i];
	_cleanup_free_ char *buf = malloc(SK_SUM_CHUNK + SK_PAGE);

	assert(i < h->c->work->n_units);
	if (!buf) {
		__atomic_store_n(&h->no_memory, true, __ATOMIC_RELAXED);
		return;
	}
	for (uint32_t k = u->first; k < u->last; k++) {
		const struct sk_op *op = &h->c->work->ops[k];

		sk_copying_sum(h->c, op, u, buf, h->sums[op->kind]);
	}
}

static int hash_tensors(const struct sk_copying *c, uint64_t *const sums[2],
			struct sk_err *err)
{
	struct hashing h = {
		.task = { .units = c->work->n_units, .run = hash_unit },
		.c = c, .sums = sums,
	};

	sk_pool_run(c->state->sk->pool, &h.task);
	return h.no_memory ? sk_err_set(err, -ENOMEM, "out of memory for "
					"verification") : 0;
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

/* What was copied is what was there before, and is there still. */
static int compare(struct sk_copying *c, const char **ret_changed,
		   struct sk_err *err)
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
	r = hash_tensors(c, (uint64_t *[]){ primary, replica }, err);
	if (r >= 0)
		*ret_changed = first_changed(c, (uint64_t *[]){ primary,
					     replica }, c->sums);
	return r;
}

void sk_verify_judge(struct sk_pending *p)
{
	struct sk_copying *c = (struct sk_copying *)p;
	const char *name = NULL;
	int r = compare(c, &name, &p->err);

	assert(p->verify && p->hashed);
	if (name)
		r = sk_err_set(&p->err, -ECANCELED, "tensor \"%s\" changed "
			       "before the fence of step %lld; the snapshot is "
			       "refused", name, (long long)c->step);
	if (r < 0)
		sk_copying_refuse(c, r);
	else
		sk_copying_seal(c);
}
