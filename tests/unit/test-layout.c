/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "checksum.h"
#include "coverage.h"
#include "dtype.h"
#include "layout.h"
#include "util.h"

#define RANKS 4

static struct sk_mesh *mesh_2x2(void)
{
	const char *const names[] = { "dp", "tp" };
	struct sk_mesh *m = NULL;

	cr_assert_eq(sk_mesh_new(2, (int64_t[]){ 2, 2 }, NULL, names, &m,
				 NULL), 0);
	return m;
}

/* Every dtype, a quoted name, a scalar, an empty shard, blobs. */
static uint32_t describe(const struct sk_mesh *m, struct sk_item *items,
			 char names[][16])
{
	uint32_t n = 0;

	for (int d = SK_BOOL; d < SK_DTYPE_COUNT; d++) {
		(void)snprintf(names[n], 16, "t%d", d);
		items[n] = (struct sk_item){ .spec = {
			.name = names[n], .dtype = (enum sk_dtype)d, .ndim = 2,
			.shape = { 6, 16 }, .mesh = m,
			.placements = { SK_SHARD(0), SK_SHARD(1) } } };
		n++;
	}
	items[n++] = (struct sk_item){ .spec = {
		.name = "quo\"te\\ \xc3\xa4", .dtype = SK_F32, .ndim = 1,
		.shape = { 3 }, .mesh = m,
		.placements = { SK_SHARD(0), SK_SHARD(0) } } };
	items[n++] = (struct sk_item){ .spec = {
		.name = "scalar", .dtype = SK_F64, .mesh = m,
		.placements = { SK_REPLICATE, SK_REPLICATE } } };
	items[n++] = (struct sk_item){ .spec = {
		.name = "nothing", .dtype = SK_F32, .ndim = 2,
		.shape = { 0, 4 }, .mesh = m,
		.placements = { SK_SHARD(0), SK_REPLICATE } } };
	items[n++] = (struct sk_item){ .kind = SK_ITEM_BLOB, .spec = {
		.name = "config", .dtype = SK_U8, .ndim = 1,
		.shape = { 100 } } };
	items[n++] = (struct sk_item){ .kind = SK_ITEM_BLOB_LOCAL, .spec = {
		.name = "rng", .dtype = SK_U8, .ndim = 1, .shape = { 8 } } };
	return n;
}

static void make(struct sk_layout *l[RANKS][2])
{
	struct sk_mesh *m = mesh_2x2();
	struct sk_item items[40];
	struct sk_err err = { "" };
	char names[40][16];
	uint32_t n = describe(m, items, names);

	for (int r = 0; r < RANKS; r++)
		for (int k = 0; k < 2; k++)
			cr_assert_eq(sk_layout_new("job", r, RANKS,
						   (enum sk_image_kind)k,
						   items, n, &l[r][k], &err),
				     0, "%s", err.text);
	sk_mesh_unref(m);
}

static void drop(struct sk_layout *l[RANKS][2])
{
	for (int r = 0; r < RANKS; r++)
		for (int k = 0; k < 2; k++)
			sk_layout_free(l[r][k]);
}

Test(layout, packs_without_holes_behind_a_page)
{
	struct sk_layout *l[RANKS][2];

	make(l);
	for (int r = 0; r < RANKS; r++) {
		uint64_t at = l[r][0]->header_bytes;

		cr_assert_eq(at % 4096, 0);
		for (uint32_t i = 0; i < l[r][0]->n_entries; i++) {
			cr_assert_eq(l[r][0]->entries[i].offset, at);
			at += l[r][0]->entries[i].bytes;
		}
		cr_assert_eq(at, l[r][0]->image_bytes);
	}
	drop(l);
}

Test(layout, each_box_has_one_primary)
{
	struct sk_layout *l[RANKS][2];
	int64_t scalar[1] = { 0 };
	int primaries = 0, replicas = 0;

	make(l);
	for (int r = 0; r < RANKS; r++) {
		primaries += sk_layout_find(l[r][0], SK_ITEM_TENSOR, "scalar",
					    scalar) != NULL;
		replicas += sk_layout_find(l[r][1], SK_ITEM_TENSOR, "scalar",
					   scalar) != NULL;
	}
	cr_assert_eq(primaries, 1);
	cr_assert_eq(replicas, RANKS - 1);
	drop(l);
}

