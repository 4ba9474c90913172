/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every room's main operations with every allocation failing: alone, and with
 * all that come after it. What comes of it is -ENOMEM or success, and nothing
 * is left.
 */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/pool.h"
#include "base/util.h"
#include "bytes/copy.h"
#include "catalogue/catalogue.h"
#include "catalogue/revive.h"
#include "fault-alloc.h"
#include "io/io.h"
#include "layout/coverage.h"
#include "layout/layout.h"
#include "layout/recall.h"
#include "memory/flags.h"
#include "memory/slot.h"
#include "store/private.h"
#include "tensor/plan.h"

#define WORLD 2
#define ROUNDS_MOST 20000	/* an operation that never succeeds */

/* Does all of it, frees all of it; says what came of it. */
typedef int (*operation)(void *ctx);

/* Returns of how many it can do without. */
static unsigned fail_each(operation run, void *ctx, uint64_t times)
{
	uint64_t live, hits = 1;
	unsigned spared = 0;
	int r = 0;

	for (uint64_t n = 1; hits && n < ROUNDS_MOST; n++) {
		sk_fault_alloc_fail(n, times);
		r = run(ctx);
		hits = sk_fault_alloc_end(&live);
		cr_assert(r == 0 || r == -ENOMEM, "allocation %llu: %s",
			  (unsigned long long)n, strerror(-r));
		cr_assert_eq(live, 0, "allocation %llu: %llu left",
			     (unsigned long long)n, (unsigned long long)live);
		spared += hits && r == 0;
	}
	cr_assert_eq(hits, 0);
	cr_assert_eq(r, 0, "nothing failed, but: %s", strerror(-r));
	return spared;
}

/* @spared: at most, what is remembered for the next time or has another way. */
static void fail_all_but(operation run, void *ctx, unsigned spared)
{
	unsigned n;

	/* What is loaded or looked up once, is: stdio, NUMA. */
	cr_assert_eq(run(ctx), 0);
	n = fail_each(run, ctx, 1);
	cr_assert_leq(n, spared, "it does without %u", n);
	n = fail_each(run, ctx, SK_FAULT_ALLOC_ALWAYS);
	cr_assert_leq(n, spared ? 1 : 0, "it does without any %u times", n);
}

static void fail_all(operation run, void *ctx)
{
	fail_all_but(run, ctx, 0);
}

/* ---- what they work on ---- */

static struct sk_mesh *mesh(void)
{
	const char *const names[] = { "dp", "tp" };
	const int32_t ranks[] = { 1, 0 };
	struct sk_mesh *m = NULL;

	cr_assert_eq(sk_mesh_new(2, (int64_t[]){ 1, WORLD }, ranks, names, &m,
				 NULL), 0);
	return m;
}

/* Shards, strided ones in several boxes, replicas, blobs. */
static int build(int rank, enum sk_image_kind kind, struct sk_layout **ret)
{
	const char *const names[] = { "dp", "tp" };
	const int32_t ranks[] = { 1, 0 };
	struct sk_nodes *nodes = NULL;
	struct sk_mesh *m = NULL;
	struct sk_item items[] = {
		{ .spec = { .name = "w", .dtype = SK_F32, .ndim = 2,
			    .shape = { 8, 6 },
			    .placements = { SK_REPLICATE, SK_SHARD(0) } } },
		{ .spec = { .name = "s", .dtype = SK_BF16, .ndim = 1,
			    .shape = { 24 },
			    .placements = { SK_REPLICATE,
					    SK_STRIDED_SHARD(0, 3) } } },
		{ .spec = { .name = "r", .dtype = SK_I64, .ndim = 1,
			    .shape = { 5 },
			    .placements = { SK_REPLICATE, SK_REPLICATE } } },
		{ .kind = SK_ITEM_BLOB,
		  .spec = { .name = "config", .dtype = SK_U8, .ndim = 1,
			    .shape = { 9 } } },
		{ .kind = SK_ITEM_BLOB_LOCAL,
		  .spec = { .name = "rng", .dtype = SK_U8, .ndim = 1,
			    .shape = { 3 } } },
	};
	struct sk_err err;
	int r = sk_mesh_new(2, (int64_t[]){ 1, WORLD }, ranks, names, &m,
			    &err);

	if (r < 0)
		return r;
	for (int i = 0; i < 3; i++)
		items[i].spec.mesh = m;
	r = sk_nodes_new((int32_t[]){ 0, 1 }, WORLD, &nodes, &err);
	if (r >= 0)
		r = sk_layout_new_over("job", rank, WORLD, kind, nodes, items,
				       SK_ARRAY_SIZE(items), ret, &err);
	sk_nodes_unref(nodes);
	sk_mesh_unref(m);
	return r;
}

