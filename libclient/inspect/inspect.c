/* SPDX-License-Identifier: Apache-2.0 */
/* What snapshots there are and what they hold, as JSON. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <jansson.h>

#include "base/array.h"
#include "base/util.h"
#include "conn/check.h"
#include "conn/client.h"
#include "conn/list.h"
#include "conn/say.h"
#include "inspect/layouts.h"
#include "tensor/dtype.h"
#include "tensor/mesh.h"
#include "tensor/placement.h"

/* One question: a connection of its own, so that leases end with it. */
struct inspecting {
	struct sk *sk;
	struct sk_conn conn;
	struct sk_wire_snapshot snapshot;
	json_t *tensors;	/* array */
	json_t *meshes;		/* array */
	json_t *ranks;		/* array, once all images are added */
	struct sk_mesh **known;	/* those in it; references */
	size_t n_known, room_known;
	json_t *index;		/* object: its elements by kind and name */
	struct sk_layouts layouts;
	bool brief;
	bool chosen;		/* a snapshot that is there */
	struct sk_err err;
};

/* Of one whose images go each time that they are opened, no more is said. */
#define LOOKS_MAX 8

/* ---- one image ---- */

/* Takes both; NULL where there is no memory, from then on. */
static json_t *append(json_t *array, json_t *value)
{
	if (json_array_append_new(array, value) == 0)
		return array;
	json_decref(array);
	return NULL;
}

static json_t *numbers(int n, const int64_t *v)
{
	json_t *array = json_array();

	for (int i = 0; i < n; i++)
		array = append(array, json_integer(v[i]));
	return array;
}

static json_t *mesh_json(const struct sk_mesh *mesh)
{
	json_t *shape = json_array(), *ranks = json_array();
	json_t *names = sk_mesh_name(mesh, 0) ? json_array() : json_null();

	for (int d = 0; d < sk_mesh_ndim(mesh); d++) {
		shape = append(shape, json_integer(sk_mesh_dim(mesh, d)));
		if (sk_mesh_name(mesh, d))
			names = append(names, json_string(
				sk_mesh_name(mesh, d)));
	}
	for (int64_t i = 0; i < sk_mesh_count(mesh); i++)
		ranks = append(ranks,
			       json_integer(sk_mesh_rank_at(mesh, i)));
	return json_pack("{s:o, s:o, s:o}", "shape", shape, "ranks", ranks,
			 "names", names);
}

/* Its index in the table, which it enters when it is first met; or null. */
static json_t *mesh_index(struct inspecting *in, struct sk_mesh *mesh)
{
	if (!mesh)
		return json_null();
	for (size_t i = in->n_known; i-- > 0;)
		if (sk_mesh_equal(in->known[i], mesh))
			return json_integer((json_int_t)i);
	if (sk_array_fit(in->known, in->room_known, in->n_known + 1) < 0)
		return NULL;
	if (json_array_append_new(in->meshes, mesh_json(mesh)) < 0)
		return NULL;
	in->known[in->n_known] = sk_mesh_ref(mesh);
	return json_integer((json_int_t)in->n_known++);
}

static json_t *placements_json(const struct sk_spec *spec)
{
	int n = spec->mesh ? sk_mesh_ndim(spec->mesh) : 0;
	json_t *array = json_array();
	char text[32];

	for (int d = 0; d < n; d++)
		array = append(array, json_string(
			sk_placement_format(&spec->placements[d], text,
					    sizeof(text))));
	return array;
}

static const char *const kinds[] = {
	[SK_ITEM_TENSOR] = "tensor",
	[SK_ITEM_BLOB] = "blob",
	[SK_ITEM_BLOB_LOCAL] = "local",
};

static json_t *item_json(struct inspecting *in, const struct sk_layout *l,
			 const struct sk_item *it)
{
	const struct sk_spec *spec = &it->spec;

	if (in->brief)
		return json_pack("{s:s, s:s, s:i, s:s, s:o}", "name",
				 spec->name, "kind", kinds[it->kind], "rank",
				 it->kind == SK_ITEM_BLOB_LOCAL ? l->rank : -1,
				 "dtype", sk_dtype_name(spec->dtype), "shape",
				 numbers(spec->ndim, spec->shape));
	return json_pack("{s:s, s:s, s:i, s:s, s:o, s:o, s:o, s:b, s:[]}",
			 "name", spec->name, "kind", kinds[it->kind], "rank",
			 it->kind == SK_ITEM_BLOB_LOCAL ? l->rank : -1,
			 "dtype", sk_dtype_name(spec->dtype),
			 "shape", numbers(spec->ndim, spec->shape),
			 "mesh", mesh_index(in, (struct sk_mesh *)spec->mesh),
			 "placements", placements_json(spec),
			 "explicit", it->explicit_boxes, "boxes");
}

