/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "bytes/checksum.h"
#include "layout/coverage.h"
#include "tensor/dtype.h"
#include "layout/private.h"
#include "layout/recall.h"
#include "base/util.h"

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

/* For whoever reads such files without us. */
Test(layout, says_where_tensors_lie)
{
	struct sk_layout *l[RANKS][2];
	char words[160];

	make(l);
	for (uint32_t i = 0; i < l[1][0]->n_entries; i++) {
		const struct sk_entry *e = &l[1][0]->entries[i];
		uint64_t at = e->offset - l[1][0]->header_bytes;

		(void)snprintf(words, sizeof(words),
			       "\"data_offsets\":[%llu,%llu]",
			       (unsigned long long)at,
			       (unsigned long long)(at + e->bytes));
		cr_assert(memmem(l[1][0]->header, l[1][0]->header_bytes, words,
				 strlen(words)), "%s", words);
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
			struct sk_stamp t = { 0 }, s = {
				.run = 7, .run_id = 0xfedcba9876543210u,
				.step = 1234, .sums = sums };


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
			cr_assert_eq(t.run_id, 0xfedcba9876543210u);
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
			cr_assert_eq(memcmp(back->header, header, n), 0);
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

/* A stamped header as it lies on disk, of one small tensor. */
static char *small_header(struct sk_layout **ret_layout)
{
	struct sk_item item = { .spec = { .name = "w", .dtype = SK_F32,
					  .ndim = 1, .shape = { 40 } } };
	uint64_t sum = 0x1234567890abcdefu;
	const struct sk_stamp stamp = { .run = 11, .run_id = 0xabcdef0123456789,
					.step = 900, .sums = &sum };
	struct sk_err err = { "" };
	char *header;

	cr_assert_eq(sk_layout_new("job", 0, 1, SK_IMAGE_PRIMARY, &item, 1,
				   ret_layout, &err), 0, "%s", err.text);
	header = malloc((*ret_layout)->header_bytes);
	sk_layout_stamp(*ret_layout, &stamp, header);
	return header;
}

/* Whichever bit flips, it is not taken for another snapshot's header, nor for
 * one of another tensor; by whichever way it is read. */
Test(layout, sees_each_flipped_bit_of_a_stamped_header, .timeout = 300)
{
	struct sk_layout *l = NULL, *back = NULL;
	char *header = small_header(&l);
	struct sk_recall *recall = sk_recall_new();
	struct sk_layout *sketch = sk_layout_sketch(l, l);
	uint64_t sum;
	struct sk_stamp stamp = { .sums = &sum };
	int r;

	sk_recall_add(recall, l);
	cr_assert_eq(sk_layout_read_stamp(l, header, &stamp, NULL), 0);
	for (uint64_t bit = 0; bit < 8 * l->header_bytes; bit++) {
		header[bit / 8] ^= (char)(1 << bit % 8);
		cr_assert_eq(sk_layout_read_stamp(l, header, &stamp, NULL),
			     -EBADMSG, "bit %d", (int)bit);
		cr_assert_eq(sk_layout_read_stamp(sketch, header, &stamp,
						  NULL), -EBADMSG, "bit %d",
			     (int)bit);
		r = sk_layout_parse(header, l->header_bytes, 0, &back, NULL);
		cr_assert(r == -EBADMSG || r == -ENODATA, "bit %d: %d",
			  (int)bit, r);
		r = sk_recall_get(recall, "job", 0, SK_IMAGE_PRIMARY, header,
				  l->header_bytes, 0, &back, NULL);
		cr_assert(r == -EBADMSG || r == -ENODATA, "bit %d: %d",
			  (int)bit, r);
		header[bit / 8] ^= (char)(1 << bit % 8);
	}
	cr_assert_eq(sk_layout_read_stamp(l, header, &stamp, NULL), 0);
	cr_assert_eq(sk_layout_read_stamp(sketch, header, &stamp, NULL), 0);
	sk_layout_free(sketch);
	sk_recall_free(recall);
	sk_layout_free(l);
	free(header);
}

static char *behind(char *header, size_t n, const char *word)
{
	char *at = memmem(header, n, word, strlen(word));

	cr_assert(at);
	return at + strlen(word);
}

/* Its checksum is right, and a number is none. */
Test(layout, a_stamp_that_is_no_number_is_not_its)
{
	struct sk_layout *l = NULL;
	char *header = small_header(&l), *sum_at, digits[17];
	struct sk_layout *sketch = sk_layout_sketch(l, l);
	const struct sk_layout *both[] = { l, sketch };
	uint64_t sum;
	struct sk_stamp stamp = { .sums = &sum };

	sum_at = behind(header, l->header_bytes, "\\\"xxh3\\\":\\\"");
	*behind(header, l->header_bytes, "\\\"run\\\":") = 'x';
	memset(sum_at, '0', 16);
	(void)snprintf(digits, sizeof(digits), "%016" PRIx64,
		       sk_xxh3(header, l->header_bytes));
	memcpy(sum_at, digits, 16);
	for (int i = 0; i < 2; i++) {
		struct sk_err err = { "" };

		cr_assert_eq(sk_layout_read_stamp(both[i], header, &stamp,
						  &err), -EBADMSG);
		cr_assert(strstr(err.text, "not that of its layout"), "%s",
			  err.text);
	}
	sk_layout_free(sketch);
	sk_layout_free(l);
	free(header);
}

Test(layout, a_template_has_no_stamp)
{
	struct sk_layout *l = NULL;
	char *header = small_header(&l);
	struct sk_layout *sketch;
	uint64_t sum;
	struct sk_stamp stamp = { .sums = &sum };
	struct sk_err err = { "" };

	cr_assert_eq(sk_layout_read_stamp(l, l->header, &stamp, &err),
		     -EBADMSG);
	cr_assert(strstr(err.text, "not stamped"), "%s", err.text);
	sketch = sk_layout_sketch(l, l);
	cr_assert_eq(sk_layout_read_stamp(sketch, l->header, &stamp, &err),
		     -EBADMSG);
	sk_layout_free(sketch);
	sk_layout_free(l);
	free(header);
}

/* What an older Shardkeep wrote is refused, and the sentence says why. */
Test(layout, refuses_other_versions)
{
	struct sk_layout *l = NULL, *back = NULL;
	char *header = small_header(&l), *at;
	struct sk_err err = { "" };

	at = memmem(header, l->header_bytes, "version\\\":3", 11);
	cr_assert(at);
	at[10] = '1';
	cr_assert_eq(sk_layout_parse(header, l->header_bytes, 0, &back, &err),
		     -EBADMSG);
	cr_assert(strstr(err.text, "format version 1, this program reads 3 "
			      "and 4"),
		  "%s", err.text);
	sk_layout_free(l);
	free(header);
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

/* Alone and in all: an image's length is counted without an end. */
Test(layout, refuses_states_beyond_any_memory)
{
	struct sk_item items[2] = {
		{ .spec = { .name = "v", .dtype = SK_U8, .ndim = 1,
			    .shape = { (INT64_C(1) << 50) - 4096 } } },
		{ .spec = { .name = "w", .dtype = SK_U8, .ndim = 1,
			    .shape = { 8192 } } },
	};
	struct sk_layout *l = NULL;
	struct sk_err err = { "" };

	cr_assert_eq(sk_layout_new("j", 0, 1, 0, items, 2, &l, &err), -E2BIG);
	cr_assert(strstr(err.text, "rank 0 is too large"), "%s", err.text);
	items[0].spec.shape[0] = INT64_C(1) << 51;
	err.text[0] = 0;
	cr_assert_eq(sk_layout_new("j", 0, 1, 0, items, 1, &l, &err), -E2BIG);
	cr_assert(strstr(err.text, "rank 0 is too large"), "%s", err.text);
}

/* A header of a tensor of 2 TiB would have its 2 million checksums: one that
 * has not is told by its length, before memory is taken for them. However it
 * is written: as ours, and as any JSON. */
Test(layout, refuses_more_than_a_header_has_room_for)
{
	static const char *const before[] = { "", " " };

	for (size_t i = 0; i < SK_ARRAY_SIZE(before); i++) {
		struct sk_layout *l = NULL;
		struct sk_err err = { "" };
		char header[1024] = "";
		uint64_t n;

		n = (uint64_t)snprintf(header + 8, sizeof(header) - 8,
			SK_HEADER_BEGIN "{}" SK_HEADER_MIDDLE
			"{\\\"version\\\":%d,\\\"xxh3\\\":\\\"%016d\\\","
			"%s\\\"job\\\":\\\"j\\\",\\\"run\\\":%20d,"
			"\\\"rank\\\":0,\\\"world\\\":1,"
			"\\\"kind\\\":\\\"primary\\\",\\\"meshes\\\":[],"
			"\\\"items\\\":[{\\\"name\\\":\\\"w\\\","
			"\\\"kind\\\":\\\"tensor\\\",\\\"dtype\\\":\\\"U8\\\","
			"\\\"shape\\\":[%lld],\\\"boxes\\\":[[[0,%lld]]]}]}\"}}",
			SK_FORMAT_VERSION, 0, before[i], 1, 1ll << 41,
			1ll << 41);
		memcpy(header, &n, sizeof(n));
		cr_assert_eq(sk_layout_parse(header, n + 8, 0, &l, &err),
			     -EBADMSG);
		cr_assert(strstr(err.text, "rank 0 is too large: its checksums"
				 " alone take more than the"), "%s", err.text);
	}
}

/* A length and nothing behind it: it is that which is told. */
Test(layout, a_header_of_eight_bytes_is_cut_short)
{
	const unsigned char length[8] = { 100 };
	struct sk_layout *l = NULL;
	struct sk_err err = { "" };

	cr_assert_eq(sk_layout_parse(length, 7, 0, &l, &err), -EBADMSG);
	cr_assert(strstr(err.text, "7 bytes are no header"), "%s", err.text);
	cr_assert_eq(sk_layout_parse(length, 8, 0, &l, &err), -EBADMSG);
	cr_assert(strstr(err.text, "cut short: 8 of"), "%s", err.text);
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

/* The header of one rank's box, said by itself, of a tensor in halves. */
static char *header_of_half(struct sk_mesh *mesh, struct sk_box box,
			    uint64_t *ret_bytes)
{
	struct sk_item item = { .explicit_boxes = true, .n_boxes = 1,
				.boxes = &box, .spec = {
		.name = "w", .dtype = SK_U8, .ndim = 1, .shape = { 4 },
		.mesh = mesh, .placements = { SK_SHARD(0), SK_REPLICATE } } };
	struct sk_layout *l = NULL;
	struct sk_err err = { "" };
	char *header;

	cr_assert_eq(sk_layout_new("job", 0, RANKS, SK_IMAGE_PRIMARY, &item,
				   1, &l, &err), 0, "%s", err.text);
	*ret_bytes = l->header_bytes;
	header = malloc(l->header_bytes);
	memcpy(header, l->header, l->header_bytes);
	sk_layout_free(l);
	return header;
}

/* Takes @text out and fills up at the end. */
static void take_out(char *header, uint64_t bytes, const char *text)
{
	char *at = memmem(header, bytes, text, strlen(text));
	char *end = header + bytes;

	cr_assert_not_null(at);
	memmove(at, at + strlen(text),
		(size_t)(end - at) - strlen(text));
	memset(end - strlen(text), ' ', strlen(text));
}

/* Boxes that nobody said are what placements give, whatever a file states:
 * who takes them for shards believes that they never overlap. */
Test(layout, refuses_boxes_that_do_not_follow)
{
	struct sk_mesh *m = mesh_2x2();

	for (int from = 0; from <= 1; from++) {
		struct sk_layout *back = NULL;
		struct sk_err err = { "" };
		struct sk_box box = { { from }, { 2 } };
		uint64_t bytes;
		char *header = header_of_half(m, box, &bytes);

		take_out(header, bytes, "\\\"explicit\\\":true,");
		cr_assert_eq(sk_layout_parse(header, bytes, 0, &back, &err),
			     from ? -EBADMSG : 0, "%s", err.text);
		sk_layout_free(back);
		free(header);
	}
	sk_mesh_unref(m);
}

/* ---- meshes ---- */

static uint64_t round_trip(const struct sk_mesh *mesh, int32_t world)
{
	struct sk_item item = { .spec = { .name = "w", .dtype = SK_U8,
		.ndim = 1, .shape = { 4 * (int64_t)world }, .mesh = mesh,
		.placements = { SK_SHARD(0) } } };
	struct sk_layout *l = NULL, *back = NULL;
	struct sk_err err = { "" };
	uint64_t bytes;

	cr_assert_eq(sk_layout_new("job", 1, world, SK_IMAGE_PRIMARY, &item,
				   1, &l, &err), 0, "%s", err.text);
	cr_assert_eq(sk_layout_parse(l->header, l->header_bytes,
				     l->image_bytes, &back, &err), 0, "%s",
		     err.text);
	cr_assert(sk_mesh_equal(back->items[0].spec.mesh, mesh));
	bytes = l->header_bytes;
	sk_layout_free(l);
	sk_layout_free(back);
	return bytes;
}

/* Ranks that count up evenly take the same few bytes, however many. */
Test(layout, meshes_of_any_ranks_read_back)
{
	for (int32_t world = 64; world <= 16384; world *= 16) {
		int32_t *ranks = calloc((size_t)world, sizeof(*ranks));
		struct sk_mesh *m = NULL;

		/* Every other, from 1; then all, the halves interleaved; then
		 * as they come. */
		for (int kind = 0; kind < 3; kind++) {
			int64_t n = kind ? world : world / 2;
			uint64_t bytes;

			for (int32_t i = 0; i < n; i++)
				ranks[i] = kind == 0 ? 1 + 2 * i :
					   kind == 1 ? i % 2 * world / 2 +
						       i / 2 :
					   (i * 37 + 11) % world;
			cr_assert_eq(sk_mesh_new(1, &n, ranks, NULL, &m,
						 NULL), 0);
			bytes = round_trip(m, world);
			cr_assert_eq(bytes == 4096,
				     kind < 2 || world < 1024);
			sk_mesh_unref(m);
		}
		free(ranks);
	}
}

/* One mesh has one form; and none holds a rank twice. */
Test(layout, refuses_steps_that_we_do_not_write)
{
	static const struct {
		const char *ours, *theirs;
		int r;
	} cases[] = {
		{ "[[2,8],[2,1]]", "[[2,8],[2,1]]", 0 },
		{ "[[2,8],[2,1]]", "[[2,1],[2,1]]", -EBADMSG },
		{ "[[2,8],[2,1]]", "[[2,0],[2,1]]", -EBADMSG },
		{ "[[2,8],[2,1]]", "[[4,8],[1,1]]", -EBADMSG },
		{ "[[2,8],[2,1]]", "[[9,8],[2,1]]", -EBADMSG },
		{ "[[2,8],[2,1]]", "[[2,8],2,1 ] ", -EBADMSG },
		{ "first", "fIrst", -EBADMSG },
	};
	const int32_t ranks[] = { 0, 1, 8, 9 };
	struct sk_mesh *m = NULL;
	struct sk_item item = { .spec = { .name = "w", .dtype = SK_U8,
		.ndim = 1, .shape = { 4 },
		.placements = { SK_SHARD(0) } } };
	struct sk_layout *l = NULL, *back = NULL;

	cr_assert_eq(sk_mesh_new(1, (int64_t[]){ 4 }, ranks, NULL, &m, NULL),
		     0);
	item.spec.mesh = m;
	cr_assert_eq(sk_layout_new("job", 0, 16, SK_IMAGE_PRIMARY, &item, 1,
				   &l, NULL), 0);
	for (size_t i = 0; i < SK_ARRAY_SIZE(cases); i++) {
		_cleanup_free_ char *h = malloc(l->header_bytes);
		char *at;

		cr_assert_not_null(h);
		memcpy(h, l->header, l->header_bytes);
		at = memmem(h, l->header_bytes, cases[i].ours,
			    strlen(cases[i].ours));
		cr_assert_not_null(at, "%s", cases[i].ours);
		memcpy(at, cases[i].theirs, strlen(cases[i].theirs));
		cr_assert_eq(sk_layout_parse(h, l->header_bytes, 0, &back,
					     NULL), cases[i].r, "%zu", i);
		if (!cases[i].r)
			sk_layout_free(back);
	}
	sk_layout_free(l);
	sk_mesh_unref(m);
}
