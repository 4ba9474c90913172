/* SPDX-License-Identifier: Apache-2.0 */
/* What is recalled or computed must be what parsing gives. */
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "layout/recall.h"
#include "base/util.h"

#define RANKS 6

struct job {
	struct sk_mesh *mesh;
	struct sk_layout *l[RANKS][2];
};

static uint32_t draw(uint32_t *seed, uint32_t n)
{
	*seed = *seed * 1664525u + 1013904223u;
	return (*seed >> 8) % n;
}

static void draw_item(uint32_t *seed, const struct sk_mesh *mesh,
		      const char *name, struct sk_item *item)
{
	*item = (struct sk_item){ .spec = { .name = name, .dtype = SK_F32,
					    .ndim = 2, .mesh = mesh } };
	for (int d = 0; d < 2; d++)
		item->spec.shape[d] = 1 + draw(seed, 9);
	for (int m = 0; m < 2; m++)
		item->spec.placements[m] = draw(seed, 3) ?
			(struct sk_placement)SK_SHARD((int)draw(seed, 2)) :
			(struct sk_placement)SK_REPLICATE;
	if (draw(seed, 5) == 0)
		item->spec.mesh = NULL;	/* whole on every rank */
}

/* Six ranks as 2 x 3 or 3 x 2; @local bytes of blobs of their own. */
static void make(struct job *j, const char *name, uint32_t seed,
		 const int64_t *local)
{
	int64_t shape[2] = { 2 + draw(&seed, 2), 0 };
	struct sk_item items[12];
	char names[12][16];
	uint32_t n;

	shape[1] = RANKS / shape[0];
	cr_assert_eq(sk_mesh_new(2, shape, NULL, NULL, &j->mesh, NULL), 0);
	for (n = 0; n < 10; n++) {
		(void)snprintf(names[n], sizeof(names[n]), "w\"%u\\", n);
		draw_item(&seed, j->mesh, names[n], &items[n]);
	}
	for (int r = 0; r < RANKS; r++) {
		items[n] = (struct sk_item){ .kind = SK_ITEM_BLOB_LOCAL,
			.spec = { .name = "rng", .dtype = SK_U8, .ndim = 1,
				  .shape = { local ? local[r] : 16 } } };
		for (int k = 0; k < 2; k++)
			cr_assert_eq(sk_layout_new(name, r, RANKS,
						   (enum sk_image_kind)k,
						   items, n + 1, &j->l[r][k],
						   NULL), 0);
	}
}

static void drop(struct job *j)
{
	for (int r = 0; r < RANKS; r++)
		for (int k = 0; k < 2; k++)
			sk_layout_free(j->l[r][k]);
	sk_mesh_unref(j->mesh);
}

/* A header as it lies in an image. */
static char *stamped(const struct sk_layout *l, uint64_t step)
{
	_cleanup_free_ uint64_t *sums = calloc(l->n_sums + 1u, sizeof(*sums));
	struct sk_stamp stamp = { .run = 3, .run_id = 33, .step = step,
				  .sums = sums };
	char *header = malloc(l->header_bytes);

	cr_assert(sums && header);
	for (uint32_t i = 0; i < l->n_sums; i++)
		sums[i] = step * 0x9e3779b97f4a7c15u + i;
	sk_layout_stamp(l, &stamp, header);
	return header;
}

static struct sk_layout *get(struct sk_recall *m, const char *job,
			     const struct sk_layout *l, uint64_t step)
{
	_cleanup_free_ char *header = stamped(l, step);
	struct sk_layout *found = NULL;
	struct sk_err err = { "" };

	cr_assert_eq(sk_recall_get(m, job, l->rank, l->kind, header,
				   l->header_bytes, l->image_bytes, &found,
				   &err), 0, "%s", err.text);
	cr_assert(sk_digest_equal(&found->digest, &l->digest));
	cr_assert_eq(found->n_entries, l->n_entries);
	cr_assert_eq(found->image_bytes, l->image_bytes);
	for (uint32_t i = 0; i < l->n_entries; i++) {
		cr_assert_eq(found->entries[i].offset, l->entries[i].offset);
		cr_assert_eq(found->entries[i].item, l->entries[i].item);
	}
	return found;
}

Test(layout_recall, gives_what_parsing_gives)
{
	for (uint32_t seed = 1; seed <= 60; seed++) {
		struct sk_recall *m = sk_recall_new();
		struct job j;

		make(&j, "job", seed, NULL);
		for (int r = 0; r < RANKS; r++)
			for (int k = 0; k < 2; k++)
				sk_layout_free(get(m, "job", j.l[r][k], 7));
		sk_recall_free(m);
		drop(&j);
	}
}

