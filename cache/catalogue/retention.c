/* SPDX-License-Identifier: Apache-2.0 */
#include "catalogue/retention.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"

#define SECOND_NS UINT64_C(1000000000)

struct retaining {
	struct sk_retain_step *steps;
	size_t n;
	const struct sk_retention *policy;
	bool *strange;		/* of each */
	bool *full;		/* has all ranks that its run has here */
	bool *counted;
	const struct sk_retain_step *newest;	/* complete one; NULL */
	size_t complete;	/* so far, this one included */
	uint64_t bytes;		/* so far, of what number and age let stay,
				 * this one included */
};

static size_t words(int32_t world)
{
	return ((size_t)world + 63) / 64;
}

static bool same_run(const struct sk_retain_step *a,
		     const struct sk_retain_step *b)
{
	return a->run == b->run && a->run_id == b->run_id;
}

/* Whether @a has an image of each rank that @b has one of. */
static bool has_ranks_of(const struct sk_retain_step *a,
			 const struct sk_retain_step *b)
{
	if (!a->looked || !b->looked || a->world != b->world)
		return false;
	for (size_t i = 0; i < words(a->world); i++) {
		if (b->ranks[i] & ~a->ranks[i])
			return false;
	}
	return true;
}

static void add_ranks(uint64_t *all, const struct sk_retain_step *s)
{
	for (size_t i = 0; i < words(s->world); i++)
		all[i] |= s->ranks[i];
}

/* Where those of the number end that begin at @begin. */
static size_t end_of_number(const struct retaining *r, size_t begin)
{
	size_t end = begin;

	while (end < r->n && r->steps[end].run == r->steps[begin].run)
		end++;
	return end;
}

static void find_strangers(struct retaining *r)
{
	size_t begin = 0, end;
	bool mixed;

	for (; begin < r->n; begin = end) {
		mixed = false;
		end = end_of_number(r, begin);
		for (size_t i = begin; i < end; i++)
			mixed |= !same_run(&r->steps[begin], &r->steps[i]);
		for (size_t i = begin; i < end; i++)
			r->strange[i] = mixed && !r->steps[i].ours;
	}
}

/* Of the run of @begin: the ranks of which any step has an image. */
static void find_full_of_run(struct retaining *r, size_t begin, size_t end,
			     uint64_t *all)
{
	const struct sk_retain_step *first = &r->steps[begin];

	for (size_t i = begin; i < end; i++) {
		if (same_run(first, &r->steps[i]) &&
		    r->steps[i].looked && r->steps[i].world == first->world)
			add_ranks(all, &r->steps[i]);
	}
	for (size_t i = begin; i < end; i++) {
		const struct sk_retain_step *s = &r->steps[i];

		if (same_run(first, s) && s->looked && s->world == first->world)
			r->full[i] = memcmp(s->ranks, all, words(s->world) *
					    sizeof(*all)) == 0;
	}
}

static int find_full(struct retaining *r)
{
	size_t end;

	for (size_t i = 0; i < r->n; i++) {
		const struct sk_retain_step *s = &r->steps[i];
		uint64_t *all;

		/* Of each run it is done once, with the first of it. */
		if (!s->looked || r->counted[i])
			continue;
		end = end_of_number(r, i);
		all = calloc(words(s->world) + 1, sizeof(*all));
		if (!all)
			return -ENOMEM;
		for (size_t j = i; j < end; j++)
			r->counted[j] |= same_run(s, &r->steps[j]);
		find_full_of_run(r, i, end, all);
		free(all);
	}
	return 0;
}

static void find_newest(struct retaining *r)
{
	for (size_t i = 0; i < r->n && !r->newest; i++) {
		if (r->steps[i].complete && !r->strange[i])
			r->newest = &r->steps[i];
	}
}

/* The newest complete one of a run that lives: what another agent writes, of a
 * run that is newer, is no reason to give up what its ranks go back to. */
static bool is_newest_of_living(const struct retaining *r, size_t i)
{
	const struct sk_retain_step *s = &r->steps[i];

	if (!s->living || !s->complete)
		return false;
	while (i-- && s->run == r->steps[i].run) {
		if (r->steps[i].complete && same_run(s, &r->steps[i]))
			return false;
	}
	return true;
}

static bool is_protected(const struct retaining *r, size_t i)
{
	const struct sk_retain_step *s = &r->steps[i];

	return r->strange[i] || s->pinned || s->in_use || s == r->newest ||
	       is_newest_of_living(r, i) ||
	       (s->kept && (!r->newest || s < r->newest));
}

static bool is_milestone(const struct sk_retention *policy,
			 const struct sk_retain_step *s)
{
	return policy->keep_every &&
	       s->step % (int64_t)policy->keep_every == 0;
}