static struct sk_layout *built(int rank, enum sk_image_kind kind)
{
	struct sk_layout *l = NULL;

	cr_assert_eq(build(rank, kind, &l), 0);
	return l;
}

/* ---- tensor ---- */

static int do_mesh(void *ctx)
{
	const char *const tp[] = { "tp" };
	struct sk_mesh *slice = NULL;
	int64_t at[2];
	int r;

	r = sk_mesh_slice(ctx, 1, tp, 1, &slice, NULL);
	if (r == 0)
		r = sk_mesh_coords(slice, 0, at);
	sk_mesh_unref(slice);
	return r;
}

Test(alloc, mesh)
{
	struct sk_mesh *m = mesh();

	fail_all(do_mesh, m);
	sk_mesh_unref(m);
}

static int count_piece(const struct sk_piece *piece,
		       const struct sk_holders *holders, void *ctx)
{
	(void)piece;
	(void)holders;
	++*(int *)ctx;
	return 0;
}

static int do_plan(void *ctx)
{
	const struct sk_spec spec = {
		.name = "w", .dtype = SK_F32, .ndim = 2, .shape = { 64, 3 },
		.mesh = ctx,
		.placements = { SK_STRIDED_SHARD(0, 4), SK_SHARD(0) } };
	const struct sk_box target = { .offset = { 3, 0 },
				       .size = { 51, 2 } };
	int n = 0;

	return sk_plan_box(&spec, WORLD, &target, count_piece, &n);
}

Test(alloc, plan)
{
	struct sk_mesh *m = mesh();

	fail_all(do_plan, m);
	sk_mesh_unref(m);
}

/* ---- layout ---- */

static int do_build(void *ctx)
{
	struct sk_layout *l = NULL;
	int r = build(1, *(enum sk_image_kind *)ctx, &l);

	sk_layout_free(l);
	return r;
}

Test(alloc, layout)
{
	enum sk_image_kind kinds[] = { SK_IMAGE_PRIMARY, SK_IMAGE_REPLICA };

	for (int k = 0; k < 2; k++) {
		fail_all_but(do_build, &kinds[k], 2);
		cr_assert_eq(fail_each(do_build, &kinds[k], 1), 2);
	}
}

static int do_parse(void *ctx)
{
	const struct sk_layout *l = ctx;
	struct sk_layout *again = NULL;
	struct sk_err err;
	int r = sk_layout_parse(l->header, l->header_bytes, l->image_bytes,
				&again, &err);

	sk_layout_free(again);
	return r;
}

Test(alloc, parse)
{
	struct sk_layout *l = built(0, SK_IMAGE_PRIMARY);

	fail_all_but(do_parse, l, 4);
	sk_layout_free(l);
}

static int do_stamp(void *ctx)
{
	const struct sk_layout *l = ctx;
	uint64_t sums[64] = { 1 };
	struct sk_stamp stamp = { .run = 3, .step = 4, .sums = sums };
	_cleanup_free_ char *header = malloc(l->header_bytes);
	_cleanup_layout_ struct sk_layout *sketch = NULL;
	int r;

	if (!header)
		return -ENOMEM;
	sk_layout_stamp(l, &stamp, header);
	r = sk_layout_read_stamp(l, header, &stamp, NULL);
	sketch = r == 0 ? sk_layout_sketch((struct sk_layout *)l, l) : NULL;
	if (r == 0)
		r = sketch ? sk_layout_read_stamp(sketch, header, &stamp,
						  NULL) : -ENOMEM;
	return r;
}

