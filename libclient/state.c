/* SPDX-License-Identifier: Apache-2.0 */
/* Describing tensors and blobs. */
#include <stdio.h>
#include <string.h>

#include "checksum.h"
#include "dtype.h"
#include "internal.h"

/* Open hash table of index + 1; sized to twice the locals or more. */
struct names {
	uint32_t mask;
	uint32_t table[];
};

/* ---- names ---- */

static uint32_t hash_name(const char *name)
{
	uint64_t h = sk_xxh3(name, strlen(name));

	return (uint32_t)(h ^ h >> 32);
}

int64_t sk_state_find(const struct sk_state *state, const char *name)
{
	const struct names *n = state->names;
	uint32_t h = hash_name(name), at;

	while (n && (at = n->table[h++ & n->mask]))
		if (!strcmp(state->locals[at - 1].item.spec.name, name))
			return at - 1;
	return -1;
}

static void put_name(struct names *n, const struct sk_state *state,
		     uint32_t i)
{
	uint32_t h = hash_name(state->locals[i].item.spec.name);

	while (n->table[h & n->mask])
		h++;
	n->table[h & n->mask] = i + 1;
}

/* Room for one more name than there are locals. */
static int grow_names(struct sk_state *state, bool anew)
{
	struct names *n = state->names;
	uint32_t size = 64;

	if (n && !anew && 2 * (state->n_locals + 1) <= n->mask)
		return 0;
	while (size < 4 * (state->n_locals + 1))
		size *= 2;
	n = calloc(1, sizeof(*n) + size * sizeof(uint32_t));
	if (!n)
		return -ENOMEM;
	n->mask = size - 1;
	for (uint32_t i = 0; i < state->n_locals; i++)
		put_name(n, state, i);
	free(state->names);
	state->names = n;
	return 0;
}

/* ---- locals ---- */

static void local_clear(struct sk_local *l)
{
	free((char *)l->item.spec.name);
	sk_mesh_unref((struct sk_mesh *)l->item.spec.mesh);
	free(l->item.boxes);
	free(l->parts);
	*l = (struct sk_local){ 0 };
}

static void strides_of(int ndim, const int64_t *size, const int64_t *given,
		       int64_t *ret)
{
	bool dense = true;

	for (int d = 0; d < ndim; d++)
		dense &= given[d] == 0;
	if (dense)
		sk_dense_strides(ndim, size, ret);
	else
		memcpy(ret, given, (size_t)ndim * sizeof(*ret));
}

/*
 * Boxes of one rank are a product of intervals per dimension. Where box @b
 * begins in the local tensor: behind the intervals before its own.
 */
static void local_offset(const struct sk_local *l, int b, int64_t *ret)
{
	const struct sk_box *boxes = l->item.boxes;

	for (int d = 0; d < l->item.spec.ndim; d++) {
		int64_t last = -1;

		ret[d] = 0;
		/* Boxes come in order, so offsets per dimension rise within
		 * the run that shares the other dimensions' first ones. */
		for (int i = 0; i < l->item.n_boxes; i++)
			if (boxes[i].offset[d] > last &&
			    boxes[i].offset[d] < boxes[b].offset[d]) {
				last = boxes[i].offset[d];
				ret[d] += boxes[i].size[d];
			}
	}
}

static void local_shape(const struct sk_local *l, int64_t *ret)
{
	const struct sk_item *it = &l->item;
	int last = it->n_boxes - 1;

	memset(ret, 0, SK_MAX_DIMS * sizeof(*ret));
	if (last < 0)
		return;
	/* The last box lies at the end of every dimension. */
	local_offset(l, last, ret);
	for (int d = 0; d < it->spec.ndim; d++)
		ret[d] += it->boxes[last].size[d];
}

static char *format_sizes(int ndim, const int64_t *v, char *buf, size_t size)
{
	size_t at = (size_t)snprintf(buf, size, "(");

	for (int d = 0; d < ndim && at < size; d++)
		at += (size_t)snprintf(buf + at, size - at, "%s%lld",
				       d ? ", " : "", (long long)v[d]);
	if (at < size)
		(void)snprintf(buf + at, size - at, ")");
	return buf;
}

