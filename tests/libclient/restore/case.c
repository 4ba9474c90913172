/* SPDX-License-Identifier: Apache-2.0 */
#include "case.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "stub-agent.h"
#include "support/random.h"
#include "tensor/dtype.h"
#include "tensor/mesh.h"

/* ---- random numbers ---- */

static uint64_t seed_state;

void draw_from(uint64_t seed)
{
	seed_state = seed;
}

int64_t below(int64_t n)
{
	return (int64_t)draw(&seed_state, (uint64_t)n);
}

bool one_in(int n)
{
	return !below(n);
}

/* ---- a case ---- */
static struct sk_mesh *random_mesh(int world)
{
	int32_t ranks[RANKS_MAX];
	int64_t shape[2] = { 1, 1 };
	struct sk_mesh *mesh;
	int n = 1 + (int)below(world), ndim;

	for (int i = 0; i < world; i++)
		ranks[i] = i;
	for (int i = 0; i < world; i++) {
		int k = (int)below(world);
		int32_t r = ranks[i];

		ranks[i] = ranks[k];
		ranks[k] = r;
	}
	shape[0] = n;
	ndim = 1 + (n > 1 && one_in(2));
	if (ndim == 2) {
		shape[0] = n % 2 ? 1 : 2;
		shape[1] = n / shape[0];
	}
	cr_assert(!sk_mesh_new(ndim, shape, ranks, NULL, &mesh, NULL));
	return mesh;
}

static void place(struct sk_spec *s, int world)
{
	s->mesh = one_in(6) ? NULL : random_mesh(world);
	for (int m = 0; s->mesh && m < sk_mesh_ndim(s->mesh); m++) {
		int d = s->ndim ? (int)below(s->ndim) : 0;

		if (!s->ndim || one_in(3))
			s->placements[m] = SK_REPLICATE;
		else if (one_in(5))
			s->placements[m] =
				SK_STRIDED_SHARD(d, 1 + below(3));
		else
			s->placements[m] = SK_SHARD(d);
	}
}

/* Cuts the whole into two, those into two, ... */
static void cut_boxes(struct tensor *t, int world)
{
	t->boxes = calloc(8, sizeof(*t->boxes));
	t->owners = calloc(8, sizeof(*t->owners));
	t->boxes[t->n_boxes++] = sk_box_whole(t->source.ndim, t->source.shape);
	while (t->n_boxes < 8 && !one_in(4)) {
		struct sk_box *b = &t->boxes[below(t->n_boxes)], c = *b;
		int d = (int)below(t->source.ndim);
		int64_t at;

		if (b->size[d] < 2)
			continue;
		at = 1 + below(b->size[d] - 1);
		c.offset[d] += at;
		c.size[d] -= at;
		b->size[d] = at;
		t->boxes[t->n_boxes++] = c;
	}
	for (int i = 0; i < t->n_boxes; i++)
		t->owners[i] = (int)below(world);
}

static void random_tensor(struct test *test, struct tensor *t, int i)
{
	static const enum sk_dtype types[] = { SK_U8, SK_BF16, SK_F32,
					       SK_F64 };
	bool large = one_in(12);
	int64_t count = 1;

	*t = (struct tensor){ .everywhere = { one_in(2), one_in(2) } };
	(void)snprintf(t->name, sizeof(t->name), "layers.%d.w", i);
	t->source.name = t->name;
	t->source.dtype = types[below(4)];
	t->source.ndim = large ? 2 : (int)below(4);
	for (int d = 0; d < t->source.ndim; d++) {
		t->source.shape[d] = large ? 500 + below(300) : below(10);
		count *= t->source.shape[d];
	}
	t->target = t->source;
	place(&t->source, test->world[0]);
	place(&t->target, test->world[1]);
	if (!t->source.ndim || !count || !one_in(5))
		return;
	t->explicit_source = one_in(2);
	t->explicit_target = !t->explicit_source || one_in(2);
	cut_boxes(t, test->world[0] < test->world[1] ? test->world[0] :
							test->world[1]);
}