Test(alloc, stamp)
{
	struct sk_layout *l = built(0, SK_IMAGE_PRIMARY);

	cr_assert_leq(l->n_sums, 64);
	fail_all(do_stamp, l);
	sk_layout_free(l);
}

/* Parsed, derived from another rank's, derived from the other kind's. */
static int do_recall(void *ctx)
{
	struct sk_layout **all = ctx;
	struct sk_recall *recall = sk_recall_new();
	int r = recall ? 0 : -ENOMEM;

	for (int i = 0; i < 2 * WORLD && r == 0; i++) {
		struct sk_layout *l = NULL;

		r = sk_recall_get(recall, "job", all[i]->rank, all[i]->kind,
				  all[i]->header, all[i]->header_bytes,
				  all[i]->image_bytes, &l, NULL);
		sk_layout_free(l);
	}
	sk_recall_free(recall);
	return r;
}

Test(alloc, recall)
{
	struct sk_layout *all[2 * WORLD];

	for (int i = 0; i < 2 * WORLD; i++)
		all[i] = built(i / 2, (enum sk_image_kind)(i % 2));
	fail_all_but(do_recall, all, UINT_MAX);
	for (int i = 0; i < 2 * WORLD; i++)
		sk_layout_free(all[i]);
}

/* Of a replica, which describes the same boxes, and of another shard. */
static int do_outline(void *ctx)
{
	struct sk_layout **all = ctx;
	int r = 0;

	for (int i = 0; i < 2 * WORLD && r == 0; i++) {
		struct sk_layout *l = NULL, *whole = NULL;

		r = sk_layout_outline(all[0], all[i]->rank, all[i]->kind,
				      &all[i]->digest, NULL, NULL, &l);
		if (r == 0)
			r = sk_layout_whole(l, &whole);
		sk_layout_free(whole);
		sk_layout_free(l);
	}
	return r;
}

Test(alloc, outline)
{
	struct sk_layout *all[2 * WORLD];

	for (int i = 0; i < 2 * WORLD; i++)
		all[i] = built(i / 2, (enum sk_image_kind)(i % 2));
	fail_all_but(do_outline, all, 16);
	for (int i = 0; i < 2 * WORLD; i++)
		sk_layout_free(all[i]);
}

static int do_coverage(void *ctx)
{
	struct sk_err err;

	return sk_coverage_check(ctx, WORLD, WORLD, &err);
}

Test(alloc, coverage)
{
	struct sk_coverage_image images[WORLD];

	for (int i = 0; i < WORLD; i++)
		images[i] = (struct sk_coverage_image){
			.layout = built(i, SK_IMAGE_PRIMARY),
			.present = true };
	fail_all(do_coverage, images);
	for (int i = 0; i < WORLD; i++)
		sk_layout_free((struct sk_layout *)images[i].layout);
}

/* What is missing is named, or there is no memory to tell. */
static int do_missing(void *ctx)
{
	struct sk_err err;
	int r = do_coverage(ctx);

	if (r == -ENODATA)
		r = sk_coverage_check(ctx, WORLD - 1, WORLD, &err);
	return r == -ENODATA ? 0 : r;
}

Test(alloc, missing)
{
	struct sk_coverage_image images[WORLD];

	for (int i = 0; i < WORLD; i++)
		images[i] = (struct sk_coverage_image){
			.layout = built(i, SK_IMAGE_PRIMARY),
			.present = i != WORLD - 1 };
	fail_all(do_missing, images);
	for (int i = 0; i < WORLD; i++)
		sk_layout_free((struct sk_layout *)images[i].layout);
}

/* ---- bytes ---- */

