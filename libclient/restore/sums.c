/* SPDX-License-Identifier: Apache-2.0 */
#include "restore/sums.h"

#include <assert.h>
#include <string.h>

#include "base/array.h"
#include "base/util.h"
#include "conn/memfd.h"
#include "restore/takes.h"

/* So few that nobody asked for are read along, rather than asking twice. */
#define GAP_MOST 16u

static int no_memory(struct sk_restoring *rs,
		     const struct sk_restore_image *image)
{
	return sk_err_set(&rs->err, -ENOMEM, "no memory for the checksums of "
			  "rank %d's image", image->rank);
}

static const struct sk_restore_run *run_of(const struct sk_restore_sums *s,
					   uint32_t sum)
{
	size_t at = sk_count_before(s->n_runs, i, s->runs[i].to <= sum);

	return at < s->n_runs && s->runs[at].from <= sum ? &s->runs[at] : NULL;
}

bool sk_restore_has_sums(const struct sk_restore_image *image,
			 const struct sk_entry *e)
{
	return run_of(&image->sums, e->first_sum) != NULL;
}

uint64_t sk_restore_sum(const struct sk_restore_image *image,
			const struct sk_entry *e, uint32_t chunk)
{
	const struct sk_restore_run *run = run_of(&image->sums, e->first_sum);

	assert(run && chunk < e->n_sums);
	return image->sums.values[run->at + (e->first_sum - run->from) +
				  chunk];
}

void sk_restore_free_sums(struct sk_restore_image *image)
{
	free(image->sums.values);
	free(image->sums.runs);
	image->sums = (struct sk_restore_sums){ 0 };
}

/* Behind those that there are, of entries that lie there. */
static int add(struct sk_restore_sums *s, uint32_t from, uint32_t to)
{
	struct sk_restore_run *last = s->n_runs ? &s->runs[s->n_runs - 1] :
						  NULL;

	if (last && from - last->to <= GAP_MOST) {
		last->to = to;
		return 0;
	}
	if (sk_array_fit(s->runs, s->room, s->n_runs + 1u) < 0)
		return -ENOMEM;
	s->runs[s->n_runs] = (struct sk_restore_run){
		.from = from, .to = to,
		.at = last ? last->at + (last->to - last->from) : 0,
	};
	s->n_runs++;
	return 0;
}

static uint32_t count(const struct sk_restore_sums *s)
{
	const struct sk_restore_run *last;

	if (!s->n_runs)
		return 0;
	last = &s->runs[s->n_runs - 1];
	return last->at + (last->to - last->from);
}

static int add_taken(struct sk_restoring *rs,
		     const struct sk_restore_image *image,
		     struct sk_restore_sums *s)
{
	const struct sk_layout *l = image->layout;
	struct sk_restore_taking taking;
	int r = sk_restore_taking(rs, image, &taking);

	for (uint32_t i = 0; i < l->n_entries && r >= 0; i++) {
		const struct sk_entry *e = &l->entries[i];

		if (sk_restore_takes(l, e, &taking) &&
		    add(s, e->first_sum, e->first_sum + e->n_sums) < 0)
			r = no_memory(rs, image);
	}
	return r;
}

static int read_runs(struct sk_restoring *rs, struct sk_restore_image *image,
		     int fd)
{
	struct sk_restore_sums *s = &image->sums;
	int r = 0;

	s->values = malloc((count(s) + (size_t)1) * sizeof(*s->values));
	if (!s->values)
		return no_memory(rs, image);
	for (uint32_t i = 0; i < s->n_runs && r >= 0; i++) {
		const struct sk_restore_run *run = &s->runs[i];

		r = sk_read_all(rs->sk->os, fd, s->values + run->at,
				(run->to - run->from) * sizeof(*s->values),
				run->from * sizeof(*s->values));
	}
	return r >= 0 ? 0 : sk_err_errno(&rs->err, r, "cannot read the "
					 "checksums of rank %d's image",
					 image->rank);
}

int sk_restore_keep_sums(struct sk_restoring *rs,
			 struct sk_restore_image *image, uint64_t *sums)
{
	assert(!image->sums.values && image->layout);
	image->sums.values = sums;
	if (add(&image->sums, 0, image->layout->n_sums) >= 0)
		return 0;
	sk_restore_free_sums(image);
	return no_memory(rs, image);
}

int sk_restore_read_sums(struct sk_restoring *rs,
			 struct sk_restore_image *image, int fd, bool all)
{
	int r;

	assert(image->layout);
	sk_restore_free_sums(image);
	r = all ? add(&image->sums, 0, image->layout->n_sums) :
		  add_taken(rs, image, &image->sums);
	if (r < 0 && all)
		r = no_memory(rs, image);
	if (r >= 0)
		r = read_runs(rs, image, fd);
	if (r < 0)
		sk_restore_free_sums(image);
	return r;
}

/* ---- those that were compared ---- */

int sk_restore_may_verify(struct sk_restoring *rs,
			  struct sk_restore_image *image)
{
	assert(image->layout);
	if (!image->verified)
		image->verified = calloc(1, (uint64_t)image->layout->n_sums *
						2 / 8 + 1);
	return image->verified ? 0 : no_memory(rs, image);
}

static uint64_t bit_of(const struct sk_restore_image *image, uint32_t place,
		       const struct sk_entry *e, uint32_t chunk)
{
	assert(place < 2 && chunk < e->n_sums);
	return (uint64_t)place * image->layout->n_sums + e->first_sum + chunk;
}

bool sk_restore_is_verified(const struct sk_restore_image *image,
			    uint32_t place, const struct sk_entry *e,
			    uint32_t chunk)
{
	return image->verified &&
	       sk_bit(image->verified, bit_of(image, place, e, chunk));
}

void sk_restore_note_verified(struct sk_restore_image *image, uint32_t place,
			      const struct sk_entry *e, uint32_t chunk)
{
	if (image->verified)
		sk_bit_set(image->verified, bit_of(image, place, e, chunk));
}
