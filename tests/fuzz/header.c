/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The input is a header's JSON, which is given its length, its padding and, if
 * it is stamped, its checksum, or (first byte 0) a header as it is. What is
 * parsed must be whole, and the same when it is recalled, or stamped and read
 * back, by who has the layout and by who has its digest alone.
 */
#include "fuzz/fuzz.h"

#include "bytes/checksum.h"
#include "layout/layout.h"
#include "layout/recall.h"

#define PAGE 4096u

/* docs/format.md: of all bytes, with its own digits as zeros. */
static void make_right(char *header, size_t bytes)
{
	static const char key[] = "\\\"xxh3\\\":\\\"";
	char *at = memmem(header, bytes, key, strlen(key)), digits[17];

	if (!at || (size_t)(header + bytes - at) < strlen(key) + 16)
		return;
	at += strlen(key);
	if (at[0] == ' ')
		return;		/* a template */
	memset(at, '0', 16);
	(void)snprintf(digits, sizeof(digits), "%016llx",
		       (unsigned long long)sk_xxh3(header, bytes));
	memcpy(at, digits, 16);
}

/* malloc'ed. */
static char *header_of(const uint8_t *json, size_t n, size_t *ret_bytes)
{
	size_t bytes = (8 + n + PAGE - 1) / PAGE * PAGE;
	uint64_t length = bytes - 8;
	char *header = malloc(bytes);

	FUZZ_CHECK(header);
	memset(header, ' ', bytes);
	memcpy(header, &length, 8);
	if (n)
		memcpy(header + 8, json, n);
	make_right(header, bytes);
	*ret_bytes = bytes;
	return header;
}

/* Entries fill the image from the header to its end, checksums in order. */
static void check_entries(const struct sk_layout *l)
{
	uint64_t at = l->header_bytes;
	uint32_t sums = 0;

	for (uint32_t i = 0; i < l->n_entries; i++) {
		const struct sk_entry *e = &l->entries[i];
		uint64_t pieces = (e->bytes + SK_SUM_CHUNK - 1) / SK_SUM_CHUNK;

		FUZZ_CHECK(e->offset == at && e->item < l->n_items);
		FUZZ_CHECK(e->first_sum == sums);
		FUZZ_CHECK(e->n_sums == (pieces ? pieces : 1));
		at += e->bytes;
		sums += e->n_sums;
	}
	FUZZ_CHECK(at == l->image_bytes && sums == l->n_sums);
}

static void check_read(const struct sk_layout *l, const char *header,
		       const struct sk_stamp *in, struct sk_stamp *out)
{
	struct sk_err err = { "" };

	memset(out->sums, 0, l->n_sums * 8);
	FUZZ_CHECK(sk_layout_read_stamp(l, header, out, &err) == 0);
	FUZZ_CHECK(out->run == 3 && out->run_id == 4 && out->step == 5);
	FUZZ_CHECK(memcmp(in->sums, out->sums, l->n_sums * 8) == 0);
}

static void check_stamp(struct sk_layout *l)
{
	struct sk_stamp in = { .run = 3, .run_id = 4, .step = 5 }, out = { 0 };
	struct sk_layout *again = NULL, *sketch = sk_layout_sketch(l, l);
	struct sk_err err = { "" };
	char *header = malloc(l->header_bytes);

	in.sums = calloc(l->n_sums + 1, sizeof(*in.sums));
	out.sums = calloc(l->n_sums + 1, sizeof(*out.sums));
	FUZZ_CHECK(header && in.sums && out.sums && sketch);
	for (uint32_t i = 0; i < l->n_sums; i++)
		in.sums[i] = i * UINT64_C(0x9e3779b97f4a7c15);
	sk_layout_stamp(l, &in, header);
	check_read(l, header, &in, &out);
	check_read(sketch, header, &in, &out);
	FUZZ_CHECK(sk_layout_parse(header, l->header_bytes, l->image_bytes,
				   &again, &err) == 0);
	FUZZ_CHECK(sk_digest_equal(&again->digest, &l->digest));
	sk_layout_free(again);
	/* One bit of it, and it is nobody's. */
	header[8 + l->digest.bytes[0] % 64] ^= 1;
	FUZZ_CHECK(sk_layout_read_stamp(l, header, &out, &err) < 0);
	FUZZ_CHECK(sk_layout_read_stamp(sketch, header, &out, &err) < 0);
	sk_layout_free(sketch);
	free(header);
	free(in.sums);
	free(out.sums);
}

static void check_recalled(const struct sk_layout *l, const char *header,
			   size_t bytes)
{
	struct sk_recall *recall = sk_recall_new();
	struct sk_err err = { "" };

	FUZZ_CHECK(recall);
	for (int i = 0; i < 2; i++) {
		struct sk_layout *got = NULL;

		FUZZ_CHECK(sk_recall_get(recall, l->job, l->rank, l->kind,
					 header, bytes, 0, &got, &err) == 0);
		FUZZ_CHECK(sk_digest_equal(&got->digest, &l->digest));
		sk_layout_free(got);
	}
	(void)sk_recall_free(recall);
}

/* It is not that of a layout which has another digest. */
static void check_foreign(const char *header, size_t bytes)
{
	const struct sk_item item = { .spec = { .name = "w", .ndim = 1,
						.dtype = SK_U8,
						.shape = { 5 << 20 } } };
	struct sk_layout *l = NULL, *sketch;
	struct sk_stamp stamp = { 0 };
	struct sk_err err = { "" };

	FUZZ_CHECK(sk_layout_new("job", 0, 1, SK_IMAGE_PRIMARY, &item, 1, &l,
				 &err) == 0);
	sketch = sk_layout_sketch(l, l);
	FUZZ_CHECK(sketch);
	sketch->header_bytes = bytes;
	sketch->digest.bytes[0] ^= 1;
	FUZZ_CHECK(sk_layout_read_stamp(sketch, header, &stamp, &err) ==
		   -EBADMSG);
	sk_layout_free(sketch);
	sk_layout_free(l);
}

static void try_header(const char *header, size_t bytes)
{
	struct sk_layout *l = NULL;
	struct sk_err err = { "" };
	int r = sk_layout_parse(header, bytes, 0, &l, &err);

	check_foreign(header, bytes);

	FUZZ_CHECK(r == 0 || r == -EBADMSG || r == -ENODATA || r == -ENOMEM);
	FUZZ_CHECK(r == 0 || r == -ENOMEM || err.text[0]);
	if (r < 0)
		return;
	check_entries(l);
	check_stamp(l);
	check_recalled(l, header, bytes);
	sk_layout_free(l);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	size_t bytes = size ? size - 1 : 0;
	char *header;

	if (size && !data[0]) {
		header = malloc(bytes + 1);
		FUZZ_CHECK(header);
		if (bytes)
			memcpy(header, data + 1, bytes);
	} else {
		header = header_of(data, size, &bytes);
	}
	try_header(header, bytes);
	free(header);
	return 0;
}
