/* SPDX-License-Identifier: Apache-2.0 */
#include "state/fence.h"

#include <assert.h>
#include <errno.h>

void sk_fences_init(struct sk_fences *f, const struct sk_os *os)
{
	*f = (struct sk_fences){ .os = os };
	(void)pthread_mutex_init(&f->lock, NULL);
	sk_cond_init(&f->changed);
}

void sk_fences_destroy(struct sk_fences *f)
{
	assert(!f->running && !f->newest);
	(void)pthread_mutex_destroy(&f->lock);
	(void)pthread_cond_destroy(&f->changed);
}

void sk_fences_lock(struct sk_fences *f)
{
	(void)pthread_mutex_lock(&f->lock);
}

void sk_fences_unlock(struct sk_fences *f)
{
	(void)pthread_mutex_unlock(&f->lock);
}

void sk_pending_unref(struct sk_pending *p)
{
	if (!p)
		return;
	assert(p->refs);
	if (!--p->refs)
		p->release(p);
}

void sk_fences_begin(struct sk_fences *f, struct sk_pending *p)
{
	/* Its work is shared with the one before: copies never overlap. */
	assert(!f->newest || !f->newest->units_left);
	assert(p->refs && !p->finished);
	sk_pending_unref(f->newest);
	f->newest = p;
	f->running++;
	f->hurry -= f->hurry > 0;
}

void sk_fences_finish(struct sk_fences *f, struct sk_pending *p, int result)
{
	assert(f->running && !p->finished && !p->units_left);
	p->result = result;
	p->finished = true;
	f->running--;
	(void)pthread_cond_broadcast(&f->changed);
	sk_pending_unref(p);
}

void sk_fences_drop(struct sk_fences *f)
{
	sk_fences_lock(f);
	sk_pending_unref(f->newest);
	f->newest = NULL;
	sk_fences_unlock(f);
}

bool sk_fences_calm(struct sk_fences *f)
{
	bool calm;

	sk_fences_lock(f);
	calm = f->newest && !f->hurry;
	sk_fences_unlock(f);
	return calm;
}

/* ---- waiting ---- */

/* What sk_fence_wait_asked() waits for, beside the items. */
#define ASKED (-1)

#define DEFAULT_STREAM 0

static bool holds(const struct sk_pending *p, int64_t item)
{
	if (p->verify)
		return p->units_left || !p->hashed;
	if (item == ASKED)
		return p->units_left && (p->host_left || !p->asked);
	if (item == SK_FENCE_ALL)
		return p->units_left;
	return item < p->n_items && p->left[item];
}

/* With the lock held, which is given up meanwhile: whether devices have done
 * all that is left. Who goes on to something else needs to be told. */
static bool reaches(struct sk_fences *f, struct sk_pending *p)
{
	bool reached;

	if (p->verify || !p->asked || p->host_left || !p->units_left)
		return false;
	sk_fences_unlock(f);
	reached = p->reach(p);
	sk_fences_lock(f);
	return reached;
}

/* With the lock held. */
static int wait_for_copy(struct sk_fences *f, struct sk_pending *p,
			 int64_t item, uint64_t until_ns)
{
	bool one = item != SK_FENCE_ALL;
	int r = 0;

	assert(p->refs);
	f->item_waiters += one;
	while (holds(p, item) && r != -ETIMEDOUT)
		r = f->os->cond_wait(f->os, &f->changed, &f->lock, until_ns);
	f->item_waiters -= one;
	return holds(p, item) ? -ETIMEDOUT : 0;
}

/* With the lock held. */
static int wait_finished(struct sk_fences *f, const struct sk_pending *p,
			 uint64_t until_ns)
{
	int r = 0;

	while (!p->finished && r != -ETIMEDOUT)
		r = f->os->cond_wait(f->os, &f->changed, &f->lock, until_ns);
	return p->finished ? 0 : -ETIMEDOUT;
}

/* With the lock held, which is given up meanwhile. The first fence judges,
 * the others wait for its word. */