Test(layout_recall, one_header_is_one_layout_whatever_its_stamp)
{
	struct sk_recall *m = sk_recall_new();
	struct sk_layout *a, *b;
	struct job j;

	make(&j, "job", 5, NULL);
	a = get(m, "job", j.l[2][0], 7);
	b = get(m, "job", j.l[2][0], 8);
	cr_assert_eq(a, b);
	sk_layout_free(a);
	/* The one that was never stamped is as good. */
	cr_assert_eq(sk_recall_get(m, "job", 2, SK_IMAGE_PRIMARY,
				   j.l[2][0]->header, j.l[2][0]->header_bytes,
				   j.l[2][0]->image_bytes, &a, NULL), 0);
	cr_assert_eq(a, b);
	sk_layout_free(a);
	sk_recall_clear(m);
	a = get(m, "job", j.l[2][0], 8);
	cr_assert_neq(a, b, "it was to be forgotten");
	sk_layout_free(a);
	sk_layout_free(b);
	sk_recall_free(m);
	drop(&j);
}

Test(layout_recall, ranks_that_are_not_alike_are_parsed)
{
	const int64_t local[RANKS] = { 1, 20, 300, 4000, 5, 60 };
	struct sk_recall *m = sk_recall_new();
	struct job j, other;

	make(&j, "job", 9, local);
	make(&other, "other", 10, NULL);
	for (int r = 0; r < RANKS; r++) {
		sk_layout_free(get(m, "job", j.l[r][0], 1));
		sk_layout_free(get(m, "other", other.l[r][0], 1));
		/* Asked for as another's: the header counts. */
		sk_layout_free(get(m, "other", j.l[r][0], 2));
	}
	sk_recall_free(m);
	drop(&j);
	drop(&other);
}

Test(layout_recall, boxes_said_one_by_one_are_read)
{
	struct sk_recall *m = sk_recall_new();
	struct sk_layout *l[2];

	for (int r = 0; r < 2; r++) {
		struct sk_box box = { .offset = { 4 * r }, .size = { 4 } };
		struct sk_item item = { .explicit_boxes = true, .n_boxes = 1,
			.boxes = &box, .spec = { .name = "flat", .ndim = 1,
			.dtype = SK_F32, .shape = { 8 } } };

		cr_assert_eq(sk_layout_new("job", r, 2, SK_IMAGE_PRIMARY,
					   &item, 1, &l[r], NULL), 0);
		sk_layout_free(get(m, "job", l[r], 1));
	}
	sk_recall_free(m);
	sk_layout_free(l[0]);
	sk_layout_free(l[1]);
}

Test(layout_recall, a_damaged_header_is_refused_as_by_parsing)
{
	struct sk_recall *m = sk_recall_new();
	struct job j;
	const struct sk_layout *l;
	uint32_t seed = 77;
	char *header;

	make(&j, "job", 3, NULL);
	l = j.l[1][0];
	for (int r = 0; r < RANKS; r++)
		sk_recall_add(m, j.l[r][0]);
	header = stamped(l, 4);
	for (int i = 0; i < 300; i++) {
		size_t at = draw(&seed, (uint32_t)l->header_bytes);
		char kept = header[at];
		struct sk_layout *a = NULL, *b = NULL;
		int r, p;

		header[at] = (char)(kept ^ (1 + draw(&seed, 127)));
		r = sk_recall_get(m, "job", l->rank, l->kind, header,
				  l->header_bytes, l->image_bytes, &a, NULL);
		p = sk_layout_parse(header, l->header_bytes, l->image_bytes,
				    &b, NULL);
		cr_assert_eq(r, p, "byte %zu: %d and %d", at, r, p);
		sk_layout_free(a);
		sk_layout_free(b);
		header[at] = kept;
	}
	/* Cut short, and with an image of another length. */
	for (size_t n = 0; n < 64; n += 4) {
		struct sk_layout *none = NULL;

		cr_assert_eq(sk_recall_get(m, "job", 1, l->kind, header, n,
					   0, &none, NULL), -EBADMSG);
	}
	cr_assert_eq(sk_recall_get(m, "job", 1, l->kind, header,
				   l->header_bytes, l->image_bytes + 1,
				   &(struct sk_layout *){ NULL }, NULL),
		     -EBADMSG);
	free(header);
	sk_recall_free(m);
	drop(&j);
}