bool describes(const struct tensor *t, const struct sk_spec *s,
	       bool everywhere, int rank)
{
	int64_t coords[SK_MAX_DIMS];

	(void)t;
	return everywhere || !s->mesh || !sk_mesh_coords(s->mesh, rank, coords);
}

void free_test(struct test *test)
{
	sk_nodes_unref(test->nodes);
	for (int i = 0; i < test->n; i++) {
		sk_mesh_unref((struct sk_mesh *)test->tensors[i].source.mesh);
		sk_mesh_unref((struct sk_mesh *)test->tensors[i].target.mesh);
		free(test->tensors[i].boxes);
		free(test->tensors[i].owners);
	}
	forget_images();
}

void random_test(struct test *test, uint64_t seed)
{
	*test = (struct test){ 0 };
	draw_from(seed);
	salt = 0;
	test->world[0] = 1 + (int)below(RANKS_MAX);
	test->world[1] = 1 + (int)below(RANKS_MAX);
	test->strided = one_in(3);
	test->n = 1 + (int)below(5);
	for (int i = 0; i < test->n; i++)
		random_tensor(test, &test->tensors[i], i);
}

void plain_test(struct test *test, int from, int to)
{
	struct tensor *t = &test->tensors[0];

	*test = (struct test){ .world = { from, to }, .n = 1 };
	forget_images();
	salt = 0;
	strcpy(t->name, "wq");
	t->source = (struct sk_spec){
		.name = t->name, .dtype = SK_F32, .ndim = 2,
		.shape = { 1024, 1024 }, .placements = { SK_SHARD(0) },
	};
	t->target = t->source;
	cr_assert(!sk_mesh_new(1, (const int64_t[]){ from }, NULL, NULL,
			       (struct sk_mesh **)&t->source.mesh, NULL));
	cr_assert(!sk_mesh_new(1, (const int64_t[]){ to }, NULL, NULL,
			       (struct sk_mesh **)&t->target.mesh, NULL));
}

/* ---- saving ---- */

int own_boxes(const struct tensor *t, int rank, struct sk_box *boxes)
{
	int n = 0;

	for (int i = 0; i < t->n_boxes; i++)
		if (t->owners[i] == rank)
			boxes[n++] = t->boxes[i];
	return n;
}

static struct sk_item blob_item(const char *name, enum sk_item_kind kind,
				int64_t size)
{
	return (struct sk_item){
		.spec = { .name = name, .dtype = SK_U8, .ndim = 1,
			  .shape = { size } },
		.kind = kind,
	};
}

static int items_of(const struct test *test, int rank, struct sk_item *items,
		    struct sk_box (*boxes)[8])
{
	int n = 0;

	for (int i = 0; i < test->n; i++) {
		const struct tensor *t = &test->tensors[i];
		struct sk_item item = { .spec = t->source };

		if (t->explicit_source) {
			item.n_boxes = own_boxes(t, rank, boxes[i]);
			item.boxes = boxes[i];
			item.explicit_boxes = true;
		} else if (!describes(t, &t->source, t->everywhere[0],
				      rank)) {
			continue;
		}
		items[n++] = item;
	}
	items[n++] = blob_item("config", SK_ITEM_BLOB, 100);
	items[n++] = blob_item("rng", SK_ITEM_BLOB_LOCAL,
			       40 + (int64_t)rank * test->own_more);
	return n;
}

void save(const struct test *test, uint64_t run, int64_t step, int where)
{
	for (int rank = 0; rank < test->world[0]; rank++) {
		struct sk_box boxes[5][8];
		struct sk_item items[8];
		int n = items_of(test, rank, items, boxes);

		for (int kind = 0; kind < 2; kind++) {
			struct sk_layout *l = NULL;
			struct sk_err err = { "" };
			bool disk = !kind && where, memory = where != 2;

			if (!kind && where == 3 && one_in(3))
				memory = false;
			cr_assert(!sk_layout_new_over(
				JOB, rank, test->world[0],
				(enum sk_image_kind)kind, test->nodes, items,
				(uint32_t)n, &l, &err), "%s", err.text);
			if ((kind && !l->n_entries) || (!memory && !disk))
				sk_layout_free(l);
			else
				add_image(l, run, step, memory, disk);
		}
	}
}