static int do_copy(void *ctx)
{
	static const int64_t size[] = { 64, 64 }, down[] = { 1, 64 },
			     dense[] = { 64, 1 };
	static char from[64 * 64 * 4], to[64 * 64 * 4];
	struct sk_copy copy;
	int r;

	(void)ctx;
	r = sk_copy_init(&copy, 32, 2, size, to, dense, from, down, NULL);
	if (r == 0)
		sk_copy_run(&copy);
	return r;
}

Test(alloc, copy)
{
	fail_all(do_copy, NULL);
}

/* ---- base ---- */

static void add_unit(struct sk_task *task, size_t unit)
{
	(void)task;
	(void)unit;
}

static int do_pool(void *ctx)
{
	struct sk_task task = { .units = 20, .run = add_unit };
	struct sk_pool *pool = NULL;
	int r = sk_pool_new(2, -1, "alloc", &pool, NULL);

	(void)ctx;
	if (r == 0)
		sk_pool_run(pool, &task);
	sk_pool_free(pool);
	return r;
}

Test(alloc, pool)
{
	fail_all(do_pool, NULL);
}

/* ---- memory ---- */

static int do_slot(void *ctx)
{
	const struct sk_os *os = sk_os_linux();
	struct sk_slot slot = SK_SLOT_NULL;
	struct sk_err err;
	int r = sk_slot_create(os, "alloc", 3 * SK_PAGE, 0, &slot, &err);

	(void)ctx;
	if (r < 0)
		return r;
	r = sk_slot_populate(os, &slot, 0, SK_PAGE, &err);
	sk_slot_destroy(os, &slot);
	return r;
}

Test(alloc, slot)
{
	fail_all(do_slot, NULL);
}

/* ---- io, store ---- */

struct disk {
	char path[64];
	const struct sk_layout *layout;
	char *image;		/* stamped, at a page */
	enum sk_io_backend backend;
};

static void disk_make(struct disk *d, enum sk_io_backend backend)
{
	uint64_t sums[64] = { 0 };
	struct sk_stamp stamp = { .run = 1, .step = 5, .sums = sums };

	*d = (struct disk){ .path = "/tmp/shardkeep-alloc-XXXXXX",
			    .layout = built(0, SK_IMAGE_PRIMARY),
			    .backend = backend };
	cr_assert(mkdtemp(d->path));
	d->image = aligned_alloc(SK_PAGE, sk_round_up(d->layout->image_bytes,
						      SK_PAGE));
	cr_assert(d->image);
	memset(d->image, 7, sk_round_up(d->layout->image_bytes, SK_PAGE));
	sk_layout_stamp(d->layout, &stamp, d->image);
}

static void disk_remove(struct disk *d)
{
	cr_assert_eq(sk_dir_remove(sk_os_linux(), AT_FDCWD, d->path), 0);
	sk_layout_free((struct sk_layout *)d->layout);
	free(d->image);
}

static int take_bytes(void *ctx, size_t index, uint64_t at, const void *data,
		      size_t bytes)
{
	const struct disk *d = ctx;

	(void)index;
	return memcmp(d->image + at, data, bytes) ? -EBADMSG : 0;
}

static int write_and_read(const struct disk *d, struct sk_io *io, int dir)
{
	const struct sk_write w = { .dirfd = dir, .name = "f",
				    .head = d->image + 8,
				    .head_bytes = SK_PAGE,
				    .data = d->image,
				    .bytes = 2 * SK_PAGE };
	const struct sk_range range = { .offset = SK_PAGE, .bytes = 100 };
	const struct sk_write plain = { .dirfd = dir, .name = "g",
					.data = d->image,
					.bytes = d->layout->image_bytes };
	int fd, r = sk_io_write_file(io, &w, NULL);

	if (r == 0)
		r = sk_io_write_file(io, &plain, NULL);
	if (r < 0)
		return r;
	fd = sk_io_open(io, dir, "g", false, NULL);
	if (fd < 0)
		return fd;
	r = sk_io_read(io, &fd, &range, 0, 0, take_bytes, (void *)d, NULL);
	if (r == 0)
		r = sk_io_read(io, &fd, &(struct sk_range){ .bytes = 100 }, 1,
			       0, take_bytes, (void *)d, NULL);
	close(fd);
	return r;
}

