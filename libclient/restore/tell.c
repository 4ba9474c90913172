/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Layouts that ranks tell each other.
 *
 * First one of each description, from which arithmetic gives those of the
 * other ranks that describe the same; then those that it does not give. All
 * ranks see the same images, so they ask about the same.
 *
 * Whether arithmetic gives an image's layout its digest tells, and computing
 * it takes as long as its rank has tensors. So each rank computes those of its
 * share of the images, and tells in a bit each whether it was right; what else
 * it needs it computes when it does.
 */
#include "restore/tell.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "base/util.h"
#include "restore/agree.h"
#include "restore/images.h"
#include "restore/open.h"

/* What is asked about: images, and how long a header each rank has of it. */
struct asking {
	struct sk_restoring *rs;
	uint32_t *images;
	size_t n;
	uint64_t *all;		/* per rank n lengths; 0: it lacks it */
};

static int no_memory(struct sk_restoring *rs)
{
	return sk_err_set(&rs->err, -ENOMEM, "no memory for the layouts of %u "
			  "images", rs->n_images);
}

static uint64_t length_of(const struct asking *a, int32_t rank, size_t i)
{
	return a->all[(size_t)rank * a->n + i];
}

/* Which of the ranks that have it tells it; -1: none. They take turns. */
static int32_t teller_of(const struct asking *a, size_t i)
{
	int32_t world = a->rs->state->job.world, n = 0, turn;

	for (int32_t k = 0; k < world; k++)
		n += length_of(a, k, i) != 0;
	if (!n || n == world)
		return -1;	/* nobody, or all: nothing to tell */
	turn = (int32_t)(i % (size_t)n);
	for (int32_t k = 0;; k++)
		if (length_of(a, k, i) && !turn--)
			return k;
}

static int gather_lengths(struct asking *a, int r)
{
	struct sk_restoring *rs = a->rs;
	_cleanup_free_ uint64_t *mine = calloc(a->n + 1, sizeof(*mine));

	for (size_t i = 0; mine && r >= 0 && i < a->n; i++) {
		const struct sk_layout *l = rs->images[a->images[i]].layout;

		mine[i] = l ? l->header_bytes : 0;
	}
	if (r >= 0 && !mine)
		r = no_memory(rs);
	if (!a->n)
		return sk_restore_agreed(rs, r);
	return sk_restore_gather(rs, r, mine, a->n * sizeof(*mine), &a->all);
}

/* ---- telling ---- */

static int take(struct sk_restoring *rs, uint32_t image, const void *header,
		uint64_t bytes)
{
	struct sk_restore_image *i = &rs->images[image];
	_cleanup_layout_ struct sk_layout *l = NULL;
	int r;

	assert(!i->layout);
	r = sk_recall_get(rs->sk->recall, rs->state->job.name, i->rank,
			  (enum sk_image_kind)i->kind, header, bytes,
			  i->bytes, &l, &rs->err);
	if (r < 0)
		return r == -ENOMEM ? r : -EPROTO;
	if (l->rank != i->rank || l->kind != i->kind ||
	    l->world != rs->world || l->description != i->description ||
	    !sk_digest_equal(&l->digest, &i->digest))
		return sk_err_set(&rs->err, -EPROTO, "the layout that a rank "
				  "told of rank %" PRId32 " is another one",
				  i->rank);
	i->layout = sk_take_ptr(l);
	return 0;
}

static int tell_by_broadcast(struct sk_restoring *rs, int32_t teller,
			     const struct sk_layout *mine, void *buf,
			     uint64_t bytes)
{
	if (mine && rs->state->job.rank == teller)
		memcpy(buf, mine->header, bytes);
	return sk_restore_broadcast(rs, teller, buf, bytes);
}

static int tell_by_exchange(const struct asking *a, size_t i, int32_t teller,
			    const struct sk_layout *mine, void *buf,
			    uint64_t bytes, struct sk_comm_part *parts)
{
	struct sk_restoring *rs = a->rs;
	struct sk_comm_part from = { teller, 0, buf, bytes };
	size_t n = 0;
	int r;

	if (rs->state->job.rank != teller)
		return mine ? 0 : sk_restore_exchange(rs, NULL, 0, &from, 1);
	for (int32_t k = 0; k < rs->state->job.world; k++)
		if (!length_of(a, k, i))
			parts[n++] = (struct sk_comm_part){
				k, 0, (void *)mine->header, bytes };
	r = sk_restore_exchange(rs, parts, n, NULL, 0);
	/* Or still read it. */
	if (r < 0)
		(void)sk_layout_ref((struct sk_layout *)mine);
	return r;
}

