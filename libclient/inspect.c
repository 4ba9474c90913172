/* SPDX-License-Identifier: Apache-2.0 */
/* What snapshots there are and what they hold, as JSON. */
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <jansson.h>

#include "dtype.h"
#include "internal.h"
#include "mesh.h"
#include "placement.h"

/* One question: a connection of its own, so that leases end with it. */
struct inspecting {
	struct sk *sk;
	struct sk_conn conn;
	struct sk_wire_snapshot snapshot;
	json_t *tensors;	/* array */
	json_t *meshes;		/* array */
	struct sk_mesh **known;	/* those in it; references */
	size_t n_known;
	json_t *index;		/* object: its elements by kind and name */
	bool brief;
	struct sk_err err;
};

/* ---- lists ---- */

static int read_records(struct inspecting *in, int fd, void *records,
			uint64_t bytes)
{
	uint64_t at = 0;

	while (at < bytes) {
		ssize_t n = pread(fd, (char *)records + at, bytes - at,
				  (off_t)at);

		if (n <= 0)
			return sk_err_set(&in->err, -EPROTO, "the agent's list "
					  "ends after %" PRIu64 " of %" PRIu64
					  " bytes", at, bytes);
		at += (uint64_t)n;
	}
	return 0;
}

static int take_records(struct inspecting *in, const struct sk_msg *msg,
			int fd, size_t size, void **ret, size_t *ret_n)
{
	_cleanup_free_ void *records = NULL;
	uint64_t n = msg->body.list_reply.n, bytes;
	struct stat st;
	int r;

	if (msg->body.list_reply.record_bytes != size ||
	    !sk_mul_u64(n, size, &bytes) || fstat(fd, &st) < 0 ||
	    (uint64_t)st.st_size < bytes)
		return sk_err_set(&in->err, -EPROTO, "the agent's records are "
				  "of another version");
	records = malloc(bytes ? bytes : 1);
	if (!records)
		return sk_err_set(&in->err, -ENOMEM, "out of memory");
	r = read_records(in, fd, records, bytes);
	if (r < 0)
		return r;
	*ret = sk_take_ptr(records);
	*ret_n = n;
	return 0;
}

static int list(struct inspecting *in, const struct sk_wire_id *id,
		enum sk_list what, size_t size, void *ret, size_t *ret_n)
{
	struct sk_msg msg = { .type = SK_MSG_LIST,
			      .body.list = { .id = *id, .what = what } };
	int fds[SK_MSG_FDS], n = 0, r;

	r = sk_conn_call(&in->conn, &msg, NULL, 0, fds, &n,
			 in->sk->timeout_ms, &in->err);
	if (r >= 0)
		r = n == 1 ? take_records(in, &msg, fds[0], size, ret,
					  ret_n) :
		    sk_err_set(&in->err, -EPROTO, "the agent gave %d "
			       "descriptors for a list", n);
	while (n)
		sk_close_fd(fds[--n]);
	return r;
}

/* ---- one image ---- */

static json_t *numbers(int n, const int64_t *v)
{
	json_t *array = json_array();

	for (int i = 0; i < n; i++)
		json_array_append_new(array, json_integer(v[i]));
	return array;
}

static json_t *mesh_json(const struct sk_mesh *mesh)
{
	json_t *shape = json_array(), *ranks = json_array();
	json_t *names = sk_mesh_name(mesh, 0) ? json_array() : json_null();

	for (int d = 0; d < sk_mesh_ndim(mesh); d++) {
		json_array_append_new(shape,
				      json_integer(sk_mesh_dim(mesh, d)));
		if (json_is_array(names))
			json_array_append_new(names, json_string(
				sk_mesh_name(mesh, d)));
	}
	for (int64_t i = 0; i < sk_mesh_count(mesh); i++)
		json_array_append_new(ranks,
				      json_integer(sk_mesh_rank_at(mesh, i)));
	return json_pack("{s:o, s:o, s:o}", "shape", shape, "ranks", ranks,
			 "names", names);
}