static int do_io(void *ctx)
{
	const struct sk_os *os = sk_os_linux();
	const struct disk *d = ctx;
	const struct sk_io_opts opts = { .backend = d->backend, .depth = 2,
					 .block = SK_PAGE };
	struct sk_io *io = NULL;
	int dir, r = sk_io_new(os, &opts, &io, NULL);

	if (r < 0)
		return r;
	dir = sk_dir_open(os, AT_FDCWD, d->path);
	r = write_and_read(d, io, dir);
	(void)unlinkat(dir, "f", 0);
	(void)unlinkat(dir, "g", 0);
	close(dir);
	sk_io_free(io);
	return r;
}

Test(alloc, io_by_threads)
{
	struct disk d;

	disk_make(&d, SK_IO_THREADS);
	fail_all(do_io, &d);
	disk_remove(&d);
}

Test(alloc, io_as_it_comes)
{
	struct disk d;

	disk_make(&d, SK_IO_AUTO);
	fail_all_but(do_io, &d, 1);
	disk_remove(&d);
}

static int read_back(struct sk_store *store, const struct sk_stored *found)
{
	struct sk_stamp stamp = { 0 };
	struct sk_layout *l = NULL;
	int r, fd = sk_store_open_image(store, found, NULL);

	if (fd < 0)
		return fd;
	r = sk_store_read_layout(store, fd, &l, &stamp, NULL);
	close(fd);
	if (r < 0)
		return r;
	sk_layout_free(l);
	free(stamp.sums);
	return 0;
}

static int scan(struct sk_store *store)
{
	struct sk_stored *found = NULL;
	char **jobs = NULL;
	size_t n, n_jobs;
	int r = sk_store_jobs(store, &jobs, &n_jobs, NULL);

	if (r < 0)
		return r;
	for (size_t i = 0; i < n_jobs; i++)
		free(jobs[i]);
	free(jobs);
	r = sk_store_scan(store, "job", &found, &n, NULL);
	if (r < 0)
		return r;
	cr_assert_eq(n, 1);
	r = read_back(store, &found[0]);
	free(found);
	return r;
}

static int put_and_scan(const struct disk *d, struct sk_store *store,
			struct sk_io *io)
{
	const struct sk_store_run run = { 1, 11 };
	const struct sk_store_put put = {
		.job = "job", .run = run, .step = 5, .rank = 0, .world = WORLD,
		.head = d->image, .head_bytes = d->layout->header_bytes,
		.data = d->image, .bytes = d->layout->image_bytes };
	int r = sk_store_put_image(store, io, &put, NULL);

	if (r == 0)
		r = sk_store_settle(store, "job", 5, &run, NULL);
	if (r == 0)
		r = scan(store);
	if (r == 0)
		r = sk_store_delete(store, "job", "step-000000000005",
				    &run, NULL);
	return r;
}

static int do_store(void *ctx)
{
	const struct sk_os *os = sk_os_linux();
	const struct disk *d = ctx;
	struct sk_store *store = NULL;
	struct sk_io *io = NULL;
	int r = sk_store_open(os, d->path, 0, &store, NULL, NULL);

	if (r == 0)
		r = sk_io_new(os, NULL, &io, NULL);
	if (r == 0)
		r = put_and_scan(d, store, io);
	sk_io_free(io);
	sk_store_close(store);
	return r;
}

Test(alloc, store)
{
	struct disk d;

	disk_make(&d, SK_IO_AUTO);
	fail_all_but(do_store, &d, 5);
	disk_remove(&d);
}

/* ---- catalogue ---- */

