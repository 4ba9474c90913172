/* SPDX-License-Identifier: Apache-2.0 */
/* What passes by in pieces of any size has the checksums of the whole; one
 * byte that is another is found, and its tensor named. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "base/util.h"
#include "bytes/checksum.h"
#include "layout/sums.h"
#include "support/random.h"

#define ITEMS 9

/* Some are empty, some are small, some are several chunks. */
static struct sk_layout *random_layout(uint64_t *state)
{
	struct sk_item items[ITEMS] = { 0 };
	struct sk_layout *l = NULL;
	char names[ITEMS][8];
	struct sk_err err;

	for (int i = 0; i < ITEMS; i++) {
		static const int64_t most[] = { 1, 100, 3 << 20 };

		(void)snprintf(names[i], sizeof(names[i]), "t%d", i);
		items[i].spec = (struct sk_spec){
			.name = names[i], .dtype = SK_U8, .ndim = 1,
			.shape = { (int64_t)draw(state, (uint64_t)most[
				draw(state, 3)]) } };
	}
	cr_assert_eq(sk_layout_new("job", 0, 1, SK_IMAGE_PRIMARY, items,
				   ITEMS, &l, &err), 0, "%s", err.text);
	return l;
}

/* The reference: each chunk of each entry on its own. */
static uint64_t *sums_of(const struct sk_layout *l, const char *data)
{
	uint64_t *sums = calloc(l->n_sums + 1u, sizeof(*sums));

	for (uint32_t i = 0; i < l->n_entries; i++) {
		const struct sk_entry *e = &l->entries[i];
		const char *at = data + e->offset - l->header_bytes;

		for (uint32_t c = 0; c < e->n_sums; c++) {
			uint64_t from = c * SK_SUM_CHUNK;

			sums[e->first_sum + c] = sk_xxh3(at + from,
				(size_t)sk_min_i64((int64_t)(e->bytes - from),
						   SK_SUM_CHUNK));
		}
	}
	return sums;
}

static int pass_by(const struct sk_layout *l, const uint64_t *sums,
		   const char *data, uint64_t *state, struct sk_err *err)
{
	uint64_t bytes = l->image_bytes - l->header_bytes, at = 0;
	uint64_t most = 1 + draw(state, 3 << 20);
	struct sk_sums_walk *walk = sk_sums_new(l, sums);
	int r = 0;

	cr_assert(walk);
	while (at < bytes && r == 0) {
		uint64_t n = 1 + draw(state, most);

		n = n < bytes - at ? n : bytes - at;
		r = sk_sums_add(walk, data + at, (size_t)n, err);
		at += n;
	}
	cr_assert(r ? sk_sums_wrong(walk) - 1 < l->n_entries :
		      !sk_sums_wrong(walk));
	sk_sums_free(walk);
	return r;
}

static const char *owner_of(const struct sk_layout *l, uint64_t at)
{
	for (uint32_t i = 0; i < l->n_entries; i++) {
		const struct sk_entry *e = &l->entries[i];

		if (at >= e->offset && at < e->offset + e->bytes)
			return l->items[e->item].spec.name;
	}
	return NULL;
}

Test(sums, of_any_pieces_are_those_of_the_whole)
{
	for (uint64_t seed = 1; seed <= 40; seed++) {
		uint64_t state = seed * 77, bytes, at;
		struct sk_layout *l = random_layout(&state);
		struct sk_err err = { "" };
		uint64_t *sums;
		char *data, name[16];

		bytes = l->image_bytes - l->header_bytes;
		data = malloc(bytes + 1);
		for (uint64_t i = 0; i < bytes; i++)
			data[i] = (char)(i * 31 + seed);
		sums = sums_of(l, data);
		cr_assert_eq(pass_by(l, sums, data, &state, &err), 0, "%s",
			     err.text);
		if (bytes) {
			at = draw(&state, bytes);
			data[at] ^= 1;
			cr_assert_eq(pass_by(l, sums, data, &state, &err),
				     -EBADMSG);
			(void)snprintf(name, sizeof(name), "\"%s\"",
				       owner_of(l, at + l->header_bytes));
			cr_assert(strstr(err.text, name), "%s: %s", name,
				  err.text);
		}
		free(data);
		free(sums);
		sk_layout_free(l);
	}
}