/* What a sketch leaves out can be computed, local blobs of any size too. */
Test(layout_recall, a_sketch_is_of_the_whole)
{
	const int64_t local[RANKS] = { 3, 14, 15, 92, 6, 5 };
	struct sk_recall *m = sk_recall_new();
	struct job j;

	make(&j, "job", 77, local);
	cr_assert_null(sk_recall_described(m, j.l[0][0]));
	for (int r = 0; r < RANKS; r++)
		for (int k = 0; k < 2; k++)
			sk_recall_add(m, j.l[r][k]);
	for (int r = 0; r < RANKS; r++)
		for (int k = 0; k < 2; k++) {
			struct sk_layout *base, *whole = NULL, *l = j.l[r][k];
			struct sk_layout *sketch;

			base = sk_recall_described(m, l);
			cr_assert_eq(base, j.l[0][0], "one for all");
			sketch = sk_layout_sketch(base, l);
			cr_assert(!sketch->header && !sketch->n_entries);
			cr_assert_eq(sketch->rank, r);
			cr_assert_lt(sk_layout_memory(sketch), 1024);
			cr_assert_eq(sk_layout_whole(sketch, &whole), 0);
			cr_assert_eq(whole->header_bytes, l->header_bytes);
			cr_assert_arr_eq(whole->header, l->header,
					 l->header_bytes);
			sk_layout_free(whole);
			/* One that is not of that base, whatever it says. */
			sketch->digest.bytes[3] ^= 1;
			cr_assert_eq(sk_layout_whole(sketch, &whole),
				     -EBADMSG);
			sk_layout_free(sketch);
			sk_layout_free(base);
		}
	/* The one that others lean on goes; the next one stands in. */
	sk_recall_drop(m, j.l[0][0]);
	cr_assert_null(sk_recall_described(m, j.l[0][0]));
	sk_recall_add(m, j.l[3][0]);
	sk_recall_drop(m, j.l[3][0]);
	sk_recall_add(m, j.l[3][0]);
	sk_layout_free(sk_recall_described(m, j.l[0][0]));
	sk_recall_free(m);
	drop(&j);
}

/* Looks at layouts for @world headers that come twice. */
static uint64_t looks_for(int world)
{
	struct sk_item item = { .spec = { .name = "w", .dtype = SK_U8,
					  .ndim = 1, .shape = { 1 << 14 } } };
	struct sk_recall *m = sk_recall_new();
	struct sk_mesh *mesh = NULL;
	uint64_t looks;

	cr_assert_eq(sk_mesh_new(1, (int64_t[]){ world }, NULL, NULL, &mesh,
				 NULL), 0);
	item.spec.mesh = mesh;
	item.spec.placements[0] = (struct sk_placement)SK_SHARD(0);
	for (int i = 0; i < 2 * world; i++) {
		struct sk_layout *l = NULL;

		cr_assert_eq(sk_layout_new("job", i % world, world,
					   SK_IMAGE_PRIMARY, &item, 1, &l,
					   NULL), 0);
		sk_layout_free(get(m, "job", l, 1));
		sk_layout_free(l);
	}
	looks = sk_recall_looks(m);
	sk_recall_free(m);
	sk_mesh_unref(mesh);
	return looks;
}

Test(layout_recall, a_header_costs_the_same_among_few_and_many)
{
	uint64_t few = looks_for(64), many = looks_for(1024);

	cr_assert_leq(few, 4 * 2 * 64, "%llu", (unsigned long long)few);
	cr_assert_leq(many, 4 * 2 * 1024, "%llu", (unsigned long long)many);
}

/* What is beyond the bytes goes, oldest first, and can be had again. */
Test(layout_recall, the_oldest_are_forgotten, .timeout = 300)
{
	enum { N = 80, BOXES = 1 << 16 };
	struct sk_item item = { .kind = SK_ITEM_BLOB_LOCAL, .spec = {
		.name = "b", .dtype = SK_U8, .ndim = 1 } };
	struct sk_recall *m = sk_recall_new();
	struct sk_layout *l[N] = { NULL };

	/* Each has a header of some 2 MiB: so many checksums. */
	for (int i = 0; i < N; i++) {
		item.spec.shape[0] = (int64_t)(BOXES + 1000 * i) << 20;
		cr_assert_eq(sk_layout_new("job", i, N, SK_IMAGE_PRIMARY,
					   &item, 1, &l[i], NULL), 0);
		sk_recall_add(m, l[i]);
	}
	for (int i = 0; i < N; i += N - 1) {
		struct sk_layout *found = get(m, "job", l[i], 1);

		cr_assert_eq(found == l[i], i == N - 1);
		sk_layout_free(found);
	}
	sk_recall_free(m);
	for (int i = 0; i < N; i++)
		sk_layout_free(l[i]);
}

