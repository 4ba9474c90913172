/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of slots, torn: whatever part of a write was done when its writer
 * was killed, in whatever order, a record is what it was or what it was to be.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "agent/rig.h"
#include "fault-os.h"
#include "keeper/table.h"
#include "support/files.h"

#define BYTES 8192	/* of the table, in which its first records lie */
#define WORDS (BYTES / 8)
#define SUBSETS 20000

static struct table_record record_of(uint64_t serial, int64_t step)
{
	return (struct table_record){
		.serial = serial, .state = 7, .run = 1, .run_id = 99,
		.step = step, .last_step = step, .uid = 5, .rank = 3,
		.world = 4, .use = TABLE_SEALED, .job = "torn" };
}

static void read_bytes(const struct table *t, void *buf)
{
	CHECK(pread(t->fd, buf, BYTES, 0) == BYTES, "pread");
}

static void write_bytes(const struct table *t, const void *buf)
{
	CHECK(pwrite(t->fd, buf, BYTES, 0) == BYTES, "pwrite");
}

static bool is(const struct table *t, const struct table_record *r)
{
	struct table_record got;

	return table_get(t, 0, &got) && memcmp(&got, r, sizeof(got)) == 0;
}

static uint64_t next_random(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

static void test_torn(struct table *t)
{
	static uint64_t before[WORDS], after[WORDS], mixed[WORDS];
	struct table_record old = record_of(11, 1), new = record_of(11, 2);
	uint64_t dice = 88172645463325252u;
	unsigned olds = 0;

	for (int i = 0; i < 3; i++)
		table_put(t, 0, &old);
	read_bytes(t, before);
	table_put(t, 0, &new);
	read_bytes(t, after);
	/* In the order of addresses, byte by byte. */
	for (size_t n = 0; n <= BYTES; n++) {
		memcpy(mixed, before, BYTES);
		memcpy(mixed, after, n);
		write_bytes(t, mixed);
		CHECK(is(t, &old) || is(t, &new), "%zu bytes were written", n);
		olds += is(t, &old);
	}
	CHECK(olds && olds <= BYTES, "neither is all there ever is");
	/* And word by word in any. */
	for (int k = 0; k < SUBSETS; k++) {
		for (size_t w = 0; w < WORDS; w++)
			mixed[w] = next_random(&dice) & 1 ? after[w] :
							    before[w];
		write_bytes(t, mixed);
		CHECK(is(t, &old) || is(t, &new), "subset %d", k);
	}
	write_bytes(t, after);
	CHECK(is(t, &new), "all of it was written");
}

static void test_places(struct table *t)
{
	struct table_record r = record_of(0, 1);
	uint64_t serials[3], more;

	for (uint32_t i = 0; i < 3; i++) {
		CHECK(table_take(t, &serials[i]) == i, "place %u", i);
		CHECK(!table_get(t, i, &r) || i == 0, "nothing is there");
		r = record_of(serials[i], i);
		table_put(t, i, &r);
	}
	CHECK(serials[0] != serials[1] && serials[1] != serials[2], "serials");
	table_drop(t, 1);
	CHECK(!table_get(t, 1, &r) && table_get(t, 2, &r), "one has gone");
	CHECK(table_take(t, &more) == 1, "its place is free");
	for (int i = 0; i < 3; i++)
		CHECK(more != serials[i], "no serial comes again");
	table_drop(t, 1);
	/* As many as no word has bits for. */
	CHECK(table_take(t, &more) == 1, "the gap first");
	for (uint32_t i = 3; i < 150; i++)
		CHECK(table_take(t, &more) == i, "place %u", i);
	for (uint32_t i = 3; i < 150; i++)
		table_drop(t, i);
	table_drop(t, 1);
}

/* Another agent finds what was there, and gives other serials. */
static void test_adopted(struct table *t)
{
	const struct sk_os *os = sk_os_linux();
	struct sk_err err = { "" };
	struct table_record r;
	struct table next;
	uint64_t serial, other;
	uint32_t version = TABLE_VERSION + 1;

	CHECK(table_take(t, &serial) == 1, "place");
	CHECK(table_adopt(os, dup(t->fd), &next, &err) == 0, "%s", err.text);
	CHECK(table_get(&next, 2, &r) && r.step == 2, "it is there");
	CHECK(table_take(&next, &other) == 1 && other != serial, "serial");
	CHECK(table_lives(&next) == 2, "lives");
	table_close(os, &next);
	/* Of a version that is not ours nothing is touched. */
	CHECK(pwrite(t->fd, &version, 4, 8) == 4, "pwrite");
	CHECK(table_adopt(os, t->fd, &next, &err) == -EPROTO, "version");
	CHECK(strstr(err.text, "version 2"), "%s", err.text);
	CHECK(table_check(os, t->fd, &err) == -EPROTO, "version");
}

/* One that cannot be made or taken over is not there by half. */
static void test_faults(void)
{
	struct sk_fault_os fault;
	int fds = count_fds();

	for (unsigned n = 1; ; n++) {
		struct sk_err err = { "" };
		struct table t, next;
		int kept = -1, r;

		sk_fault_os_init(&fault, sk_os_linux());
		sk_fault_os_fail(&fault, SK_FAULT_ANY, n, 1, ENOMEM);
		r = table_new(&fault.os, &t, &err);
		CHECK(r == 0 || err.text[0], "call %u", n);
		CHECK(r != 0 || t.map, "call %u", n);
		if (r == 0) {
			kept = dup(t.fd);
			r = table_adopt(&fault.os, kept, &next, &err);
			CHECK(r == 0 || err.text[0], "call %u", n);
			if (r == 0)
				table_close(sk_os_linux(), &next);
			else
				close(kept);
			table_close(sk_os_linux(), &t);
		}
		CHECK(count_fds() == fds, "call %u", n);
		if (!sk_fault_os_hits(&fault))
			break;
	}
}

int main(void)
{
	const struct sk_os *os = sk_os_linux();
	struct sk_err err = { "" };
	struct table t;

	CHECK(table_new(os, &t, &err) == 0, "%s", err.text);
	test_torn(&t);
	table_close(os, &t);
	CHECK(table_new(os, &t, &err) == 0, "%s", err.text);
	test_places(&t);
	test_adopted(&t);
	table_close(os, &t);
	test_faults();
	return 0;
}
