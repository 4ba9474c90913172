/* SPDX-License-Identifier: Apache-2.0 */
#include "disk/pins.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/util.h"

static bool is_before(const struct pins_step *a, uint64_t run_id, int64_t step)
{
	return a->run_id != run_id ? a->run_id < run_id : a->step < step;
}

static size_t place_of(const struct pins *p, uint64_t run_id, int64_t step)
{
	return sk_count_before(p->n, i, is_before(&p->v[i], run_id, step));
}

static struct pins_step *find(const struct pins *p, uint64_t run_id,
			      int64_t step)
{
	size_t at = place_of(p, run_id, step);

	return at < p->n && p->v[at].run_id == run_id &&
	       p->v[at].step == step ? &p->v[at] : NULL;
}

void pins_note(struct pins *p, const struct sk_retain_step *s)
{
	struct pins_step *is = find(p, s->run_id, s->step);
	size_t at = place_of(p, s->run_id, s->step);

	if (is) {
		is->written_ns = s->written_ns;
		return;
	}
	if (sk_array_fit(p->v, p->room, p->n + 1) < 0)
		return;
	memmove(&p->v[at + 1], &p->v[at], (p->n++ - at) * sizeof(*p->v));
	p->v[at] = (struct pins_step){ s->run_id, s->step, s->written_ns };
}

void pins_forget(struct pins *p, uint64_t run_id, int64_t step)
{
	struct pins_step *is = find(p, run_id, step);

	if (!is)
		return;
	p->n--;
	memmove(is, is + 1, (size_t)(&p->v[p->n] - is) * sizeof(*is));
}

struct pins pins_copy(const struct pins *p)
{
	struct pins copy = { .n = p->n, .room = p->n };

	copy.v = p->n ? malloc(p->n * sizeof(*p->v)) : NULL;
	if (!copy.v)
		return (struct pins){ .n = 0 };
	memcpy(copy.v, p->v, p->n * sizeof(*p->v));
	return copy;
}

void pins_mark(const struct pins *p, struct sk_retain_step *steps, size_t n)
{
	for (size_t i = 0; i < n && p->n; i++) {
		struct sk_retain_step *s = &steps[i];
		const struct pins_step *is = find(p, s->run_id, s->step);

		s->pinned |= is && is->written_ns == s->written_ns;
	}
}

void pins_free(struct pins *p)
{
	free(p->v);
	*p = (struct pins){ .n = 0 };
}