struct asker {
	struct sk_recall *recall;
	const struct job *job;
};

static void *ask(void *arg)
{
	struct asker *a = arg;

	for (int i = 0; i < 200; i++) {
		sk_layout_free(get(a->recall, "job", a->job->l[i % RANKS][0],
				   (uint64_t)i));
		if (i % 16 == 0)
			sk_recall_clear(a->recall);
	}
	return NULL;
}

Test(layout_recall, several_threads_may_ask)
{
	struct job j;
	struct asker a = { .recall = sk_recall_new(), .job = &j };
	pthread_t threads[4];

	make(&j, "job", 21, NULL);
	for (int i = 0; i < 4; i++)
		cr_assert_eq(pthread_create(&threads[i], NULL, ask, &a), 0);
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	sk_recall_free(a.recall);
	drop(&j);
}

/* Whose description is the same has a layout that follows by arithmetic. */
Test(recall, a_digest_is_found_without_its_header)
{
	const int64_t local[RANKS] = { 1, 2, 3, 4, 5, 6 };

	for (uint32_t seed = 1; seed <= 40; seed++) {
		struct sk_recall *recall = sk_recall_new();
		struct sk_layout *l = NULL;
		struct job same, other, own;

		make(&same, "same", seed, NULL);
		make(&other, "same", seed + 100, NULL);
		make(&own, "same", seed, local);
		for (int r = 0; r < RANKS; r++)
			for (int k = 0; k < 2; k++) {
				const struct sk_layout *want = same.l[r][k];

				cr_assert_eq(sk_recall_find(recall,
					same.l[0][0], r, (enum sk_image_kind)k,
					&want->digest, &l), 0);
				cr_assert(!memcmp(l->header, want->header,
						  want->header_bytes));
				l = sk_layout_free(l);
				/* Remembered from here on. */
				cr_assert_eq(sk_recall_find(recall, NULL, r,
					(enum sk_image_kind)k, &want->digest,
					&l), 0);
				l = sk_layout_free(l);
				cr_assert_eq(want->description,
					     same.l[0][0]->description);
				cr_assert_eq(want->description,
					     own.l[r][k]->description);
				cr_assert_neq(want->description,
					      other.l[r][k]->description);
				cr_assert_eq(sk_recall_find(recall,
					same.l[0][0], r, (enum sk_image_kind)k,
					&other.l[r][k]->digest, &l), -ENOENT);
			}
		/* Rank 1's blob has another size than rank 0's. */
		cr_assert_eq(sk_recall_find(recall, own.l[0][0], 1,
					    SK_IMAGE_PRIMARY,
					    &own.l[1][0]->digest, &l),
			     -ENOENT);
		drop(&same);
		drop(&other);
		drop(&own);
		sk_recall_free(recall);
	}
}

/* All but the header itself. */
static void compare_image(const struct sk_layout *l,
			  const struct sk_layout *want)
{
	cr_assert_eq(l->rank, want->rank);
	cr_assert_eq(l->kind, want->kind);
	cr_assert(sk_digest_equal(&l->digest, &want->digest));
	cr_assert_eq(l->description, want->description);
	cr_assert_eq(l->image_bytes, want->image_bytes);
	cr_assert_eq(l->header_bytes, want->header_bytes);
	cr_assert_eq(l->n_sums, want->n_sums);
	cr_assert_eq(l->n_entries, want->n_entries);
	for (uint32_t i = 0; i < l->n_entries; i++) {
		const struct sk_entry *e = &l->entries[i];
		const struct sk_item *item = &l->items[e->item];

		cr_assert_eq(e->item, want->entries[i].item);
		cr_assert_eq(e->offset, want->entries[i].offset);
		cr_assert_eq(e->bytes, want->entries[i].bytes);
		cr_assert_eq(e->first_sum, want->entries[i].first_sum);
		cr_assert(sk_box_equal(item->spec.ndim, &e->box,
				       &want->entries[i].box));
		cr_assert_eq(sk_layout_find(l, item->kind, item->spec.name,
					    e->box.offset), e);
	}
}

