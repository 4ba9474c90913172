/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Drawings of tensors: whatever is sharded over whatever, everybody who holds
 * a part is in the picture, and the picture fits 80 columns.
 */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "cachectl.h"
#include "tensor/mesh.h"
#include "tensor/placement.h"

#define RANKS 24
#define TEXT ((size_t)1 << 18)

struct scene {
	struct sk_spec spec;
	struct sk_mesh *mesh;
	struct draw_part parts[RANKS * 64];
	size_t n;
	bool holds[RANKS];
	char text[TEXT];
};

static struct scene scene;

static void add_parts(struct scene *s)
{
	struct sk_err err;

	for (int32_t rank = 0; rank < sk_mesh_count(s->mesh); rank++) {
		struct sk_box *boxes;
		int n;

		cr_assert_eq(sk_spec_boxes(&s->spec, rank, &boxes, &n, &err),
			     0, "%s", err.text);
		for (int i = 0; i < n; i++) {
			if (sk_box_empty(s->spec.ndim, &boxes[i]))
				continue;
			cr_assert_lt(s->n, SK_ARRAY_SIZE(s->parts));
			s->holds[rank] = true;
			s->parts[s->n++] = (struct draw_part){ boxes[i],
							       rank };
		}
		free(boxes);
	}
}

static void draw(struct scene *s)
{
	struct report *r = report_new();
	FILE *out = fmemopen(s->text, sizeof(s->text), "w");

	draw_tensor(r, s->spec.name, s->spec.ndim, s->spec.shape, s->parts,
		    s->n);
	cr_assert_eq(report_print(r, OUTPUT_TABLE, &(struct style){ 0 }, out),
		     0);
	fclose(out);
	report_free(r);
}

static void set_scene(struct scene *s, int ndim, const int64_t *shape,
		      int mesh_ndim, const int64_t *mesh,
		      const struct sk_placement *placements)
{
	struct sk_err err;

	memset(s, 0, sizeof(*s));
	cr_assert_eq(sk_mesh_new(mesh_ndim, mesh, NULL, NULL, &s->mesh, &err),
		     0);
	s->spec = (struct sk_spec){ .name = "w", .dtype = SK_F32,
				    .ndim = ndim, .mesh = s->mesh };
	memcpy(s->spec.shape, shape, (size_t)ndim * sizeof(*shape));
	memcpy(s->spec.placements, placements,
	       (size_t)mesh_ndim * sizeof(*placements));
	add_parts(s);
	draw(s);
	sk_mesh_unref(s->mesh);
}

/* The ranks in the cells: "3", "0,4", "0-3,7". */
static bool read_ranks(const char *line, bool *drawn)
{
	const char *at = strchr(line, '|');
	bool whole = true;

	while (at && *at && *at != '\n') {
		char *end;
		long from, to;

		if (*at < '0' || *at > '9') {
			whole &= *at++ != '+';
			continue;
		}
		from = to = strtol(at, &end, 10);
		if (*end == '-')
			to = strtol(end + 1, &end, 10);
		for (long r = from; r <= to && r < RANKS; r++)
			drawn[r] = true;
		at = end;
	}
	return whole;
}

/* False: there was no room for all ranks of a cell, and it says so. */
static bool check_all_drawn(const struct scene *s)
{
	bool drawn[RANKS] = { false }, whole = true;
	const char *line = s->text;

	for (; *line; line = strchr(line, '\n') + 1) {
		cr_assert_leq(strcspn(line, "\n"), 80, "%s", s->text);
		whole &= read_ranks(line, drawn);
	}
	for (int r = 0; r < RANKS && whole; r++)
		cr_assert_eq(drawn[r], s->holds[r], "rank %d of\n%s", r,
			     s->text);
	return whole;
}