static int enter(struct sk_catalogue *cat, struct sk_layout *layout,
		 struct sk_cat_state **ret_state)
{
	const struct sk_cat_ask ask = { .fresh_id = 3, .rank = layout->rank,
					.world = WORLD };
	struct sk_cat_job *job = sk_cat_job_get(cat, "job", 0);
	struct sk_cat_layout *layouts[2] = { NULL, NULL };
	struct sk_cat_run *run = NULL;
	int r;

	if (!job)
		return -ENOMEM;
	r = sk_cat_run_open(job, &ask, &run, NULL);
	if (r < 0)
		return r;
	layouts[0] = sk_cat_layout_take(cat, sk_layout_ref(layout));
	if (!layouts[0])
		return -ENOMEM;
	*ret_state = sk_cat_state_new(run, layout->rank, layouts);
	if (*ret_state)
		return 0;
	sk_cat_layout_unref(layouts[0]);
	return -ENOMEM;
}

static uint64_t *new_sums(void)
{
	return calloc(64, sizeof(uint64_t));
}

static int seal(struct sk_cat_state *state, int64_t step)
{
	static const uint64_t bytes[2] = { SK_PAGE, 0 };
	uint64_t *sums[2] = { NULL, NULL };
	struct sk_cat_slot *slot;
	unsigned evicted;
	int r;

	if (!sk_cat_slot_add(state, bytes, NULL))
		return -ENOMEM;
	r = sk_cat_slot_take(state, step, SK_SLOT_FLUSH, false, &slot,
			     &evicted, NULL);
	if (r < 0)
		return r;
	sums[0] = new_sums();
	r = sums[0] ? sk_cat_slot_seal(slot, sums, NULL, 1) : -ENOMEM;
	if (r == 0)
		return 0;
	free(sums[0]);
	sk_cat_slot_clear(slot);
	return r;
}

static int add_stored(struct sk_catalogue *cat, struct sk_layout *layout)
{
	const struct sk_cat_found found = { .run = 9, .run_id = 99, .step = 3,
					    .dir = "step" };
	struct sk_cat_layout *known;
	struct sk_cat_job *job = sk_cat_job_get(cat, "job", 0);
	int r = -ENOMEM;

	known = sk_cat_layout_take(cat, sk_layout_ref(layout));
	if (job && known) {
		r = sk_cat_stored_add(job, &found, known, NULL);
		sk_cat_refresh(job);
		return r;
	}
	sk_cat_layout_unref(known);
	return r;
}

static int do_catalogue(void *ctx)
{
	struct sk_layout **layouts = ctx;
	struct sk_cat_state *state[WORLD];
	struct sk_catalogue cat;
	int r = 0;

	sk_cat_init(&cat);
	cat.budget = UINT64_MAX;
	for (int i = 0; i < WORLD && r == 0; i++)
		r = enter(&cat, layouts[i], &state[i]);
	for (int64_t step = 1; step <= 2; step++)
		for (int i = 0; i < WORLD && r == 0; i++)
			r = seal(state[i], step);
	for (int i = 0; i < WORLD && r == 0; i++)
		r = add_stored(&cat, layouts[i]);
	sk_cat_destroy(&cat);
	return r;
}

Test(alloc, catalogue)
{
	struct sk_layout *layouts[WORLD];

	for (int i = 0; i < WORLD; i++)
		layouts[i] = built(i, SK_IMAGE_PRIMARY);
	fail_all_but(do_catalogue, layouts, 10);
	for (int i = 0; i < WORLD; i++)
		sk_layout_free(layouts[i]);
}

/* What outlived another agent: a slot that was being filled, one that had an
 * image. */