static int check_local_shape(const struct sk_state *state,
			     const struct sk_local *l, const int64_t *given,
			     const int64_t *computed, struct sk_err *err)
{
	char a[128], b[128];
	int ndim = l->item.spec.ndim;
	bool same = true;

	/* Outside the mesh a rank holds nothing, of whatever shape. */
	for (int d = 0; given && l->item.n_boxes && d < ndim; d++)
		same &= given[d] == computed[d];
	if (same)
		return 0;
	return sk_err_set(err, -EINVAL, "tensor \"%s\": rank %d has %s, its "
			  "placements give %s; say its boxes with parts",
			  l->item.spec.name, state->job.rank,
			  format_sizes(ndim, given, a, sizeof(a)),
			  format_sizes(ndim, computed, b, sizeof(b)));
}

/* Slices the one local tensor into a part per box. */
static int slice(const struct sk_tensor *t, struct sk_local *l,
		 const int64_t *shape, struct sk_err *err)
{
	unsigned bits = sk_dtype_bits(l->item.spec.dtype);
	int64_t stride[SK_MAX_DIMS], at[SK_MAX_DIMS];

	l->parts = calloc((size_t)l->item.n_boxes + 1, sizeof(*l->parts));
	if (!l->parts)
		return sk_err_set(err, -ENOMEM, "out of memory");
	strides_of(l->item.spec.ndim, shape, t->strides, stride);
	for (int b = 0; b < l->item.n_boxes; b++) {
		int64_t elements = 0;

		local_offset(l, b, at);
		for (int d = 0; d < l->item.spec.ndim; d++)
			elements += at[d] * stride[d];
		if (elements * bits % 8)
			return sk_err_set(err, -EINVAL, "tensor \"%s\": box "
					  "%d begins inside a byte",
					  l->item.spec.name, b);
		l->parts[b].box = l->item.boxes[b];
		memcpy(l->parts[b].strides, stride, sizeof(stride));
		if (t->data)
			l->parts[b].data = (char *)t->data +
					   elements * (int64_t)bits / 8;
	}
	return 0;
}

static int take_parts(const struct sk_tensor *t, struct sk_local *l,
		      struct sk_err *err)
{
	struct sk_item *it = &l->item;

	it->explicit_boxes = true;
	it->n_boxes = (int)t->n_parts;
	it->boxes = calloc(t->n_parts + 1u, sizeof(*it->boxes));
	l->parts = calloc(t->n_parts + 1u, sizeof(*l->parts));
	if (!it->boxes || !l->parts)
		return sk_err_set(err, -ENOMEM, "out of memory");
	for (uint32_t i = 0; i < t->n_parts; i++) {
		it->boxes[i] = t->parts[i].box;
		l->parts[i] = t->parts[i];
		if (sk_box_check(it->spec.ndim, it->spec.shape, &it->boxes[i],
				 err) < 0)
			return sk_err_prefix(err, -EINVAL, "tensor \"%s\"",
					     it->spec.name);
		strides_of(it->spec.ndim, it->boxes[i].size,
			   t->parts[i].strides, l->parts[i].strides);
	}
	return 0;
}

static int take_placements(const struct sk_state *state,
			   const struct sk_tensor *t, struct sk_local *l,
			   struct sk_err *err)
{
	int64_t shape[SK_MAX_DIMS];
	int r = sk_spec_boxes(&l->item.spec, state->job.rank, &l->item.boxes,
			      &l->item.n_boxes, err);

	if (r < 0)
		return r;
	local_shape(l, shape);
	r = check_local_shape(state, l, t->local_shape, shape, err);
	return r < 0 ? r : slice(t, l, shape, err);
}

static int make_local(const struct sk_state *state, const struct sk_tensor *t,
		      enum sk_item_kind kind, struct sk_local *l,
		      struct sk_err *err)
{
	struct sk_spec *s = &l->item.spec;
	int r;

	l->item.kind = kind;
	l->memory = t->memory;
	l->device = t->device;
	if (t->ndim < 0 || t->ndim > SK_MAX_DIMS)
		return sk_err_set(err, -EINVAL, "tensor \"%s\" has %d "
				  "dimensions, there may be 0 to %d",
				  t->name ? t->name : "", t->ndim,
				  SK_MAX_DIMS);
	s->name = strdup(t->name ? t->name : "");
	if (!s->name)
		return sk_err_set(err, -ENOMEM, "out of memory");
	s->dtype = (enum sk_dtype)t->dtype;
	s->ndim = t->ndim;
	memcpy(s->shape, t->shape, (size_t)t->ndim * sizeof(*s->shape));
	s->mesh = sk_mesh_ref(t->mesh);
	memcpy(s->placements, t->placements, sizeof(s->placements));
	r = sk_spec_normalize(s, err);
	if (r < 0)
		return r;
	if (!strncmp(s->name, SK_RESERVED_PREFIX, strlen(SK_RESERVED_PREFIX)))
		return sk_err_set(err, -EINVAL, "the name \"%s\" begins with "
				  "\"%s\", which is reserved", s->name,
				  SK_RESERVED_PREFIX);
	if (t->memory == SK_CUDA)
		return sk_err_set(err, -ENODEV, "tensor \"%s\" is on CUDA "
				  "device %d, and no CUDA driver is in use; "
				  "copy it to the host", s->name, t->device);
	return t->parts ? take_parts(t, l, err) :
			  take_placements(state, t, l, err);
}