/* Its index in the table, which it enters when it is first met; or null. */
static json_t *mesh_index(struct inspecting *in, struct sk_mesh *mesh)
{
	struct sk_mesh **more;

	if (!mesh)
		return json_null();
	for (size_t i = in->n_known; i-- > 0;)
		if (sk_mesh_equal(in->known[i], mesh))
			return json_integer((json_int_t)i);
	more = reallocarray(in->known, in->n_known + 1, sizeof(*more));
	if (!more)
		return NULL;
	in->known = more;
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
		json_array_append_new(array, json_string(
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

	if (asprintf(&key, "%d %d %s", (int)item->kind,
		     item->kind == SK_ITEM_BLOB_LOCAL ? l->rank : -1,
		     item->spec.name) < 0)
		return NULL;
	found = json_object_get(in->index, key);
	if (found)
		return found;
	found = item_json(in, l, item);
	if (!found || json_object_set(in->index, key, found) < 0 ||
	    json_array_append_new(in->tensors, found) < 0)
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

static int add_header(struct inspecting *in, const struct sk_wire_image *image,
		      int fd, uint64_t header_bytes, uint64_t image_bytes)
{
	struct sk_layout *l = NULL;
	void *map;
	int r;

	map = mmap(NULL, header_bytes, PROT_READ, MAP_SHARED, fd, 0);
	if (map == MAP_FAILED)
		return sk_err_errno(&in->err, -errno, "cannot map an image's "
				    "header");
	r = sk_recall_get(in->sk->recall, image->id.job, image->id.rank,
			  image->kind, map, header_bytes, image_bytes, &l,
			  &in->err);
	munmap(map, header_bytes);
	if (r >= 0)
		r = add_layout(in, l);
	sk_layout_free(l);
	return r;
}

static int add_image(struct inspecting *in, const struct sk_wire_image *image)
{
	struct sk_msg msg = { .type = SK_MSG_OPEN, .body.open = {
		.image = image->image, .place = image->place } };
	int fds[SK_MSG_FDS], n = 0, r;

	r = sk_conn_call(&in->conn, &msg, NULL, 0, fds, &n,
			 in->sk->timeout_ms, &in->err);
	if (r >= 0)
		r = n == 2 ? add_header(in, image, fds[1],
					msg.body.open_reply.header_bytes,
					msg.body.open_reply.image_bytes) :
		    sk_err_set(&in->err, -EPROTO, "the agent gave %d "
			       "descriptors for an image", n);
	while (n)
		sk_close_fd(fds[--n]);
	return r;
}

/* ---- one snapshot ---- */

static bool told_before(const struct sk_wire_image *images, size_t i)
{
	for (size_t j = i; j-- > 0 && images[j].id.rank == images[i].id.rank;)
		if (images[j].kind == SK_IMAGE_PRIMARY &&
		    images[j].state != SK_IMAGE_FILLING &&
		    images[j].state != SK_IMAGE_BAD)
			return true;
	return false;
}

static int by_rank(const void *a, const void *b)
{
	const struct sk_wire_image *x = a, *y = b;

	return x->id.rank < y->id.rank ? -1 : x->id.rank > y->id.rank;
}

static int add_images(struct inspecting *in)
{
	_cleanup_free_ struct sk_wire_image *images = NULL;
	struct sk_wire_id id = in->snapshot.id;
	size_t n = 0;
	int r;

	id.rank = -1;
	r = list(in, &id, SK_LIST_IMAGES, sizeof(*images), &images, &n);
	if (r >= 0 && n)
		qsort(images, n, sizeof(*images), by_rank);
	for (size_t i = 0; i < n && r >= 0; i++) {
		if (images[i].kind != SK_IMAGE_PRIMARY ||
		    images[i].state == SK_IMAGE_FILLING ||
		    images[i].state == SK_IMAGE_BAD || told_before(images, i))
			continue;
		r = add_image(in, &images[i]);
	}
	return r;
}

static json_t *snapshot_json(const struct sk_wire_snapshot *s)
{
	return json_pack("{s:s, s:I, s:I, s:i, s:b, s:b, s:b, s:b, s:I, s:I, "
			 "s:s}", "job", s->id.job, "run",
			 (json_int_t)s->id.run, "step",
			 (json_int_t)s->id.step, "world", s->id.world,
			 "complete", !!(s->flags & SK_SNAP_COMPLETE),
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

/* The newest complete one, or, where none is asked for by number, refused. */
static int choose(struct inspecting *in, const char *job, uint64_t run,
		  int64_t step)
{
	_cleanup_free_ struct sk_wire_snapshot *all = NULL;
	struct sk_wire_id id;
	size_t n = 0;
	int r;

	r = set_id(in, job, run, step, &id);
	if (r >= 0)
		r = list(in, &id, SK_LIST_SNAPSHOTS, sizeof(*all), &all, &n);
	if (r < 0)
		return r;
	for (size_t i = 0; i < n; i++) {
		if (step < 0 && !(all[i].flags & SK_SNAP_COMPLETE))
			continue;
		in->snapshot = all[i];	/* newest first */
		return 0;
	}
	if (step < 0)
		return sk_err_set(&in->err, -ENOENT, "job \"%s\" has no "
				  "complete snapshot", job);
	return sk_err_set(&in->err, -ENOENT, "job \"%s\" has no snapshot of "
			  "step %" PRId64, job, step);
}

static int inspect(struct inspecting *in, const char *job, uint64_t run,
		   int64_t step, char **ret_json)
{
	json_t *root;
	int r;

	r = choose(in, job, run, step);
	if (r < 0)
		return r;
	in->tensors = json_array();
	in->meshes = json_array();
	in->index = json_object();
	r = add_images(in);
	json_decref(in->index);
	while (in->n_known)
		sk_mesh_unref(in->known[--in->n_known]);
	free(in->known);
	root = r < 0 ? NULL : snapshot_json(&in->snapshot);
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
	json_t *root;
	size_t n = 0;
	int r;

	r = set_id(in, job, 0, -1, &id);
	if (r >= 0)
		r = list(in, &id, SK_LIST_SNAPSHOTS, sizeof(*all), &all, &n);
	if (r < 0)
		return r;
	root = json_array();
	for (size_t i = 0; i < n; i++)
		json_array_append_new(root, snapshot_json(&all[i]));
	return give(in, root, ret_json);
}

static int begin(struct sk *sk, struct inspecting *in)
{
	int r;

	*in = (struct inspecting){ .sk = sk, .conn.sock = -1 };
	r = sk_check(sk, &in->err);
	if (r < 0)
		return r;
	return sk_conn_open(sk->socket_path, sk->timeout_ms, &in->conn,
			    &in->err);
}

SK_API int sk_inspect(struct sk *sk, const char *job, int64_t step,
		      uint64_t run, uint32_t flags, char **ret_json)
{
	struct inspecting in;
	int r;

	r = begin(sk, &in);
	if (r < 0)
		return sk_say(r, &in.err);
	in.brief = flags & SK_INSPECT_BRIEF;
	if (!job)
		r = sk_err_set(&in.err, -EINVAL, "no job to inspect");
	else if (flags & ~SK_INSPECT_BRIEF)
		r = sk_err_set(&in.err, -EINVAL, "inspection flags %#x are "
			       "not known", flags);
	else
		r = inspect(&in, job, run, step, ret_json);
	sk_conn_close(&in.conn);
	return sk_say(r, &in.err);
}

SK_API int sk_snapshots(struct sk *sk, const char *job, char **ret_json)
{
	struct inspecting in;
	int r;

	r = begin(sk, &in);
	if (r < 0)
		return sk_say(r, &in.err);
	r = snapshots(&in, job, ret_json);
	sk_conn_close(&in.conn);
	return sk_say(r, &in.err);
}
