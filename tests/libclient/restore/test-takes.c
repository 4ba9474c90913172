/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is kept of an image is what this rank takes of it. Experts: each rank
 * has its own part of them, of the rest a row of ranks has a part each, and
 * the holders of a part are primary in turn. So a rank finds a tensor or two
 * in the image of each of its holders, among all of their experts.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "restore/images.h"
#include "restore/keys.h"
#include "restore/open.h"
#include "restore/plan.h"
#include "restore/sums.h"
#include "state/register.h"
#include "stub-agent.h"
#include "thread-ranks.h"

#define WORLD 32
#define ROW 4
#define DENSE 24
#define EXPERTS_MAX 200
#define ITEMS_MAX (DENSE + EXPERTS_MAX)

static uint64_t sum_bytes;	/* that were read of checksums */

static bool is_sums(int fd)
{
	struct stat a, b;

	cr_assert(!fstat(fd, &a));
	for (int i = 0; i < agent.n; i++) {
		cr_assert(!fstat(agent.images[i].sums, &b));
		if (a.st_ino == b.st_ino && a.st_dev == b.st_dev)
			return true;
	}
	return false;
}

static ssize_t counted_pread(const struct sk_os *os, int fd, void *buf,
			     size_t bytes, uint64_t offset)
{
	sum_bytes += is_sums(fd) ? bytes : 0;
	return sk_os_linux()->pread(os, fd, buf, bytes, offset);
}

struct model {
	struct sk_mesh *row, *flat;
	char names[ITEMS_MAX][24];
	struct sk_item items[ITEMS_MAX];
	uint32_t n;
	struct sk_os os;
	struct sk sk;
	struct sk_state *state;
	char data[64];
	struct sk_restoring rs;
};

static void make_items(struct model *m, uint32_t experts)
{
	int64_t row[] = { WORLD / ROW, ROW }, flat = WORLD;

	cr_assert(!sk_mesh_create(2, row, NULL, NULL, &m->row));
	cr_assert(!sk_mesh_create(1, &flat, NULL, NULL, &m->flat));
	for (; m->n < DENSE + experts; m->n++) {
		struct sk_item *item = &m->items[m->n];
		bool dense = m->n < DENSE;

		(void)snprintf(m->names[m->n], sizeof(m->names[0]), "%s.%u",
			       dense ? "dense" : "expert", m->n);
		item->spec = (struct sk_spec){
			.name = m->names[m->n], .dtype = SK_F32, .ndim = 1,
			.shape = { 2 * (dense ? ROW : WORLD) },
			.mesh = dense ? m->row : m->flat };
		item->spec.placements[0] = dense ?
			(struct sk_placement)SK_REPLICATE :
			(struct sk_placement)SK_SHARD(0);
		if (dense)
			item->spec.placements[1] =
				(struct sk_placement)SK_SHARD(0);
	}
}

static void describe(struct model *m)
{
	struct sk_job job = { .name = JOB, .world = WORLD };

	m->os = *sk_os_linux();
	m->os.pread = counted_pread;
	m->sk.os = &m->os;
	m->sk.pid = getpid();
	m->sk.recall = sk_recall_new();
	cr_assert(!sk_state_create(&m->sk, &job, &m->state));
	for (uint32_t i = 0; i < m->n; i++) {
		const struct sk_spec *s = &m->items[i].spec;
		struct sk_tensor t = { .name = s->name, .dtype = SK_F32,
				       .ndim = 1, .mesh = s->mesh,
				       .data = m->data };

		t.shape[0] = s->shape[0];
		memcpy(t.placements, s->placements, sizeof(t.placements));
		cr_assert(!sk_state_tensor(m->state, &t), "%s", sk_error());
	}
	/* What was saved is laid out as it is here. */
	cr_assert(!sk_state_register(m->state, false, 0, NULL));
	for (int kind = 0; kind < 2; kind++)
		sk_recall_add(m->sk.recall, m->state->layouts[kind]);
}

static void save_all(struct model *m)
{
	for (int32_t rank = 0; rank < WORLD; rank++) {
		struct sk_layout *l;

		cr_assert(!sk_layout_new(JOB, rank, WORLD, SK_IMAGE_PRIMARY,
					 m->items, m->n, &l, NULL));
		add_image(l, 1, 10, false, true);
	}
}

static void open_model(struct model *m, uint32_t experts)
{
	memset(m, 0, sizeof(*m));
	agent.run_id = 5;
	make_items(m, experts);
	save_all(m);
	describe(m);
	m->rs = (struct sk_restoring){ .state = m->state, .sk = &m->sk };
	m->rs.conn.os = &m->os;
	sum_bytes = 0;
}

static void plan(struct model *m)
{
	struct sk_restore_offer offer = { .run = 1, .run_id = 5, .step = 10,
					  .world = WORLD };
	struct sk_restoring *rs = &m->rs;

	rs->report.run = 1;
	rs->report.run_id = 5;
	rs->report.step = 10;
	cr_assert(!sk_restore_wanted(rs));
	cr_assert(!sk_restore_images(rs, &offer), "%s", rs->err.text);
	cr_assert(!sk_restore_index(rs), "%s", rs->err.text);
	cr_assert(!sk_restore_plan(rs), "%s", rs->err.text);
}