static void compare_outline(struct sk_layout *l, const struct sk_layout *want)
{
	struct sk_layout *whole = NULL;

	cr_assert_null(l->header);
	compare_image(l, want);
	for (uint32_t i = 0; i < l->n_items; i++) {
		_cleanup_free_ struct sk_box *boxes = NULL;
		int n;

		cr_assert_eq(sk_layout_boxes(l, &l->items[i], &boxes, &n), 0);
		cr_assert_eq(n, want->items[i].n_boxes);
		for (int b = 0; b < n; b++)
			cr_assert(sk_box_equal(want->items[i].spec.ndim,
					       &boxes[b],
					       &want->items[i].boxes[b]));
	}
	cr_assert_eq(sk_layout_whole(l, &whole), 0);
	cr_assert(!memcmp(whole->header, want->header, want->header_bytes));
	sk_layout_free(whole);
}

/* Of all entries. */
static int outline(struct sk_layout *base, int32_t rank,
		   enum sk_image_kind kind, const struct sk_digest *digest,
		   struct sk_layout **ret)
{
	return sk_layout_outline(base, rank, kind, digest, NULL, NULL, ret);
}

/* Of any rank, from any other, and of an outline too; or it is none. */
Test(recall, an_outline_is_the_layout_but_for_its_header)
{
	const int64_t local[RANKS] = { 1, 2, 3, 4, 5, 6 };

	for (uint32_t seed = 1; seed <= 40; seed++) {
		struct job same, own;

		make(&same, "same", seed, NULL);
		make(&own, "same", seed, local);
		for (int r = 0; r < RANKS; r++)
			for (int k = 0; k < 2; k++) {
				const struct sk_layout *want = same.l[r][k];
				struct sk_layout *base =
					same.l[(r + (int)seed) % RANKS][0];
				struct sk_layout *l = NULL, *again = NULL;

				cr_assert_eq(outline(base, r, want->kind,
						     &want->digest, &l), 0);
				compare_outline(l, want);
				cr_assert_eq(outline(l, r, want->kind,
						     &want->digest, &again),
					     0);
				sk_layout_free(l);
				compare_outline(again, want);
				sk_layout_free(again);
				/* Its blob has another size. */
				cr_assert_eq(outline(base, r, want->kind,
						     &own.l[r][k]->digest, &l),
					     -ENOENT);
			}
		drop(&same);
		drop(&own);
	}
}

static void compare_stamps(const struct sk_layout *sketch,
			   const struct sk_layout *whole, const char *header)
{
	_cleanup_free_ uint64_t *a = calloc(whole->n_sums + 1u, sizeof(*a));
	_cleanup_free_ uint64_t *b = calloc(whole->n_sums + 1u, sizeof(*b));
	struct sk_stamp x = { .sums = a }, y = { .sums = b };

	cr_assert_eq(sk_layout_read_stamp(whole, header, &x, NULL), 0);
	cr_assert_eq(sk_layout_read_stamp(sketch, header, &y, NULL), 0);
	cr_assert_eq(x.run, y.run);
	cr_assert_eq(x.run_id, y.run_id);
	cr_assert_eq(x.step, y.step);
	cr_assert(!memcmp(a, b, whole->n_sums * sizeof(*a)));
}

/* And by its digest no other layout's stamp is taken for its own. */
Test(recall, a_sketch_reads_the_stamp_of_its_header_alone)
{
	for (uint32_t seed = 1; seed <= 40; seed++) {
		struct job j;

		make(&j, "stamps", seed, NULL);
		for (int n = 0; n < 2 * RANKS; n++) {
			struct sk_layout *l = j.l[n / 2][n % 2];
			struct sk_layout *sketch = sk_layout_sketch(j.l[0][0],
								    l);
			uint64_t sums[64];
			struct sk_stamp stamp = { .sums = sums };
			char *header = stamped(l, seed);

			compare_stamps(sketch, l, header);
			cr_assert_leq(l->n_sums, 64);
			sketch->digest.bytes[7] ^= 1;
			cr_assert_eq(sk_layout_read_stamp(sketch, header,
							  &stamp, NULL),
				     -EBADMSG);
			sk_layout_free(sketch);
			free(header);
		}
		drop(&j);
	}
}