static int wait_for_judge(struct sk_fences *f, struct sk_pending *p,
			  uint64_t stream, uint64_t until_ns)
{
	assert(p->verify && p->hashed && !p->units_left);
	if (!p->judged) {
		p->judged = true;
		sk_fences_unlock(f);
		p->judge(p, stream);
		sk_fences_lock(f);
	}
	return wait_finished(f, p, until_ns);
}

/* With the lock held: until it has let go of @item. */
static int wait_for_item(struct sk_fences *f, struct sk_pending *p,
			 int64_t item, uint64_t stream, uint64_t until_ns,
			 struct sk_err *err)
{
	int r = wait_for_copy(f, p, item, until_ns);

	if (r >= 0 && p->verify)
		r = wait_for_judge(f, p, stream, until_ns);
	return r >= 0 ? 0 : sk_err_set(err, r, "the snapshot still holds the "
				       "tensors: the time is over");
}

/* With the lock held: what became of it, where that is known. Whoever has no
 * use for the sentence passes it on to nobody. */
static int tell(struct sk_pending *p, struct sk_err *err)
{
	if (p->result >= 0 || !err)
		return p->result;
	*err = p->err;
	p->told = true;
	return p->result;
}

static int wait_newest(struct sk_fences *f, int64_t item, uint64_t stream,
		       uint64_t until_ns, bool untold, struct sk_err *err)
{
	struct sk_pending *p;
	int r = 0;

	sk_fences_lock(f);
	p = f->newest;
	if (p) {
		p->refs++;
		if (holds(p, item))
			f->hurry = SK_FENCE_HURRY;
		if (item == ASKED || untold || until_ns != SK_FOREVER ||
		    !holds(p, item) || !reaches(f, p))
			r = wait_for_item(f, p, item, stream, until_ns, err);
		if (r >= 0 && !(untold && p->told))
			r = tell(p, err);
		sk_pending_unref(p);
	}
	sk_fences_unlock(f);
	return r;
}

int sk_fence_wait(struct sk_fences *f, int64_t item, uint64_t until_ns,
		  struct sk_err *err)
{
	assert(item >= 0);
	return wait_newest(f, item, DEFAULT_STREAM, until_ns, false, err);
}

int sk_fence_wait_untold(struct sk_fences *f, uint64_t until_ns,
			 struct sk_err *err)
{
	return wait_newest(f, SK_FENCE_ALL, DEFAULT_STREAM, until_ns, true,
			   err);
}

int sk_fence_wait_asked(struct sk_fences *f, uint64_t stream,
			uint64_t until_ns, struct sk_err *err)
{
	return wait_newest(f, ASKED, stream, until_ns, false, err);
}

int sk_fence_wait_step(struct sk_fences *f, int64_t step, uint64_t until_ns,
		       struct sk_err *err)
{
	struct sk_pending *p;
	int r = 0;

	sk_fences_lock(f);
	p = f->newest;
	if (p && p->step == step) {
		p->refs++;
		r = wait_for_item(f, p, SK_FENCE_ALL, DEFAULT_STREAM, until_ns,
				  err);
		if (r >= 0)
			r = wait_finished(f, p, until_ns);
		if (r == -ETIMEDOUT)
			sk_err_set(err, r, "step %lld is not sealed in time",
				   (long long)step);
		else
			r = tell(p, err);
		sk_pending_unref(p);
	}
	sk_fences_unlock(f);
	return r;
}

int sk_fences_settle(struct sk_fences *f, uint64_t until_ns)
{
	int r = 0;

	/* A verified one ends by its fence; what became of it is told by
	 * others. */
	(void)sk_fence_wait(f, SK_FENCE_ALL, until_ns, NULL);
	sk_fences_lock(f);
	while (f->running && r != -ETIMEDOUT)
		r = f->os->cond_wait(f->os, &f->changed, &f->lock, until_ns);
	r = f->running ? -ETIMEDOUT : 0;
	sk_fences_unlock(f);
	return r;
}