static int tell_one(const struct asking *a, size_t i,
		    struct sk_comm_part *parts, void *buf, int *failed)
{
	struct sk_restoring *rs = a->rs;
	const struct sk_layout *mine = rs->images[a->images[i]].layout;
	int32_t teller = teller_of(a, i);
	uint64_t bytes;
	int r;

	if (teller < 0)
		return 0;
	bytes = length_of(a, teller, i);
	r = rs->comm.broadcast ?
		    tell_by_broadcast(rs, teller, mine, buf, bytes) :
		    tell_by_exchange(a, i, teller, mine, buf, bytes, parts);
	if (r >= 0 && !mine && !*failed)
		*failed = take(rs, a->images[i], buf, bytes);
	return r;
}

/* The longest that is told; an error where one cannot be. */
static int longest(const struct asking *a, uint64_t *ret_bytes)
{
	*ret_bytes = 0;
	for (size_t i = 0; i < a->n; i++) {
		int32_t teller = teller_of(a, i);
		uint64_t bytes = teller < 0 ? 0 : length_of(a, teller, i);

		if (bytes > SK_HEADER_MAX + 8 + SK_PAGE)
			return sk_err_set(&a->rs->err, -EPROTO, "rank %" PRId32
					  " has a header of %" PRIu64 " bytes",
					  teller, bytes);
		*ret_bytes = bytes > *ret_bytes ? bytes : *ret_bytes;
	}
	return 0;
}

static int tell_all(struct asking *a)
{
	struct sk_restoring *rs = a->rs;
	_cleanup_free_ struct sk_comm_part *parts = NULL;
	_cleanup_free_ char *buf = NULL;
	uint64_t most;
	int failed, r;

	failed = longest(a, &most);
	if (!most && failed >= 0)
		return 0;	/* the same everywhere */
	buf = malloc(most + 1);
	parts = calloc((uint32_t)rs->state->job.world, sizeof(*parts));
	if (failed >= 0 && (!buf || !parts))
		failed = no_memory(rs);
	r = sk_restore_agreed(rs, failed);
	for (size_t i = 0; i < a->n && r >= 0; i++)
		r = tell_one(a, i, parts, buf, &failed);
	/* A comm that failed may still write to it. */
	if (rs->broken)
		(void)sk_take_ptr(buf);
	return r < 0 ? r : sk_restore_agreed(rs, failed);
}

/* ---- what to ask about ---- */

static int by_description(const void *a, const void *b, void *ctx)
{
	const struct sk_restoring *rs = ctx;
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
	uint64_t p = rs->images[x].description, q = rs->images[y].description;

	if (p != q)
		return p < q ? -1 : 1;
	return (x > y) - (x < y);
}

/* The first image of each description. */
static void ask_descriptions(struct asking *a)
{
	const struct sk_restoring *rs = a->rs;
	size_t kept = 0;

	for (uint32_t i = 0; i < rs->n_images; i++)
		a->images[a->n++] = i;
	qsort_r(a->images, a->n, sizeof(*a->images), by_description,
		(void *)rs);
	for (size_t i = 0; i < a->n; i++)
		if (!i || rs->images[a->images[i]].description !=
				  rs->images[a->images[kept - 1]].description)
			a->images[kept++] = a->images[i];
	a->n = kept;
}

/* Has what this node or arithmetic gives; -ENOENT is no error. */
static int know(struct sk_restoring *rs, uint32_t image)
{
	int r = sk_restore_know(rs, image);

	return r == -ENOENT ? 0 : r;
}

/* An outline has no header to tell. */
static int have_header(struct sk_restoring *rs, uint32_t image)
{
	struct sk_restore_image *i = &rs->images[image];
	struct sk_layout *whole;

	if (!i->layout || i->layout->header)
		return 0;
	if (sk_layout_whole(i->layout, &whole) < 0)
		return no_memory(rs);
	sk_layout_free(i->layout);
	i->layout = whole;
	return 0;
}

static int learn(struct sk_restoring *rs, uint32_t image)
{
	const struct sk_restore_image *i = &rs->images[image];

	if (!i->layout || sk_restore_described(rs, i->description))
		return 0;
	return sk_restore_learn(rs, i->layout);
}