/* The element of that item, made when it is first met. */
static json_t *element(struct inspecting *in, const struct sk_layout *l,
		       const struct sk_item *item)
{
	_cleanup_free_ char *key = NULL;
	json_t *found;
	bool indexed;

	if (asprintf(&key, "%d %d %s", (int)item->kind,
		     item->kind == SK_ITEM_BLOB_LOCAL ? l->rank : -1,
		     item->spec.name) < 0)
		return NULL;
	found = json_object_get(in->index, key);
	if (found)
		return found;
	found = item_json(in, l, item);
	indexed = json_object_set(in->index, key, found) == 0;
	/* The array has it, or it is gone. */
	if (json_array_append_new(in->tensors, found) < 0 || !indexed)
		return NULL;
	return found;
}

static int add_box(const struct sk_layout *l, const struct sk_entry *e,
		   json_t *element)
{
	int n = l->items[e->item].spec.ndim;

	return json_array_append_new(
		json_object_get(element, "boxes"),
		json_pack("{s:i, s:o, s:o}", "rank", l->rank, "offset",
			  numbers(n, e->box.offset), "size",
			  numbers(n, e->box.size)));
}

static int add_layout(struct inspecting *in, const struct sk_layout *l)
{
	_cleanup_free_ json_t **of_item = calloc(l->n_items + 1u,
						 sizeof(json_t *));
	bool failed = !of_item;

	for (uint32_t i = 0; i < l->n_items && !failed; i++) {
		of_item[i] = element(in, l, &l->items[i]);
		failed = !of_item[i];
	}
	for (uint32_t i = 0; i < l->n_entries && !failed && !in->brief; i++)
		failed = add_box(l, &l->entries[i],
				 of_item[l->entries[i].item]) < 0;
	return failed ? sk_err_set(&in->err, -ENOMEM, "out of memory") : 0;
}

static int add_image(struct inspecting *in, const struct sk_wire_part *part)
{
	struct sk_layout *l = NULL;
	int r = sk_layouts_get(&in->layouts, part, &l, &in->err);

	if (r >= 0)
		r = add_layout(in, l);
	sk_layout_free(l);
	return r;
}

/* ---- one snapshot ---- */

static bool tells(const struct sk_wire_part *part)
{
	return part->kind == SK_IMAGE_PRIMARY && part->state != SK_IMAGE_BAD;
}

static int by_rank(const void *a, const void *b)
{
	const struct sk_wire_part *x = a, *y = b;

	return x->rank < y->rank ? -1 : x->rank > y->rank;
}

/* The one that tells of each rank goes to the front, by rank. */
static size_t keep_telling(struct sk_wire_part *parts, size_t n)
{
	size_t kept = 0;

	if (n)
		qsort(parts, n, sizeof(*parts), by_rank);
	for (size_t i = 0; i < n; i++)
		if (tells(&parts[i]) &&
		    (!kept || parts[kept - 1].rank != parts[i].rank))
			parts[kept++] = parts[i];
	return kept;
}

/* Whether of what was listed a moment ago some has gone since. */
static int check_there(struct inspecting *in, size_t n)
{
	const struct sk_wire_snapshot *s = &in->snapshot;

	if (n >= s->images)
		return 0;
	return sk_err_set(&in->err, -ENOENT, "of step %" PRId64 " of run %"
			  PRIu64 " of job \"%s\" images went while they were "
			  "looked at", s->id.step, s->id.run, s->id.job);
}

/* Whose they are, by rank: pairs of the first and the last of those that
 * follow each other. */
static json_t *ranks_json(const struct sk_wire_part *parts, size_t n)
{
	json_t *ranks = json_array();

	for (size_t i = 0, k; i < n; i = k) {
		for (k = i + 1; k < n &&
		     parts[k].rank == parts[k - 1].rank + 1;)
			k++;
		ranks = append(ranks, json_pack("[i, i]", parts[i].rank,
						parts[k - 1].rank));
	}
	return ranks;
}