static void close_model(struct model *m)
{
	sk_restore_release_images(&m->rs);
	sk_restore_forget_keys(&m->rs);
	sk_restore_unlearn(&m->rs);
	free(m->rs.pieces);
	free(m->rs.wanted);
	free(m->rs.touched);
	sk_state_free(m->state);
	sk_recall_free(m->sk.recall);
	sk_mesh_release(m->row);
	sk_mesh_release(m->flat);
	forget_images();
}

/* Of other ranks' images. */
struct kept {
	uint64_t images, entries, sums, read;
};

static struct kept count(const struct model *m)
{
	struct kept kept = { 0 };

	for (uint32_t i = 0; i < m->rs.n_images; i++) {
		const struct sk_restore_image *image = &m->rs.images[i];
		const struct sk_restore_sums *s = &image->sums;

		if (!image->rank || !image->layout)
			continue;
		kept.images++;
		kept.entries += image->layout->n_entries;
		for (uint32_t k = 0; k < s->n_runs; k++)
			kept.sums += s->runs[k].to - s->runs[k].from;
	}
	return kept;
}

static struct kept take(uint32_t experts)
{
	static struct model m;
	struct kept kept;

	open_model(&m, experts);
	plan(&m);
	cr_assert_eq(m.rs.n_pieces, m.n);
	kept = count(&m);
	for (uint32_t i = 0; i < m.rs.n_pieces; i++) {
		const struct sk_restore_piece *p = &m.rs.pieces[i];
		const struct sk_restore_image *image = &m.rs.images[p->image];

		cr_assert(sk_restore_has_sums(image, p->entry));
		if (!image->rank)
			kept.sums += p->entry->n_sums;	/* read as well */
	}
	kept.read = sum_bytes;
	/* In the rank's own image are all of its experts. */
	cr_assert_eq(kept.read, kept.sums * sizeof(uint64_t));
	kept.read -= experts * sizeof(uint64_t);
	kept.sums -= experts;
	close_model(&m);
	return kept;
}

Test(restore_takes, others_experts_are_neither_kept_nor_read)
{
	struct kept few = take(10), many = take(EXPERTS_MAX);

	cr_assert_eq(few.images, WORLD / ROW - 1);
	cr_assert_eq(few.entries, DENSE - DENSE / (WORLD / ROW));
	cr_assert_eq(few.sums, DENSE);
	cr_assert_eq(few.read, DENSE * sizeof(uint64_t));
	cr_assert_eq(many.images, few.images);
	cr_assert_eq(many.entries, few.entries);
	cr_assert_eq(many.sums, few.sums);
	cr_assert_eq(many.read, few.read);
}

/* What another rank asks for, or has found damaged, was not kept. */
Test(restore_takes, others_entries_are_had_when_they_are_named)
{
	static struct model m;
	struct sk_restoring *rs = &m.rs;
	const struct sk_layout *want;
	const struct sk_restore_image *image;
	const struct sk_entry *entry;
	uint32_t at = 0;

	open_model(&m, 50);
	plan(&m);
	while (!rs->images[at].rank || !rs->images[at].layout)
		at++;
	image = &rs->images[at];
	want = agent.images[image->rank].layout;
	cr_assert_lt(image->layout->n_entries, want->n_entries);
	for (uint32_t i = 0; i < want->n_entries; i++) {
		uint64_t sum;

		cr_assert(!sk_restore_named_entry(rs, at, i, &entry));
		cr_assert(entry);
		cr_assert_eq(entry->index, i);
		cr_assert_eq(entry->offset, want->entries[i].offset);
		cr_assert(!sk_restore_need_sums(rs, at, 1, entry), "%s",
			  rs->err.text);
		cr_assert_eq(pread(agent.images[image->rank].sums, &sum,
				   sizeof(sum), entry->first_sum *
				   sizeof(sum)), (ssize_t)sizeof(sum));
		cr_assert_eq(sk_restore_sum(image, entry, 0), sum);
	}
	cr_assert(!sk_restore_named_entry(rs, at, want->n_entries, &entry));
	cr_assert_null(entry);
	close_model(&m);
}

/* Names that are not wanted are as good as others' parts. */
Test(restore_takes, what_is_not_wanted_is_not_read)
{
	static struct model m;
	const char *names[] = { m.names[1], m.names[DENSE] };

	open_model(&m, 50);
	m.rs.names = names;
	m.rs.n_names = 2;
	plan(&m);
	cr_assert_eq(m.rs.n_pieces, 2);
	cr_assert_eq(sum_bytes, 2 * sizeof(uint64_t));
	close_model(&m);
}

/* Far from each other they are several runs, and none of what lies between. */
Test(restore_takes, sums_are_read_in_runs)
{
	static struct model m;
	const char *names[] = { m.names[DENSE], m.names[DENSE + 1],
				m.names[DENSE + 60], m.names[DENSE + 149] };
	const struct sk_restore_image *image;

	open_model(&m, 150);
	m.rs.names = names;
	m.rs.n_names = 4;
	plan(&m);
	cr_assert_eq(m.rs.n_pieces, 4);
	image = &m.rs.images[m.rs.pieces[0].image];
	cr_assert_eq(image->sums.n_runs, 3);
	cr_assert_eq(sum_bytes, 4 * sizeof(uint64_t));
	for (uint32_t i = 0; i < 4; i++)
		cr_assert(sk_restore_has_sums(image, m.rs.pieces[i].entry));
	cr_assert(!sk_restore_has_sums(image, sk_layout_entry(image->layout,
		m.rs.pieces[2].entry->index - 1)));
	close_model(&m);
}
