/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Restores by fresh processes, as after a crash: the trainer's memory is
 * warm, nothing of the agent's memory is mapped yet.
 */
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "state.h"

static const struct kind {
	enum phase phase;
	enum cut cut;
	uint32_t flags;
	bool fewer;		/* on one rank fewer */
	const char *what;
} kinds[] = {
	{ PHASE_RESTORE_SAME, CUT_ROWS, SK_RESTORE_MEMORY_ONLY, false,
	  "same mesh" },
	{ PHASE_RESTORE_SAME_PLAIN, CUT_ROWS,
	  SK_RESTORE_MEMORY_ONLY | SK_RESTORE_NO_VERIFY, false,
	  "same mesh, no checksums" },
	{ PHASE_RESTORE_COLUMNS, CUT_COLUMNS, SK_RESTORE_MEMORY_ONLY, false,
	  "columns instead of rows" },
	{ PHASE_RESTORE_COLUMNS_PLAIN, CUT_COLUMNS,
	  SK_RESTORE_MEMORY_ONLY | SK_RESTORE_NO_VERIFY, false,
	  "columns, no checksums" },
	{ PHASE_RESTORE_FEWER, CUT_ROWS, SK_RESTORE_MEMORY_ONLY, true,
	  "one rank fewer" },
};

static const struct kind disks[] = {
	{ PHASE_RESTORE_DISK, CUT_ROWS, SK_RESTORE_DISK_ONLY, false,
	  "same mesh" },
	{ PHASE_RESTORE_DISK_COLUMNS, CUT_COLUMNS, SK_RESTORE_DISK_ONLY,
	  false, "columns instead of rows" },
};
static const struct kind *current;	/* inherited by the forked ranks */

static int ranks_of(const struct bench *b)
{
	return current->fewer && b->o.ranks > 1 ? b->o.ranks - 1 :
						  b->o.ranks;
}

static uint64_t total_of(const struct bench *b)
{
	return b->o.bytes * (uint64_t)b->o.ranks;
}

static int rank_restore(struct bench *b, int rank)
{
	struct sk_restore_options o = { .flags = current->flags,
					.timeout_ms = 120000 };
	struct rank_state s;
	uint64_t bytes;
	char *ceiling;

	if (state_open(b, rank, ranks_of(b), "bench", total_of(b),
		       b->o.tensors, current->cut, &s))
		return -1;
	bytes = s.bytes & ~(uint64_t)4095;
	meet(b);
	mark_start(b, rank);
	if (sk_restore(s.state, SK_LATEST, NULL, &o, NULL))
		return fail(b, rank, "restore: %s", sk_error());
	mark_end(b, rank);
	meet(b);
	meet(b);
	if (current->flags & SK_RESTORE_MEMORY_ONLY) {
		ceiling = warm_memfd(bytes);
		meet(b);
		mark_start(b, rank);
		copy_parallel(s.data, ceiling, bytes, b->o.threads);
		mark_end(b, rank);
		meet(b);
		meet(b);
	}
	state_close(&s);
	return 0;
}

static void lead_restore(struct bench *b, int ranks)
{
	meet(b);
	meet(b);
	series_add(&b->series[current->phase], marked(b, ranks));
	meet(b);
	if (!(current->flags & SK_RESTORE_MEMORY_ONLY))
		return;
	meet(b);
	meet(b);
	if (current->phase == PHASE_RESTORE_SAME)
		series_add(&b->series[PHASE_COPY_OUT], marked(b, ranks));
	meet(b);
}

/* Cold caches: the kernel's where we may, else these files'. */
static void drop_caches(void)
{
	int fd;

	sync();
	fd = open("/proc/sys/vm/drop_caches", O_WRONLY | O_CLOEXEC);
	if (fd >= 0) {
		if (write(fd, "3", 1) != 1)
			note("the page cache could not be dropped");
		close(fd);
	}
}

static int rank_write(struct bench *b, int rank)
{
	char path[400];
	void *buf = warm_memfd(b->o.bytes & ~(uint64_t)4095);

	(void)snprintf(path, sizeof(path), "%s/ceiling-%d", b->dir, rank);
	meet(b);
	return file_pass(path, buf, b->o.bytes & ~(uint64_t)4095, true,
			 b->write_block, b->write_depth);
}

static int rank_read(struct bench *b, int rank)
{
	uint64_t bytes = b->o.bytes & ~(uint64_t)4095;
	void *buf = warm_memory(bytes);
	char path[400];
	int r;

	(void)snprintf(path, sizeof(path), "%s/ceiling-%d", b->dir, rank);
	meet(b);
	mark_start(b, rank);
	r = file_pass(path, buf, bytes, false, b->write_block,
		      b->write_depth);
	mark_end(b, rank);
	meet(b);
	meet(b);
	return r;
}

static void lead_write(struct bench *b, int ranks)
{
	(void)ranks;
	meet(b);
}

static void lead_read(struct bench *b, int ranks)
{
	meet(b);
	meet(b);
	series_add(&b->series[PHASE_READ], marked(b, ranks));
	meet(b);
}

/* With a new agent, which finds the images in its store. */
static int disk_round(struct bench *b)
{
	int r = agent_stop(b);

	drop_caches();
	if (!r)
		r = agent_start(b);
	if (!r)
		r = run_ranks(b, b->o.ranks, rank_read, lead_read);
	for (size_t k = 0; k < sizeof(disks) / sizeof(*disks) && !r; k++) {
		current = &disks[k];
		drop_caches();
		r = run_ranks(b, b->o.ranks, rank_restore, lead_restore);
	}
	return r;
}

static int disk_rounds(struct bench *b)
{
	int r = run_ranks(b, b->o.ranks, rank_write, lead_write);

	for (int i = 0; i < b->o.rounds && !r; i++) {
		note("restore from disk, round %d of %d", i + 1,
		     b->o.rounds);
		r = disk_round(b);
	}
	return r;
}

int phase_restore(struct bench *b)
{
	int r = 0;

	for (int i = 0; i < b->o.rounds; i++)
		for (size_t k = 0; k < sizeof(kinds) / sizeof(*kinds) && !r;
		     k++) {
			current = &kinds[k];
			note("restore from memory, %s, round %d of %d",
			     current->what, i + 1, b->o.rounds);
			r = run_ranks(b, ranks_of(b), rank_restore,
				      lead_restore);
		}
	return r ? r : disk_rounds(b);
}