/* Headers are read of those that nothing else tells. */
static int add_images(struct inspecting *in)
{
	_cleanup_free_ struct sk_wire_part *parts = NULL;
	struct sk_wire_id id = in->snapshot.id;
	size_t n = 0;
	int r;

	id.rank = -1;
	in->layouts = (struct sk_layouts){ .sk = in->sk, .conn = &in->conn,
					   .id = id };
	r = sk_list_parts(&in->conn, &id, sk_until(in->sk), &parts, &n,
			  NULL, &in->err);
	if (r >= 0) {
		n = keep_telling(parts, n);
		r = check_there(in, n);
	}
	for (size_t i = 0; i < n && r >= 0; i++)
		r = add_image(in, &parts[i]);
	sk_layouts_forget(&in->layouts);
	if (r >= 0)
		in->ranks = ranks_json(parts, n);
	return r;
}

static json_t *snapshot_json(const struct sk_wire_snapshot *s)
{
	char run_id[17];

	(void)snprintf(run_id, sizeof(run_id), "%016" PRIx64, s->id.run_id);
	return json_pack("{s:s, s:I, s:s, s:I, s:i, s:b, s:b, s:b, s:b, s:b, "
			 "s:I, s:I, s:s}", "job", s->id.job, "run",
			 (json_int_t)s->id.run, "run_id", run_id, "step",
			 (json_int_t)s->id.step, "world", s->id.world,
			 "complete", !!(s->flags & SK_SNAP_COMPLETE),
			 "local", !!(s->flags & SK_SNAP_LOCAL),
			 "durable", !!(s->flags & SK_SNAP_DURABLE),
			 "newest", !!(s->flags & SK_SNAP_NEWEST),
			 "pinned", !!(s->flags & SK_SNAP_PINNED),
			 "memory_bytes", (json_int_t)s->bytes_memory,
			 "disk_bytes", (json_int_t)s->bytes_disk,
			 "note", s->text);
}

static int give(struct inspecting *in, json_t *root, char **ret_json)
{
	char *text = root ? json_dumps(root, JSON_COMPACT) : NULL;

	json_decref(root);
	if (!text)
		return sk_err_set(&in->err, -ENOMEM, "out of memory");
	*ret_json = text;
	return 0;
}

static int set_id(struct inspecting *in, const char *job, uint64_t run,
		  int64_t step, struct sk_wire_id *ret)
{
	*ret = (struct sk_wire_id){ .run = run, .step = step, .rank = -1 };
	if (!job)
		return 0;
	if (sk_job_check(job, &in->err) < 0)
		return -EINVAL;
	strcpy(ret->job, job);
	return 0;
}

/* What there was is no nothing: who hears of that may begin anew. -EBADMSG; 0:
 * none of those is damaged. */
static int refuse_damaged(struct inspecting *in,
			  const struct sk_wire_snapshot *all, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		const struct sk_wire_snapshot *s = &all[i];
		bool memory = s->bad_memory >= 0;

		if (!memory && s->bad_disk < 0)
			continue;
		return sk_err_set(&in->err, -EBADMSG, "job \"%s\" has no "
				  "complete snapshot: of step %" PRId64
				  " of run %" PRIu64 " the image of rank %"
				  PRId32 " %s is damaged", s->id.job,
				  s->id.step, s->id.run,
				  memory ? s->bad_memory : s->bad_disk,
				  memory ? "in memory" : "on disk");
	}
	return 0;
}

/* The newest complete one, or, where none is asked for by number, refused. */
static int choose(struct inspecting *in, const char *job, uint64_t run,
		  int64_t step)
{
	_cleanup_free_ struct sk_wire_snapshot *all = NULL;
	struct sk_wire_id id;
	struct sk_list_gaps gaps;
	char of_run[40] = "";
	size_t n = 0;
	int r;

	r = set_id(in, job, run, step, &id);
	if (r >= 0)
		r = sk_list_snapshots(&in->conn, &id, step < 0,
				      sk_until(in->sk), &all, &n, &gaps,
				      &in->err);
	if (r < 0)
		return r;
	for (size_t i = 0; i < n; i++) {
		if (step < 0 && !(all[i].flags & SK_SNAP_COMPLETE))
			continue;
		in->snapshot = all[i];	/* newest first */
		return 0;
	}
	r = sk_list_gaps_error(&gaps, "such a snapshot", &in->err);
	if (r >= 0 && step < 0)
		r = refuse_damaged(in, all, n);
	if (r < 0)
		return r;
	if (run)
		(void)snprintf(of_run, sizeof(of_run), " of run %" PRIu64,
			       run);
	if (step < 0)
		return sk_err_set(&in->err, -ENOENT, "job \"%s\" has no "
				  "complete snapshot%s", job, of_run);
	return sk_err_set(&in->err, -ENOENT, "job \"%s\" has no snapshot of "
			  "step %" PRId64 "%s", job, step, of_run);
}

