/* SPDX-License-Identifier: Apache-2.0 */
#include "keeper/table.h"

#include <assert.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>

#include "base/util.h"
#include "bytes/checksum.h"

#define MAGIC UINT64_C(0x31454c4241544b53)	/* "SKTABLE1" */
#define SERIAL_BITS 40u		/* of what one agent may count */

/* One of the two copies of a record. */
struct copy {
	uint64_t sum;		/* of all that follows */
	uint64_t turn;		/* the higher one is the newer */
	struct table_record record;
};

struct table_head {
	uint64_t magic;
	uint32_t version, record_bytes;
	uint64_t records;
	uint64_t lives;
	uint64_t used;		/* what lies beyond was never touched */
};

struct table_page {
	struct table_head head;
	uint8_t rest[SK_PAGE - sizeof(struct table_head)];
	struct copy copies[TABLE_RECORDS][2];
};

static_assert(sizeof(struct table_page) == SK_PAGE +
	      sizeof(struct copy) * 2 * TABLE_RECORDS, "no holes");
static_assert(sizeof(struct table_record) == 14 * 8 + 5 * 16 + 8 * 4 +
	      SK_JOB_MAX + 8, "no padding");

static uint64_t sum_of(const struct copy *c)
{
	return sk_xxh3(&c->turn, sizeof(*c) - offsetof(struct copy, turn));
}

static int map_table(const struct sk_os *os, struct table *t)
{
	void *map;
	int r = os->mmap(os, NULL, sizeof(struct table_page),
			 PROT_READ | PROT_WRITE, MAP_SHARED, t->fd, 0, &map);

	if (r < 0)
		return r;
	(void)os->madvise(os, map, sizeof(struct table_page), MADV_DONTFORK);
	t->map = map;
	return 0;
}

int table_new(const struct sk_os *os, struct table *ret, struct sk_err *err)
{
	struct table t = TABLE_NULL;
	int r;

	t.fd = os->memfd_create(os, "shardkeep:table",
				MFD_CLOEXEC | MFD_ALLOW_SEALING);
	r = t.fd < 0 ? t.fd : os->ftruncate(os, t.fd,
					    sizeof(struct table_page));
	if (r == 0)
		r = os->fcntl_seal(os, t.fd, F_SEAL_SHRINK | F_SEAL_GROW);
	if (r == 0)
		r = map_table(os, &t);
	if (r < 0) {
		table_close(os, &t);
		return sk_err_errno(err, r, "cannot make the table of slots");
	}
	t.map->head = (struct table_head){
		.magic = MAGIC, .version = TABLE_VERSION,
		.record_bytes = sizeof(struct table_record),
		.records = TABLE_RECORDS, .lives = 1,
	};
	t.next_serial = UINT64_C(1) << SERIAL_BITS;
	*ret = t;
	return 0;
}

static int check_head(const struct table_head *h, struct sk_err *err)
{
	if (h->magic != MAGIC)
		return sk_err_set(err, -EPROTO, "what was kept as the table "
				  "of slots is none");
	if (h->version != TABLE_VERSION || h->records != TABLE_RECORDS ||
	    h->record_bytes != sizeof(struct table_record))
		return sk_err_set(err, -EPROTO, "the kept table of slots is "
				  "of version %u, with records of %u bytes; "
				  "this agent reads version %u, of %zu",
				  h->version, h->record_bytes, TABLE_VERSION,
				  sizeof(struct table_record));
	return 0;
}

int table_check(const struct sk_os *os, int fd, struct sk_err *err)
{
	struct table_head head;

	if (os->pread(os, fd, &head, sizeof(head), 0) != sizeof(head))
		return sk_err_set(err, -EPROTO, "what was kept as the table "
				  "of slots cannot be read");
	return check_head(&head, err);
}

int table_adopt(const struct sk_os *os, int fd, struct table *ret,
		struct sk_err *err)
{
	struct table t = { .fd = fd };
	struct stat st;
	int r = table_check(os, fd, err);

	if (r < 0)
		return r;
	r = os->fstat(os, fd, &st);
	if (r == 0 && st.st_size != sizeof(struct table_page))
		r = -EBADF;
	if (r == 0)
		r = map_table(os, &t);
	if (r < 0)
		return sk_err_errno(err, r, "cannot take the kept table of "
				    "slots");
	t.map->head.lives++;
	t.next_serial = t.map->head.lives << SERIAL_BITS;
	if (t.map->head.used > TABLE_RECORDS)
		t.map->head.used = TABLE_RECORDS;
	for (uint32_t at = 0; at < t.map->head.used; at++) {
		struct table_record record;

		if (table_get(&t, at, &record))
			t.taken[at / 64] |= UINT64_C(1) << at % 64;
	}
	*ret = t;
	return 0;
}

void table_close(const struct sk_os *os, struct table *t)
{
	if (t->map)
		(void)os->munmap(os, t->map, sizeof(struct table_page));
	if (t->fd >= 0)
		(void)os->close(os, t->fd);
	*t = (struct table)TABLE_NULL;
}

/* The newer of those that are whole; NULL: neither is, or ever was. */
static struct copy *newer(const struct table *t, uint32_t at)
{
	struct copy *best = NULL;

	assert(t->map && at < TABLE_RECORDS);
	for (int i = 0; i < 2; i++) {
		struct copy *c = &t->map->copies[at][i];

		if (c->turn && (!best || c->turn > best->turn) &&
		    c->sum == sum_of(c))
			best = c;
	}
	return best;
}

void table_put(struct table *t, uint32_t at,
	       const struct table_record *record)
{
	struct copy *was = newer(t, at);
	struct copy *to = &t->map->copies[at][was == t->map->copies[at]];

	/* First: a record that nobody looks at is lost. */
	if (at >= t->map->head.used)
		t->map->head.used = at + 1;

	/* Until the sum is right, it is nothing; and it is written last. */
	to->sum = 0;
	__atomic_signal_fence(__ATOMIC_SEQ_CST);
	to->turn = was ? was->turn + 1 : 1;
	to->record = *record;
	__atomic_signal_fence(__ATOMIC_SEQ_CST);
	to->sum = sum_of(to);
}

bool table_get(const struct table *t, uint32_t at,
	       struct table_record *ret_record)
{
	const struct copy *c = at < t->map->head.used ? newer(t, at) : NULL;

	if (!c || !c->record.serial)
		return false;
	*ret_record = c->record;
	return true;
}

uint32_t table_take(struct table *t, uint64_t *ret_serial)
{
	for (uint32_t i = 0; t->map && i < SK_ARRAY_SIZE(t->taken); i++) {
		uint64_t left = ~t->taken[i];

		if (!left)
			continue;
		t->taken[i] |= left & -left;
		*ret_serial = t->next_serial++;
		return i * 64 + (uint32_t)__builtin_ctzll(left);
	}
	return TABLE_NONE;
}

void table_drop(struct table *t, uint32_t at)
{
	static const struct table_record none = { .serial = 0 };

	assert(at < TABLE_RECORDS);
	table_put(t, at, &none);
	t->taken[at / 64] &= ~(UINT64_C(1) << at % 64);
}

uint64_t table_lives(const struct table *t)
{
	return t->map->head.lives;
}

uint32_t table_used(const struct table *t)
{
	return (uint32_t)t->map->head.used;
}