static int tell_descriptions(struct asking *a, int r)
{
	struct sk_restoring *rs = a->rs;

	if (r >= 0)
		ask_descriptions(a);
	for (size_t i = 0; i < a->n && r >= 0; i++)
		r = know(rs, a->images[i]);
	r = gather_lengths(a, r);
	if (r >= 0)
		r = tell_all(a);
	for (size_t i = 0; i < a->n && r >= 0; i++)
		r = learn(rs, a->images[i]);
	return r;
}

/* ---- whether the others follow from them ---- */

/* Of the images that this rank looks at: bit per image that does not. */
static int look_at_share(struct sk_restoring *rs, uint8_t *odd)
{
	uint32_t world = (uint32_t)rs->state->job.world;
	uint32_t n = 0;
	int r = 0;

	for (uint32_t i = (uint32_t)rs->state->job.rank;
	     i < rs->n_images && r >= 0; i += world, n++) {
		r = sk_restore_follows(rs, i);
		if (r != -ENOENT)
			continue;
		sk_bit_set(odd, n);
		r = 0;
	}
	return r;
}

/* Those that the rank of our number had: they tell its names. */
static int have_own(struct sk_restoring *rs)
{
	int32_t own = rs->state->job.rank;
	int r = 0;

	for (uint32_t i = sk_restore_first_of(rs, own); r >= 0 &&
	     i < rs->n_images && rs->images[i].rank == own; i++) {
		r = sk_restore_derive(rs, i);
		r = r == -ENOENT ? 0 : r;
	}
	return r;
}

/* Asks about all images that do not follow. */
static int ask_odd(struct asking *a, int r)
{
	struct sk_restoring *rs = a->rs;
	uint32_t world = (uint32_t)rs->state->job.world;
	size_t bytes = (rs->n_images / world + 1u) / 8 + 1;
	_cleanup_free_ uint8_t *odd = calloc(1, bytes), *all = NULL;

	if (r >= 0 && !odd)
		r = no_memory(rs);
	if (r >= 0)
		r = look_at_share(rs, odd);
	if (r >= 0)
		r = have_own(rs);
	r = sk_restore_gather(rs, r, odd, bytes, &all);
	if (r < 0)
		return r;
	a->n = 0;
	for (uint32_t i = 0; i < rs->n_images; i++)
		if (sk_bit(all + i % world * bytes, i / world))
			a->images[a->n++] = i;
	rs->follow = !a->n;
	return 0;
}

/* Of the images asked for those whose layout a rank lacks; @all: of each rank
 * @bytes of bits. */
static void keep_lacked(struct asking *a, const uint8_t *all, size_t bytes)
{
	size_t world = (size_t)a->rs->state->job.world, n = 0;

	for (size_t i = 0; i < a->n; i++) {
		bool lacked = false;

		for (size_t k = 0; k < world && !lacked; k++)
			lacked = sk_bit(all + k * bytes, i);
		if (lacked)
			a->images[n++] = a->images[i];
	}
	a->n = n;
}

/* Of those that some rank lacks, and has no header of. */
static int tell_rest(struct asking *a, int r)
{
	struct sk_restoring *rs = a->rs;
	_cleanup_free_ uint8_t *lacks = NULL, *all = NULL;
	size_t bytes;

	r = ask_odd(a, r);
	if (r < 0 || !a->n)
		return r;
	bytes = a->n / 8 + 1;
	lacks = calloc(1, bytes);
	for (size_t i = 0; i < a->n && r >= 0; i++) {
		r = know(rs, a->images[i]);
		if (lacks && !rs->images[a->images[i]].layout)
			sk_bit_set(lacks, i);
	}
	if (r >= 0 && !lacks)
		r = no_memory(rs);
	r = sk_restore_gather(rs, r, lacks, bytes, &all);
	if (r < 0)
		return r;
	keep_lacked(a, all, bytes);
	for (size_t i = 0; i < a->n && r >= 0; i++)
		r = have_header(rs, a->images[i]);
	free(a->all);
	a->all = NULL;
	if (!a->n)
		return 0;
	r = gather_lengths(a, r);
	return r < 0 ? r : tell_all(a);
}

int sk_restore_tell(struct sk_restoring *rs)
{
	struct asking a = {
		.rs = rs,
		.images = calloc(rs->n_images + 1u, sizeof(*a.images)),
	};
	int r = a.images ? 0 : no_memory(rs);

	r = tell_descriptions(&a, r);
	r = tell_rest(&a, r);
	free(a.images);
	free(a.all);
	return r;
}