/* Names that are the words of a header, and a tensor of several MiB. */
Test(recall, no_name_is_taken_for_a_field)
{
	const char *names[] = {
		"\"xxh3\":[\"", "],\"entries\":[", "\\\"run\":", "\"step\":\\",
		"\\", "\\\\\"xxh3\\\":[\\\"0000000000000000\\\"", "xxh3",
		"\",\"shardkeep\":\"", "\\\",\\\"shardkeep\\\":\\\"",
	};
	struct sk_item items[SK_ARRAY_SIZE(names)] = { 0 };
	struct sk_layout *l, *sketch;
	char *header;

	for (size_t i = 0; i < SK_ARRAY_SIZE(names); i++)
		items[i].spec = (struct sk_spec){
			.name = names[i], .dtype = SK_U8, .ndim = 1,
			.shape = { i % 3 ? 10 : 3 << 20 } };
	cr_assert_eq(sk_layout_new("run.step", 0, 1, SK_IMAGE_PRIMARY, items,
				   SK_ARRAY_SIZE(names), &l, NULL), 0);
	cr_assert_eq(l->n_sums, 3 * 3 + 6);
	sketch = sk_layout_sketch(l, l);
	header = stamped(l, 17);
	compare_stamps(sketch, l, header);
	free(header);
	sk_layout_free(sketch);
	sk_layout_free(l);
}

struct choice {
	uint32_t every, asked;
};

static bool keeps_some(const struct sk_layout *l, const struct sk_entry *e,
		       void *ctx)
{
	struct choice *c = ctx;

	cr_assert_eq(e->index, c->asked++);
	cr_assert(e->item < l->n_items);
	return c->every && e->index % c->every == 0;
}

static void compare_kept(const struct sk_layout *l,
			 const struct sk_layout *want, uint32_t every)
{
	uint32_t kept = 0;

	for (uint32_t i = 0; i < want->n_entries; i++) {
		const struct sk_entry *w = &want->entries[i];
		const struct sk_entry *e = sk_layout_entry(l, i);
		const struct sk_item *item = &want->items[w->item];

		cr_assert_eq(sk_layout_entry(want, i), w);
		cr_assert_eq(sk_layout_find(l, item->kind, item->spec.name,
					    w->box.offset), e);
		cr_assert_eq(e != NULL, every && i % every == 0);
		if (!e)
			continue;
		kept++;
		cr_assert_eq(e->index, i);
		cr_assert_eq(e->item, w->item);
		cr_assert_eq(e->offset, w->offset);
		cr_assert_eq(e->first_sum, w->first_sum);
	}
	cr_assert_eq(l->n_entries, kept);
	cr_assert_null(sk_layout_entry(l, want->n_entries));
	cr_assert_eq(l->n_sums, want->n_sums);
	cr_assert_eq(l->image_bytes, want->image_bytes);
}

/* Whose digest is of all entries may keep a few, or none. */
Test(recall, an_outline_keeps_the_entries_that_are_asked_for)
{
	for (uint32_t seed = 1; seed <= 40; seed++) {
		struct job j;

		make(&j, "some", seed, NULL);
		for (int n = 0; n < 2 * RANKS * 4; n++) {
			int kind = n / RANKS % 2;
			const struct sk_layout *want = j.l[n % RANKS][kind];
			struct choice c = { .every = (uint32_t)n / RANKS / 2 };
			struct sk_layout *l = NULL, *whole = NULL;

			cr_assert_eq(sk_layout_outline(j.l[0][0], want->rank,
				want->kind, &want->digest, keeps_some, &c,
				&l), 0);
			cr_assert_eq(c.asked, want->n_entries);
			compare_kept(l, want, c.every);
			cr_assert_eq(sk_layout_whole(l, &whole), 0);
			compare_kept(whole, want, 1);
			sk_layout_free(whole);
			sk_layout_free(l);
		}
		drop(&j);
	}
}

/* It takes as much as it keeps, however many entries the image has. */
Test(recall, an_outline_takes_what_it_keeps)
{
	uint64_t bytes[2];

	for (int k = 0; k < 2; k++) {
		char names[1000][16];
		struct sk_item items[1000] = { 0 };
		struct choice c = { 0 };
		struct sk_layout *base, *l;
		uint32_t n = k ? 1000 : 10;

		for (uint32_t i = 0; i < n; i++) {
			(void)snprintf(names[i], sizeof(names[i]), "t%u", i);
			items[i].spec = (struct sk_spec){
				.name = names[i], .dtype = SK_F32, .ndim = 1,
				.shape = { 8 } };
		}
		cr_assert_eq(sk_layout_new("job", 0, 1, SK_IMAGE_PRIMARY,
					   items, n, &base, NULL), 0);
		cr_assert_eq(base->n_entries, n);
		c.every = n;
		cr_assert_eq(sk_layout_outline(base, 0, base->kind,
					       &base->digest, keeps_some, &c,
					       &l), 0);
		cr_assert_eq(l->n_entries, 1);
		bytes[k] = sk_layout_memory(l);
		sk_layout_free(l);
		sk_layout_free(base);
	}
	cr_assert_eq(bytes[0], bytes[1]);
}

