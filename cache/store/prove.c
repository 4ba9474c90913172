/* SPDX-License-Identifier: Apache-2.0 */
/* History: what was believed by its name and inode is looked at. */
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "store/private.h"

size_t sk_history_unproved(const struct sk_history *h)
{
	return h->unproved;
}

void sk_history_doubt(struct sk_history_step *s)
{
	s->inode = 0;
}

static void prove(struct sk_history *h, struct sk_history_step *s)
{
	s->unproved = false;
	h->unproved--;
	h->merged = false;
}

/* It is another directory than it was: whose, and what is in it, is asked. */
static int ask_anew(struct sk_store *store, int job_fd,
		    struct sk_history_step *s, bool *ret_others)
{
	struct sk_store_run was = s->run;
	int r;

	s->run = (struct sk_store_run){ 0 };
	r = sk_history_ask(store, job_fd, s);
	if (sk_store_run_equal(&was, &s->run))
		return r;
	sk_history_files_forget(s);
	*ret_others = true;
	return r;
}

static int prove_step(struct sk_history *h, struct sk_store *store, int job_fd,
		      struct sk_history_step *s, bool *ret_others)
{
	const struct sk_history_step was = *s;
	int r = sk_history_stat(h, store, job_fd, s);

	if (sk_is_shortage(r)) {
		*s = was;
		return r;
	}
	prove(h, s);
	/* The job's directory has other times by now: the next look misses it.
	 */
	if (r == -ENOENT || sk_history_same(s, &was))
		return 0;
	h->unsaved = true;
	return ask_anew(store, job_fd, s, ret_others);
}

/* What is other stands elsewhere from now on. */
static int end(struct sk_history *h, bool others, int r, struct sk_err *err)
{
	if (others && r == 0)
		r = sk_history_put_in_order(h);
	else if (others)
		(void)sk_history_put_in_order(h);
	/* An index without doubts is the better one. */
	h->unsaved |= !h->unproved;
	return r == 0 ? 0 :
	       sk_err_errno(err, r, "cannot look at the steps of job \"%s\"",
			    h->job);
}

int sk_history_prove(struct sk_history *h, struct sk_store *store,
		     struct sk_history_step *const *steps, size_t n,
		     bool *ret_others, struct sk_err *err)
{
	bool others = false;
	int fd = -1, r = 0;

	for (size_t i = 0; i < n && r == 0; i++) {
		if (!steps[i]->unproved)
			continue;
		if (fd < 0)
			fd = r = sk_store_job_dir(store, h->job, err);
		if (fd >= 0)
			r = prove_step(h, store, fd, steps[i], &others);
	}
	*ret_others = others;
	if (fd < 0)
		return sk_is_gone(r) ? 0 : r;
	store->os->close(store->os, fd);
	return end(h, others, r, err);
}

/* Steps are numbered in the order in which they stand. */
static size_t first_from(const struct sk_history *h)
{
	return sk_count_before(h->n, i, h->steps[i].step < h->prove_from);
}

int sk_history_prove_some(struct sk_history *h, struct sk_store *store,
			  size_t most, struct sk_err *err)
{
	_cleanup_free_ struct sk_history_step **steps = NULL;
	size_t from = first_from(h), n = 0;
	bool others;

	steps = calloc(most + 1, sizeof(*steps));
	if (!steps)
		return sk_err_set(err, -ENOMEM, "no memory to look at %zu steps",
				  most);
	for (size_t i = 0; i < h->n && n < most; i++) {
		struct sk_history_step *s = &h->steps[(from + i) % h->n];

		if (!s->unproved)
			continue;
		steps[n++] = s;
		h->prove_from = s->step + 1;
	}
	return sk_history_prove(h, store, steps, n, &others, err);
}
