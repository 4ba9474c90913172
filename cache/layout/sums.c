/* SPDX-License-Identifier: Apache-2.0 */
#include "layout/sums.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "bytes/checksum.h"

struct sk_sums_walk {
	const struct sk_layout *layout;
	const uint64_t *sums;
	uint32_t entry;		/* the one that the next byte is of */
	uint64_t at;		/* and where in it */
	uint32_t wrong;		/* an entry, and 1 */
	struct sk_xxh3_stream chunk;
};

static void skip_empty(struct sk_sums_walk *walk)
{
	const struct sk_layout *l = walk->layout;

	while (walk->entry < l->n_entries && !l->entries[walk->entry].bytes)
		walk->entry++;
}

struct sk_sums_walk *sk_sums_new(const struct sk_layout *layout,
				 const uint64_t *sums)
{
	/* The running checksum wants lines of its own. */
	struct sk_sums_walk *walk = aligned_alloc(_Alignof(struct sk_sums_walk),
						  sizeof(*walk));

	if (!walk)
		return NULL;
	*walk = (struct sk_sums_walk){ .layout = layout, .sums = sums };
	skip_empty(walk);
	return walk;
}

struct sk_sums_walk *sk_sums_free(struct sk_sums_walk *walk)
{
	free(walk);
	return NULL;
}

/* The chunk that ends at walk->at is whole. */
static int judge(struct sk_sums_walk *walk, const struct sk_entry *e,
		 struct sk_err *err)
{
	uint64_t chunk = (walk->at - 1) / SK_SUM_CHUNK;

	if (sk_xxh3_end(&walk->chunk) == walk->sums[e->first_sum + chunk])
		return 0;
	walk->wrong = (uint32_t)(e - walk->layout->entries) + 1;
	return sk_err_set(err, -EBADMSG, "\"%.100s\" of rank %d is not what "
			  "was sealed: MiB %llu of it has another checksum",
			  walk->layout->items[e->item].spec.name,
			  walk->layout->rank, (unsigned long long)chunk);
}

/* As much of @n as one chunk takes. */
static size_t add_to_chunk(struct sk_sums_walk *walk,
			   const struct sk_entry *e, const char *bytes,
			   size_t n)
{
	uint64_t left = SK_SUM_CHUNK - walk->at % SK_SUM_CHUNK;

	if (left > e->bytes - walk->at)
		left = e->bytes - walk->at;
	if (n > left)
		n = (size_t)left;
	if (walk->at % SK_SUM_CHUNK == 0)
		sk_xxh3_begin(&walk->chunk);
	sk_xxh3_add(&walk->chunk, bytes, n);
	walk->at += n;
	return n;
}

int sk_sums_add(struct sk_sums_walk *walk, const void *bytes, size_t n,
		struct sk_err *err)
{
	const struct sk_layout *l = walk->layout;
	const char *from = bytes;
	int r = 0;

	while (n && walk->entry < l->n_entries && r == 0) {
		const struct sk_entry *e = &l->entries[walk->entry];
		size_t k = add_to_chunk(walk, e, from, n);

		assert(walk->at <= e->bytes);
		from += k;
		n -= k;
		if (walk->at % SK_SUM_CHUNK == 0 || walk->at == e->bytes)
			r = judge(walk, e, err);
		if (walk->at == e->bytes) {
			walk->entry++;
			walk->at = 0;
			skip_empty(walk);
		}
	}
	return r;
}

uint32_t sk_sums_wrong(const struct sk_sums_walk *walk)
{
	return walk->wrong;
}