/* Who is said to be primary has the entry, and nobody else. */
Test(recall, turns_tell_whose_primary_has_it)
{
	for (uint32_t seed = 1; seed <= 40; seed++) {
		struct job j;

		make(&j, "turns", seed, NULL);
		for (int r = 0; r < RANKS; r++) {
			struct sk_layout *l = j.l[r][0];
			bool has[16] = { false };
			int64_t turns[16];

			cr_assert_eq(sk_layout_turns(l, turns, NULL), 0);
			for (uint32_t e = 0; e < l->n_entries; e++)
				has[l->entries[e].item] |=
					l->entries[e].bytes > 0;
			for (uint32_t i = 0; i < l->n_items; i++) {
				int64_t index, count;

				if (turns[i] < 0)
					continue;
				sk_spec_holder(&l->items[i].spec, r, RANKS,
					       &index, &count);
				cr_assert(turns[i] < count);
				cr_assert_eq(has[i], turns[i] == index,
					     "seed %u rank %d item %u", seed,
					     r, i);
			}
		}
		drop(&j);
	}
}

/* ---- the other image, and what is the same ---- */

static void compare_whole(const struct sk_layout *l,
			  const struct sk_layout *want)
{
	compare_image(l, want);
	cr_assert(!memcmp(l->header, want->header, want->header_bytes));
}

Test(layout_recall, the_other_image_is_what_would_be_laid_out)
{
	const int64_t local[RANKS] = { 3, 14, 15, 92, 6, 5 };

	for (uint32_t seed = 1; seed <= 60; seed++) {
		struct job j;

		make(&j, "job", seed, local);
		for (int r = 0; r < RANKS; r++) {
			struct sk_layout *other = NULL, *again = NULL;
			char *header;

			cr_assert_eq(sk_layout_other(j.l[r][0],
						     SK_IMAGE_REPLICA, &other,
						     NULL), 0);
			compare_whole(other, j.l[r][1]);
			header = stamped(other, 3);
			cr_assert_eq(sk_layout_parse(header,
				other->header_bytes, other->image_bytes,
				&again, NULL), 0);
			free(header);
			again = sk_layout_free(again);
			/* And back, from the one that has no items. */
			cr_assert_eq(sk_layout_other(other, SK_IMAGE_PRIMARY,
						     &again, NULL), 0);
			sk_layout_free(other);
			compare_whole(again, j.l[r][0]);
			sk_layout_free(again);
		}
		drop(&j);
	}
}

/* What is made of a layout may be made of the rank's other image as well. */
Test(layout_recall, the_other_image_stands_for_the_first)
{
	struct sk_layout *other = NULL, *l, *whole = NULL;
	struct sk_recall *m = sk_recall_new();
	struct job j;

	make(&j, "job", 7, NULL);
	cr_assert_eq(sk_layout_other(j.l[0][0], SK_IMAGE_REPLICA, &other,
				     NULL), 0);
	for (int r = 0; r < RANKS; r++)
		for (int k = 0; k < 2; k++) {
			const struct sk_layout *want = j.l[r][k];

			l = sk_layout_sketch(other, want);
			cr_assert_eq(sk_layout_whole(l, &whole), 0);
			compare_whole(whole, want);
			whole = sk_layout_free(whole);
			cr_assert(sk_layout_item(l, SK_ITEM_BLOB_LOCAL,
						 "rng"));
			sk_layout_free(l);
			cr_assert_eq(outline(other, r, (enum sk_image_kind)k,
					     &want->digest, &l), 0);
			cr_assert_eq(l->n_entries, want->n_entries);
			sk_layout_free(l);
			cr_assert_eq(sk_recall_find(m, other, r,
				(enum sk_image_kind)k, &want->digest, &l), 0);
			compare_whole(l, want);
			sk_layout_free(l);
		}
	sk_recall_free(m);
	sk_layout_free(other);
	drop(&j);
}