/* ---- keeping ---- */

static bool same_boxes(const struct sk_local *a, const struct sk_local *b)
{
	return a->item.kind == b->item.kind &&
	       a->item.explicit_boxes == b->item.explicit_boxes &&
	       sk_spec_same_layout(&a->item.spec, &b->item.spec) &&
	       a->item.n_boxes == b->item.n_boxes &&
	       !memcmp(a->item.boxes, b->item.boxes,
		       (size_t)a->item.n_boxes * sizeof(*a->item.boxes));
}

static int keep(struct sk_state *state, struct sk_local *l,
		struct sk_err *err)
{
	int64_t at = sk_state_find(state, l->item.spec.name);
	struct sk_local *bigger;

	state->moved = true;
	if (at >= 0) {
		state->changed |= !same_boxes(&state->locals[at], l);
		local_clear(&state->locals[at]);
		state->locals[at] = *l;
		return 0;
	}
	if (!(state->n_locals & (state->n_locals - 1))) {
		size_t room = state->n_locals ? 2 * state->n_locals : 1;

		bigger = realloc(state->locals, room * sizeof(*bigger));
		if (!bigger)
			return sk_err_set(err, -ENOMEM, "out of memory");
		state->locals = bigger;
	}
	if (grow_names(state, false) < 0)
		return sk_err_set(err, -ENOMEM, "out of memory");
	state->locals[state->n_locals] = *l;
	put_name(state->names, state, state->n_locals++);
	state->changed = true;
	return 0;
}

static int describe(struct sk_state *state, const struct sk_tensor *tensors,
		    size_t n, enum sk_item_kind kind)
{
	struct sk_err err = { "" };
	struct sk_local *made;
	int r = state ? sk_check(state->sk, &err) :
			sk_err_set(&err, -EINVAL, "the state is NULL");
	size_t i = 0;

	if (r < 0)
		return sk_say(r, &err);
	made = calloc(n + 1, sizeof(*made));
	if (!made)
		return sk_say(sk_err_set(&err, -ENOMEM, "out of memory"),
			      &err);
	(void)pthread_mutex_lock(&state->lock);
	/* A copy under way reads what it was told: it must be done first. */
	if (r >= 0)
		(void)sk_snapshot_fence(state, NULL);
	for (; i < n && r >= 0; i++)
		r = make_local(state, &tensors[i], kind, &made[i], &err);
	for (size_t k = 0; k < n && r >= 0; k++) {
		r = keep(state, &made[k], &err);
		if (r >= 0)
			made[k] = (struct sk_local){ 0 };
	}
	for (size_t k = 0; k < i; k++)
		local_clear(&made[k]);
	(void)pthread_mutex_unlock(&state->lock);
	free(made);
	return sk_say(r, &err);
}

SK_API int sk_state_tensors(struct sk_state *state,
			    const struct sk_tensor *tensors, size_t n)
{
	return describe(state, tensors, n, SK_ITEM_TENSOR);
}

SK_API int sk_state_tensor(struct sk_state *state,
			   const struct sk_tensor *tensor)
{
	return describe(state, tensor, tensor ? 1 : 0, SK_ITEM_TENSOR);
}

static int blob(struct sk_state *state, const char *name, void *data,
		size_t size, enum sk_item_kind kind)
{
	const struct sk_tensor t = {
		.name = name, .dtype = SK_U8, .ndim = 1,
		.shape = { (int64_t)size }, .data = data,
	};

	return describe(state, &t, 1, kind);
}

SK_API int sk_state_blob(struct sk_state *state, const char *name, void *data,
			 size_t size)
{
	return blob(state, name, data, size, SK_ITEM_BLOB);
}

