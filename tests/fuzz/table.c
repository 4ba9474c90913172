/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of slots as another agent left it, or something else did: bytes of
 * it are changed by the input, and checksums made right again where it says
 * so. What is read is in bounds; what is taken and put after that is there.
 */
#include "fuzz/fuzz.h"

#include <unistd.h>

#include "base/util.h"
#include "bytes/checksum.h"
#include "keeper/table.h"

#define RECORDS 3
#define COPY_BYTES (16 + sizeof(struct table_record))
#define BYTES (SK_PAGE + RECORDS * 2 * COPY_BYTES)

static void make_right(uint8_t *bytes)
{
	for (int i = 0; i < RECORDS * 2; i++) {
		uint8_t *copy = bytes + SK_PAGE + (size_t)i * COPY_BYTES;
		uint64_t sum = sk_xxh3(copy + 8, COPY_BYTES - 8);

		memcpy(copy, &sum, 8);
	}
}

static void change(struct feed *f, int fd)
{
	static uint8_t bytes[BYTES];
	bool right = feed_byte(f) & 1;

	FUZZ_CHECK(pread(fd, bytes, BYTES, 0) == BYTES);
	while (f->left) {
		size_t at = feed_byte(f) | (size_t)feed_byte(f) << 8;

		/* Most of the first page is nothing. */
		if (at >= 64)
			at += SK_PAGE - 64;
		bytes[at % BYTES] = feed_byte(f);
	}
	if (right)
		make_right(bytes);
	FUZZ_CHECK(pwrite(fd, bytes, BYTES, 0) == BYTES);
}

static void use(struct table *t)
{
	struct table_record got, mine = { .step = 77, .use = TABLE_SEALED };
	uint32_t at;

	for (uint32_t i = 0; i < table_used(t); i++) {
		if (!table_get(t, i, &got))
			continue;
		FUZZ_CHECK(memchr(got.job, 0, sizeof(got.job)));
	}
	at = table_take(t, &mine.serial);
	if (at == TABLE_NONE)
		return;
	FUZZ_CHECK(at < TABLE_RECORDS);
	table_put(t, at, &mine);
	FUZZ_CHECK(table_get(t, at, &got));
	FUZZ_CHECK(!memcmp(&got, &mine, sizeof(got)));
	table_drop(t, at);
	FUZZ_CHECK(!table_get(t, at, &got));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const struct sk_os *os = sk_os_linux();
	struct feed f = { data, size };
	struct table t, next = TABLE_NULL;
	struct sk_err err = { "" };
	int fd, r;

	FUZZ_CHECK(!table_new(os, &t, &err));
	for (uint32_t i = 0; i < RECORDS; i++) {
		struct table_record one = { .step = i, .use = TABLE_SEALED,
					    .job = "job" };
		uint32_t at = table_take(&t, &one.serial);

		FUZZ_CHECK(at == i);
		table_put(&t, at, &one);
	}
	fd = dup(t.fd);
	FUZZ_CHECK(fd >= 0);
	change(&f, fd);
	table_close(os, &t);
	r = table_adopt(os, fd, &next, &err);
	FUZZ_CHECK(r == 0 || err.text[0]);
	if (r == 0)
		use(&next);
	else
		(void)close(fd);
	table_close(os, &next);
	return 0;
}