static int do_revive(void *ctx)
{
	static const uint64_t bytes[2] = { SK_PAGE, 0 };
	uint64_t *sums[2] = { NULL, NULL };
	struct sk_cat_state *state;
	struct sk_cat_slot *slot;
	struct sk_catalogue cat;
	int r;

	sk_cat_init(&cat);
	cat.budget = UINT64_MAX;
	r = enter(&cat, ctx, &state);
	slot = r == 0 ? sk_cat_slot_add(state, bytes, NULL) : NULL;
	if (slot)
		r = sk_cat_slot_resume(slot, 7, 0);
	cr_assert(!slot || r < 0 || slot->use == SK_CAT_FILLING);
	slot = slot && r == 0 ? sk_cat_slot_add(state, bytes, NULL) : NULL;
	if (slot) {
		sums[0] = new_sums();
		r = sums[0] ? sk_cat_slot_revive(slot, 6, sums, NULL, 1) :
			      -ENOMEM;
		if (r < 0)
			free(sums[0]);
	} else if (r == 0) {
		r = -ENOMEM;
	}
	sk_cat_destroy(&cat);
	return r;
}

Test(alloc, revived)
{
	struct sk_layout *l = built(0, SK_IMAGE_PRIMARY);

	fail_all(do_revive, l);
	sk_layout_free(l);
}

/* All ranks have sealed step 1, and but one step 2, which that one lost. */
static struct sk_cat_job *two_steps(struct sk_catalogue *cat,
				    struct sk_layout **layouts)
{
	struct sk_cat_state *state[WORLD];
	struct sk_cat_slot *slot;
	unsigned evicted;

	sk_cat_init(cat);
	cat->budget = UINT64_MAX;
	cat->has_store = true;
	for (int i = 0; i < WORLD; i++)
		cr_assert_eq(enter(cat, layouts[i], &state[i]), 0);
	for (int i = 0; i < WORLD; i++)
		cr_assert_eq(seal(state[i], 1), 0);
	for (int i = 1; i < WORLD; i++)
		cr_assert_eq(seal(state[i], 2), 0);
	cr_assert(sk_cat_slot_add(state[0], (uint64_t[2]){ SK_PAGE }, NULL));
	cr_assert_eq(sk_cat_slot_take(state[0], 2, 0, false, &slot, &evicted,
				      NULL), 0);
	sk_cat_slot_clear(slot);
	return sk_cat_job_get(cat, "job", 0);
}

/* What cannot be decided for want of memory is not decided: nothing is given
 * up for it, and it is decided when there is memory. */
static uint64_t ask_without_memory(struct sk_layout **layouts, uint64_t n)
{
	struct sk_cat_snapshot *first, *second;
	struct sk_catalogue cat;
	struct sk_cat_job *job = two_steps(&cat, layouts);
	bool complete, hopeless;
	uint64_t hits;

	first = sk_cat_snapshot_find(job, 0, 0, 1);
	second = sk_cat_snapshot_find(job, 0, 0, 2);
	sk_fault_alloc_fail(n, SK_FAULT_ALLOC_ALWAYS);
	complete = sk_cat_complete(first);
	hopeless = sk_cat_hopeless(second);
	hits = sk_fault_alloc_end(NULL);
	cr_assert(complete || hits, "allocation %d", (int)n);
	cr_assert(hopeless || hits, "allocation %d", (int)n);
	/* Known by what was asked without memory, or not at all. */
	cr_assert(complete || sk_cat_undecided(first));
	sk_fault_alloc_fail(1, SK_FAULT_ALLOC_ALWAYS);
	cr_assert(sk_cat_complete(first) || sk_cat_protected(first));
	cr_assert(sk_cat_complete(first) || !sk_cat_flushable(first));
	sk_fault_alloc_end(NULL);
	cr_assert_eq(sk_cat_refresh(job), 0);
	cr_assert(sk_cat_complete(first) && sk_cat_flushable(first),
		  "allocation %d", (int)n);
	cr_assert(sk_cat_hopeless(second), "allocation %d", (int)n);
	sk_cat_destroy(&cat);
	return hits;
}

Test(alloc, undecided)
{
	struct sk_layout *layouts[WORLD];
	uint64_t hits = 1;

	for (int i = 0; i < WORLD; i++)
		layouts[i] = built(i, SK_IMAGE_PRIMARY);
	for (uint64_t n = 1; hits; n++)
		hits = ask_without_memory(layouts, n);
	for (int i = 0; i < WORLD; i++)
		sk_layout_free(layouts[i]);
}