static int inspect(struct inspecting *in, const char *job, uint64_t run,
		   int64_t step, char **ret_json)
{
	json_t *root;
	int r;

	in->chosen = false;
	r = choose(in, job, run, step);
	if (r < 0)
		return r;
	in->chosen = true;
	in->tensors = json_array();
	in->meshes = json_array();
	in->index = json_object();
	r = add_images(in);
	json_decref(in->index);
	while (in->n_known)
		sk_mesh_unref(in->known[--in->n_known]);
	free(in->known);
	in->known = NULL;
	in->room_known = 0;
	root = r < 0 ? NULL : snapshot_json(&in->snapshot);
	if (r >= 0 && json_object_set_new(root, "ranks", in->ranks) < 0)
		r = sk_err_set(&in->err, -ENOMEM, "out of memory");
	if (in->brief)
		json_decref(in->meshes);
	else if (json_object_set_new(root, "meshes", in->meshes) < 0 && r >= 0)
		r = sk_err_set(&in->err, -ENOMEM, "out of memory");
	if (json_object_set_new(root, "tensors", in->tensors) < 0 && r >= 0)
		r = sk_err_set(&in->err, -ENOMEM, "out of memory");
	if (r < 0) {
		json_decref(root);
		return r;
	}
	return give(in, root, ret_json);
}

static int snapshots(struct inspecting *in, const char *job, char **ret_json)
{
	_cleanup_free_ struct sk_wire_snapshot *all = NULL;
	struct sk_wire_id id;
	struct sk_list_gaps gaps = { 0 };
	json_t *root;
	size_t n = 0;
	int r;

	r = set_id(in, job, 0, -1, &id);
	if (r >= 0)
		r = sk_list_snapshots(&in->conn, &id, 0, sk_until(in->sk),
				      &all, &n, &gaps, &in->err);
	if (r >= 0 && !n)
		r = sk_list_gaps_error(&gaps, "a snapshot", &in->err);
	if (r < 0)
		return r;
	root = json_array();
	for (size_t i = 0; i < n; i++)
		root = append(root, snapshot_json(&all[i]));
	return give(in, root, ret_json);
}

static int begin(struct sk *sk, char **ret_json, struct inspecting *in)
{
	int r;

	*in = (struct inspecting){ .sk = sk, .conn = SK_CONN_NULL };
	r = sk_check(sk, &in->err);
	if (r >= 0)
		r = sk_check_result(ret_json, "the JSON", &in->err);
	if (r < 0)
		return r;
	return sk_conn_open_more(sk->os, &sk->conn, sk->socket_path,
				 sk_until(sk), &in->conn, &in->err);
}

static int inspect_at(struct sk *sk, const char *job, int64_t step,
		      uint64_t run, uint32_t flags, char **ret_json,
		      struct inspecting *in)
{
	int r = begin(sk, ret_json, in);

	if (r < 0)
		return r;
	in->brief = flags & SK_INSPECT_BRIEF;
	if (!job)
		r = sk_err_set(&in->err, -EINVAL, "no job to inspect");
	else
		r = sk_check_flags(flags, SK_INSPECT_BRIEF, "the flags of "
				   "sk_inspect()", &in->err);
	if (r >= 0)
		r = inspect(in, job, run, step, ret_json);
	/* What was listed went before it was opened. */
	for (int i = 1; r == -ENOENT && in->chosen && i < LOOKS_MAX; i++)
		r = inspect(in, job, run, step, ret_json);
	sk_conn_close(&in->conn);
	return r;
}

SK_API int sk_inspect(struct sk *sk, const char *job, int64_t step,
		      uint64_t run, uint32_t flags, char **ret_json)
{
	struct inspecting in;
	int r, agents = 0;

	do
		r = inspect_at(sk, job, step, run, flags, ret_json, &in);
	while (r == -ECONNRESET && ++agents < SK_AGENTS_MOST);
	return sk_say(r, &in.err);
}

static int snapshots_at(struct sk *sk, const char *job, char **ret_json,
			struct inspecting *in)
{
	int r = begin(sk, ret_json, in);

	if (r < 0)
		return r;
	r = snapshots(in, job, ret_json);
	sk_conn_close(&in->conn);
	return r;
}

SK_API int sk_snapshots(struct sk *sk, const char *job, char **ret_json)
{
	struct inspecting in;
	int r, agents = 0;

	do
		r = snapshots_at(sk, job, ret_json, &in);
	while (r == -ECONNRESET && ++agents < SK_AGENTS_MOST);
	return sk_say(r, &in.err);
}