SK_API int sk_state_blob_local(struct sk_state *state, const char *name,
			       void *data, size_t size)
{
	return blob(state, name, data, size, SK_ITEM_BLOB_LOCAL);
}

SK_API int sk_state_remove(struct sk_state *state, const char *name)
{
	struct sk_err err = { "" };
	int64_t at;
	int r = sk_check(state->sk, &err);

	if (r < 0)
		return sk_say(r, &err);
	(void)pthread_mutex_lock(&state->lock);
	(void)sk_snapshot_fence(state, NULL);
	at = sk_state_find(state, name);
	if (at < 0) {
		r = sk_err_set(&err, -ENOENT, "nothing named \"%s\" is "
			       "described", name);
	} else {
		local_clear(&state->locals[at]);
		memmove(&state->locals[at], &state->locals[at + 1],
			(size_t)(state->n_locals - at - 1) *
			sizeof(*state->locals));
		state->n_locals--;
		state->changed = state->moved = true;
		r = grow_names(state, true);
	}
	(void)pthread_mutex_unlock(&state->lock);
	return sk_say(r, &err);
}

SK_API int sk_state_clear(struct sk_state *state)
{
	struct sk_err err = { "" };
	int r = sk_check(state->sk, &err);

	if (r < 0)
		return sk_say(r, &err);
	(void)pthread_mutex_lock(&state->lock);
	(void)sk_snapshot_fence(state, NULL);
	while (state->n_locals)
		local_clear(&state->locals[--state->n_locals]);
	free(state->names);
	state->names = NULL;
	state->changed = state->moved = true;
	(void)pthread_mutex_unlock(&state->lock);
	return 0;
}

/* ---- the state ---- */

static int check_job(const struct sk_job *job, struct sk_err *err)
{
	if (!job || !job->name)
		return sk_err_set(err, -EINVAL, "a job needs a name");
	if (sk_job_check(job->name, err) < 0)
		return -EINVAL;
	if (job->world < 1 || job->rank < 0 || job->rank >= job->world)
		return sk_err_set(err, -EINVAL, "rank %d of %d ranks",
				  job->rank, job->world);
	if (job->flags & ~(SK_JOB_NO_REPLICAS | SK_JOB_VERIFY | SK_JOB_READER))
		return sk_err_set(err, -EINVAL, "job flags %#x are not known",
				  job->flags);
	if (job->slots == 1)
		return sk_err_set(err, -EINVAL, "a rank needs at least 2 "
				  "slots: one stands while the other fills");
	return 0;
}

SK_API int sk_state_create(struct sk *sk, const struct sk_job *job,
			   struct sk_state **ret_state)
{
	struct sk_err err = { "" };
	const char *run = getenv("SHARDKEEP_RUN");
	struct sk_state *state;
	int r = sk_check(sk, &err);

	if (r >= 0)
		r = check_job(job, &err);
	if (r < 0)
		return sk_say(r, &err);
	state = calloc(1, sizeof(*state));
	if (state) {
		state->job = *job;
		state->job.name = strdup(job->name);
	}
	if (!state || !state->job.name) {
		free(state);
		return sk_say(sk_err_set(&err, -ENOMEM, "out of memory"),
			      &err);
	}
	state->sk = sk;
	if (!state->job.run && run)
		state->job.run = strtoull(run, NULL, 10);
	if (!state->job.slots)
		state->job.slots = 2;
	state->status.step = -1;
	state->changed = true;
	(void)pthread_mutex_init(&state->lock, NULL);
	(void)pthread_mutex_init(&state->copy_lock, NULL);
	(void)pthread_cond_init(&state->copy_cond, NULL);
	__atomic_add_fetch(&sk->states, 1, __ATOMIC_RELAXED);
	*ret_state = state;
	return 0;
}

SK_API void sk_state_free(struct sk_state *state)
{
	if (!state)
		return;
	if (state->sk->pid == getpid()) {
		(void)sk_snapshot_fence(state, NULL);
		sk_snapshot_settle(state);
		sk_state_unregister(state);
		sk_copying_drop(state);
	}
	while (state->n_locals)
		local_clear(&state->locals[--state->n_locals]);
	free(state->locals);
	free(state->names);
	free((char *)state->job.name);
	(void)pthread_mutex_destroy(&state->lock);
	(void)pthread_mutex_destroy(&state->copy_lock);
	(void)pthread_cond_destroy(&state->copy_cond);
	__atomic_sub_fetch(&state->sk->states, 1, __ATOMIC_RELAXED);
	free(state);
}