static struct sk_layout *same(struct sk_recall *m, const struct sk_layout *l,
			      const struct sk_item *items)
{
	return sk_recall_same(m, l->job, l->rank, l->world, l->kind, NULL,
			      items, l->n_items);
}

Test(layout_recall, the_same_items_have_the_same_layout)
{
	struct sk_nodes *nodes = NULL;
	struct sk_box box = { .offset = { 4 }, .size = { 3 } };
	struct sk_recall *m = sk_recall_new();
	const struct sk_layout *l;
	struct sk_item items[11];
	struct sk_layout *found;
	struct job j;

	make(&j, "job", 11, NULL);
	l = j.l[2][0];
	cr_assert_eq(l->n_items, 11u);
	cr_assert_null(same(m, l, l->items), "nothing is known");
	for (int r = 0; r < RANKS; r++)
		for (int k = 0; k < 2; k++)
			sk_recall_add(m, j.l[r][k]);
	for (int r = 0; r < RANKS; r++)
		for (int k = 0; k < 2; k++) {
			found = same(m, j.l[r][k], l->items);
			cr_assert_eq(found, j.l[r][k]);
			sk_layout_free(found);
		}
	for (uint32_t i = 0; i < l->n_items; i++)
		for (int what = 0; what < 6; what++) {
			memcpy(items, l->items, sizeof(items));
			if (what == 0)
				items[i].spec.name = "w";
			if (what == 1)
				items[i].spec.shape[0]++;
			if (what == 2)
				items[i].spec.dtype = SK_I16;
			if (what == 3)
				items[i].kind = SK_ITEM_BLOB;
			if (what == 4 && !items[i].spec.mesh)
				items[i].spec.mesh = j.mesh;
			else if (what == 4)
				items[i].spec.placements[0].kind ^=
					SK_PLACEMENT_REPLICATE ^
					SK_PLACEMENT_SHARD;
			if (what == 5) {
				items[i].explicit_boxes = true;
				items[i].boxes = &box;
				items[i].n_boxes = 1;
			}
			cr_assert_null(same(m, l, items), "%u %d", i, what);
		}
	cr_assert_eq(sk_nodes_new((int32_t[RANKS]){ 0, 1 }, RANKS, &nodes,
				  NULL), 0);
	cr_assert_null(sk_recall_same(m, "job", 2, RANKS, l->kind, nodes,
				      l->items, 11));
	sk_nodes_unref(nodes);
	cr_assert_null(sk_recall_same(m, "job", 2, RANKS, l->kind, NULL,
				      l->items, 10));
	cr_assert_null(sk_recall_same(m, "job", 2, RANKS + 1, l->kind, NULL,
				      l->items, 11));
	cr_assert_null(sk_recall_same(m, "other", 2, RANKS, l->kind, NULL,
				      l->items, 11));
	sk_recall_free(m);
	drop(&j);
}

/* Boxes that were said one by one are looked at one by one. */
Test(layout_recall, the_same_boxes_have_the_same_layout)
{
	struct sk_box boxes[] = { { .offset = { 0 }, .size = { 2 } },
				  { .offset = { 4 }, .size = { 3 } } };
	struct sk_item item = { .explicit_boxes = true, .n_boxes = 2,
		.boxes = boxes, .spec = { .name = "flat", .ndim = 1,
		.dtype = SK_F32, .shape = { 8 } } };
	struct sk_recall *m = sk_recall_new();
	struct sk_layout *l = NULL, *replica = NULL, *other = NULL, *found;

	cr_assert_eq(sk_layout_new("job", 0, 2, SK_IMAGE_PRIMARY, &item, 1,
				   &l, NULL), 0);
	cr_assert_eq(sk_layout_new("job", 0, 2, SK_IMAGE_REPLICA, &item, 1,
				   &replica, NULL), 0);
	sk_recall_add(m, l);
	found = same(m, l, &item);
	cr_assert_eq(found, l);
	sk_layout_free(found);
	cr_assert_eq(sk_layout_other(l, SK_IMAGE_REPLICA, &other, NULL), 0);
	compare_whole(other, replica);
	sk_layout_free(other);
	sk_layout_free(replica);
	boxes[1].size[0] = 4;
	cr_assert_null(same(m, l, &item));
	boxes[1].size[0] = 3;
	item.n_boxes = 1;
	cr_assert_null(same(m, l, &item));
	sk_recall_free(m);
	sk_layout_free(l);
}