Test(layout, reads_back_what_it_wrote)
{
	struct sk_layout *l[RANKS][2], *back = NULL;
	struct sk_err err = { "" };

	make(l);
	for (int r = 0; r < RANKS; r++)
		for (int k = 0; k < 2; k++) {
			struct sk_layout *a = l[r][k];
			uint64_t *sums = calloc(a->n_sums + 1, 8);
			char *header = malloc(a->header_bytes);
			struct sk_stamp s = { 7, 1234, sums }, t = { 0 };

			for (uint32_t i = 0; i < a->n_sums; i++)
				sums[i] = 0x1234567890abcdefu * (i + 1);
			sk_layout_stamp(a, &s, header);
			cr_assert_eq(sk_layout_parse(header, a->header_bytes,
						     a->image_bytes, &back,
						     &err), 0, "%s", err.text);
			cr_assert(sk_digest_equal(&a->digest, &back->digest));
			t.sums = calloc(a->n_sums + 1, 8);
			cr_assert_eq(sk_layout_read_stamp(back, header, &t,
							  &err), 0);
			cr_assert_eq(t.run, 7);
			cr_assert_eq(t.step, 1234);
			cr_assert_eq(memcmp(t.sums, sums, a->n_sums * 8u), 0);
			free(t.sums);
			free(sums);
			free(header);
			sk_layout_free(back);
		}
	drop(l);
}

/* Whatever byte of a header is another, it is refused and nothing breaks. */
Test(layout, refuses_damaged_headers)
{
	struct sk_layout *l[RANKS][2], *back = NULL;
	struct sk_err err = { "" };
	char *header;
	uint64_t n;

	make(l);
	n = l[0][0]->header_bytes;
	header = malloc(n);
	for (uint64_t at = 0; at < n; at += 7) {
		memcpy(header, l[0][0]->header, n);
		header[at] = (char)(header[at] ^ 0x15);
		if (sk_layout_parse(header, n, 0, &back, &err) == 0) {
			/* Another name, say: then of a layout that is
			 * just what these bytes describe. */
			struct sk_stamp s = { .sums = calloc(
				back->n_sums + 1, 8) };

			cr_assert_eq(sk_layout_read_stamp(back, header, &s,
							  &err), 0);
			free(s.sums);
			sk_layout_free(back);
		}
	}
	for (uint64_t cut = 0; cut < n; cut += 101) {
		char *less = malloc(cut + 1);

		memcpy(less, l[0][0]->header, cut);
		cr_assert_lt(sk_layout_parse(less, cut, 0, &back, &err), 0);
		free(less);
	}
	free(header);
	drop(l);
}

Test(layout, refuses_bad_descriptions)
{
	struct sk_item two[2] = {
		{ .spec = { .name = "w", .dtype = SK_F32, .ndim = 1,
			    .shape = { 4 } } },
		{ .spec = { .name = "w", .dtype = SK_F32, .ndim = 1,
			    .shape = { 4 } } },
	};
	struct sk_layout *l = NULL;
	struct sk_err err = { "" };

	cr_assert_eq(sk_layout_new("j", 0, 1, 0, two, 2, &l, &err), -EINVAL);
	cr_assert(strstr(err.text, "\"w\""));
	two[0].spec.name = "shardkeep.w";
	cr_assert_eq(sk_layout_new("j", 0, 1, 0, two, 1, &l, &err), -EINVAL);
	two[0].spec.name = "w";
	cr_assert_eq(sk_layout_new("../j", 0, 1, 0, two, 1, &l, &err),
		     -EINVAL);
	cr_assert_eq(sk_layout_new("j", 1, 1, 0, two, 1, &l, &err), -EINVAL);
	two[0].spec.dtype = SK_F4;
	two[0].spec.shape[0] = 3;
	cr_assert_eq(sk_layout_new("j", 0, 1, 0, two, 1, &l, &err), -EINVAL);
}

Test(coverage, names_what_is_missing)
{
	struct sk_coverage_image im[2 * RANKS];
	struct sk_layout *l[RANKS][2];
	struct sk_err err = { "" };
	size_t n = 0;

	make(l);
	for (int r = 0; r < RANKS; r++)
		im[n++] = (struct sk_coverage_image){ l[r][0], true };
	cr_assert_eq(sk_coverage_check(im, n, RANKS, &err), 0, "%s", err.text);
	im[2].present = false;
	cr_assert_eq(sk_coverage_check(im, n, RANKS, &err), -ENODATA);
	cr_assert(strstr(err.text, "of rank 2"), "%s", err.text);
	cr_assert_eq(sk_coverage_check(im, 3, RANKS, &err), -ENODATA);
	drop(l);
}

Test(checksum, is_xxh3)
{
	/* Of the empty input and of "a", as xxhsum -H3 prints them. */
	cr_assert_eq(sk_xxh3("", 0), 0x2d06800538d394c2u);
	cr_assert_eq(sk_xxh3("a", 1), 0xe6c632b61e964e1fu);
}

Test(checksum, pieces_give_the_same_value)
{
	static unsigned char data[100000];
	struct sk_xxh3_stream s;

	for (size_t i = 0; i < sizeof(data); i++)
		data[i] = (unsigned char)(i * 7 + i / 251);
	for (size_t piece = 1; piece < 70000; piece = piece * 3 + 1) {
		sk_xxh3_begin(&s);
		for (size_t at = 0; at < sizeof(data); at += piece)
			sk_xxh3_add(&s, data + at, sizeof(data) - at < piece ?
				    sizeof(data) - at : piece);
		cr_assert_eq(sk_xxh3_end(&s), sk_xxh3(data, sizeof(data)));
	}
}