static bool is_old(const struct retaining *r, const struct sk_retain_step *s)
{
	const struct sk_retain_step *newest = r->newest;

	/* Against another file's time: no clock is asked. */
	return r->policy->keep_age_s && newest &&
	       newest->written_ns > s->written_ns &&
	       r->policy->keep_age_s <= UINT64_MAX / SECOND_NS &&
	       newest->written_ns - s->written_ns >
	       r->policy->keep_age_s * SECOND_NS;
}

static bool is_superseded(const struct retaining *r,
			  const struct sk_retain_step *s)
{
	const struct sk_retain_step *newest = r->newest;

	if (s->complete || !s->looked)
		return r->policy->keep_last && !is_milestone(r->policy, s) &&
		       r->complete - s->complete >= r->policy->keep_last;
	return newest->written_ns > s->written_ns;
}

/* One that may still become complete: by how many newer ones it is replaced,
 * for all that this store can ever have of it. */
static bool is_replaced(const struct retaining *r, size_t i, size_t by)
{
	const struct sk_retain_step *s = &r->steps[i];
	size_t same = 0, newer = 0, most;
	bool full = r->full[i];

	if (full && by < SK_RETAIN_APART)
		by = SK_RETAIN_APART;
	most = by + SK_RETAIN_AWAIT;
	while (i-- && newer < most && same < (full ? by : most)) {
		const struct sk_retain_step *than = &r->steps[i];

		if (r->strange[i] || than->passed)
			continue;
		same += has_ranks_of(than, s);
		newer += has_ranks_of(than, s) ||
			 (r->full[i] && !same_run(than, s));
	}
	return newer >= most || same >= (full ? by : most);
}

static bool goes_by_number(const struct retaining *r, size_t i)
{
	const struct sk_retain_step *s = &r->steps[i];

	if (s->complete || !s->looked || (r->newest && s > r->newest))
		return is_superseded(r, s) || is_old(r, s);
	/* It is all that this store will ever have of it. */
	if (r->full[i] && is_milestone(r->policy, s))
		return false;
	return r->policy->keep_last &&
	       is_replaced(r, i, r->policy->keep_last);
}

/* There is room for the newest. What has none, or none any more, still counts,
 * so that nothing older slips into what is left. */
static bool goes_by_bytes(struct retaining *r, size_t i)
{
	const struct sk_retain_step *s = &r->steps[i];

	if (!r->policy->keep_bytes || r->bytes <= r->policy->keep_bytes)
		return false;
	return s->complete || !s->looked || (r->newest && s > r->newest) ||
	       is_replaced(r, i, 1);
}

static bool goes(struct retaining *r, size_t i)
{
	struct sk_retain_step *s = &r->steps[i];
	bool stays = is_protected(r, i);

	if (r->strange[i] || !sk_retention_limits(r->policy))
		return false;
	r->complete += s->complete;
	if (!stays && goes_by_number(r, i))
		return true;
	r->bytes += s->bytes;
	return !stays && goes_by_bytes(r, i);
}

int sk_retain(struct sk_retain_step *steps, size_t n,
	      const struct sk_retention *policy)
{
	_cleanup_free_ bool *strange = calloc(n + 1, sizeof(*strange));
	_cleanup_free_ bool *full = calloc(n + 1, sizeof(*full));
	_cleanup_free_ bool *counted = calloc(n + 1, sizeof(*counted));
	struct retaining r = {
		.steps = steps, .n = n, .policy = policy,
		.strange = strange, .full = full, .counted = counted,
	};
	int gone = 0;

	if (!strange || !full || !counted)
		return -ENOMEM;
	find_strangers(&r);
	if (find_full(&r) < 0)
		return -ENOMEM;
	find_newest(&r);
	for (size_t i = 0; i < n; i++) {
		struct sk_retain_step *s = &steps[i];

		assert(!i || steps[i - 1].run > s->run ||
		       (steps[i - 1].run == s->run &&
			steps[i - 1].step >= s->step));
		s->goes = goes(&r, i);
		gone += s->goes;
	}
	return gone;
}

bool sk_retain_is_short(const struct sk_retain_step *steps, size_t n,
			const struct sk_retention *policy)
{
	size_t complete = 0;
	bool dark = false, may_go = false;

	for (size_t i = 0; i < n; i++) {
		const struct sk_retain_step *s = &steps[i];

		complete += s->complete;
		if (s->looked || s->complete || s->goes)
			continue;
		dark = true;
		may_go |= !is_milestone(policy, s);
	}
	return (dark && policy->keep_bytes) ||
	       (may_go && policy->keep_last && complete < policy->keep_last);
}