/* The example of an operator who looked for 12 of his 16 ranks. */
Test(draw, dimensions_that_are_cut)
{
	set_scene(&scene, 3, (int64_t[]){ 8, 3, 16 }, 2, (int64_t[]){ 4, 4 },
		  (struct sk_placement[]){ SK_SHARD(0), SK_SHARD(2) });
	cr_assert(check_all_drawn(&scene));
	cr_assert(strstr(scene.text, "dimension 0"), "%s", scene.text);
	cr_assert(strstr(scene.text, "dimension 2"), "%s", scene.text);
	cr_assert(!strstr(scene.text, "dimension 1"), "%s", scene.text);
}

Test(draw, three_dimensions_that_are_cut)
{
	set_scene(&scene, 3, (int64_t[]){ 4, 6, 8 }, 3,
		  (int64_t[]){ 2, 3, 4 }, (struct sk_placement[]){
		  SK_SHARD(0), SK_SHARD(1), SK_SHARD(2) });
	cr_assert(check_all_drawn(&scene));
}

static struct sk_placement any_placement(int ndim)
{
	int what = rand() % 4;

	if (what == 0 || !ndim)
		return SK_REPLICATE;
	if (what == 1)
		return SK_STRIDED_SHARD(rand() % ndim, 1 + rand() % 3);
	return SK_SHARD(rand() % ndim);
}

Test(draw, everybody_who_holds_a_part_is_drawn)
{
	int whole = 0;

	srand(7);
	for (int i = 0; i < 3000; i++) {
		int ndim = rand() % 5, mesh_ndim = 1 + rand() % 3;
		struct sk_placement placements[3];
		int64_t shape[5], mesh[3];

		for (int d = 0; d < ndim; d++)
			shape[d] = 1 + rand() % (rand() % 4 ? 14 : 14000);
		for (int d = 0; d < mesh_ndim; d++) {
			mesh[d] = 1 + rand() % (mesh_ndim == 1 ? 20 :
						mesh_ndim == 2 ? 4 : 2);
			placements[d] = any_placement(ndim);
		}
		set_scene(&scene, ndim, shape, mesh_ndim, mesh, placements);
		if (!strstr(scene.text, "too finely"))
			whole += check_all_drawn(&scene);
	}
	cr_assert_gt(whole, 2500);
}

static size_t rules(const char *text)
{
	size_t n = 0;

	for (; (text = strstr(text, "+-")); text += strcspn(text, "\n"))
		n++;
	return n;
}

/* Rows of 1 to 7 rows of a tensor: the second cell is far taller. */
Test(draw, to_scale)
{
	struct draw_part parts[] = {
		{ { .size = { 100, 700 } }, 0 },
		{ { .offset = { 100 }, .size = { 700, 700 } }, 1 },
	};
	const char *first, *second, *last;

	memset(&scene, 0, sizeof(scene));
	scene.spec = (struct sk_spec){ .name = "w", .ndim = 2,
				       .shape = { 800, 700 } };
	memcpy(scene.parts, parts, sizeof(parts));
	scene.n = 2;
	draw(&scene);
	cr_assert_eq(rules(scene.text), 3, "%s", scene.text);
	first = strstr(scene.text, "+-");
	second = strstr(strchr(first, '\n'), "+-");
	last = strstr(strchr(second, '\n'), "+-");
	cr_assert_gt(last - second, 4 * (second - first), "%s", scene.text);
}

Test(draw, names_are_cut_not_the_line)
{
	char name[301];

	memset(name, 'x', sizeof(name) - 1);
	name[300] = 0;
	memset(&scene, 0, sizeof(scene));
	scene.spec = (struct sk_spec){ .name = name, .ndim = 1,
				       .shape = { 8 } };
	scene.parts[0] = (struct draw_part){ { .size = { 8 } }, 0 };
	scene.holds[0] = true;
	scene.n = 1;
	draw(&scene);
	cr_assert(check_all_drawn(&scene));
}

Test(draw, many_holders_are_ranges)
{
	set_scene(&scene, 2, (int64_t[]){ 8, 8 }, 1, (int64_t[]){ 16 },
		  (struct sk_placement[]){ SK_REPLICATE });
	cr_assert(strstr(scene.text, "0-15"), "%s", scene.text);
}
