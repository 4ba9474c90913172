/* SPDX-License-Identifier: Apache-2.0 */
#include "tensor/mesh.h"

#include <assert.h>
#include <stdatomic.h>
#include <string.h>

#include "base/table.h"
#include "tensor/name.h"

/*
 * Ranks that no steps say are kept twice: in mesh order, and sorted with their
 * mesh index, so that finding a rank is a binary search.
 */
struct by_rank {
	int32_t rank;
	int32_t index;
};

struct sk_mesh {
	atomic_int refs;
	int ndim;
	int64_t shape[SK_MAX_DIMS];
	int64_t count;
	struct sk_steps steps;	/* where ranks is NULL */
	int32_t *ranks;
	struct by_rank *sorted;
	char *names[SK_MAX_DIMS];
	bool named;
	uint64_t hash;
};

static void mesh_free(struct sk_mesh *mesh)
{
	for (int d = 0; d < SK_MAX_DIMS; d++)
		free(mesh->names[d]);
	free(mesh->ranks);
	free(mesh->sorted);
	free(mesh);
}

static int check_shape(int ndim, const int64_t *shape, int64_t *ret_count,
		       struct sk_err *err)
{
	int64_t count = 1;

	if (ndim < 1 || ndim > SK_MAX_DIMS)
		return sk_err_set(err, -EINVAL, "a mesh has 1 to %d "
				  "dimensions, not %d", SK_MAX_DIMS, ndim);
	for (int d = 0; d < ndim; d++) {
		if (shape[d] <= 0)
			return sk_err_set(err, -EINVAL, "dimension %d of a "
					  "mesh has size %lld", d,
					  (long long)shape[d]);
		if (__builtin_mul_overflow(count, shape[d], &count) ||
		    count > SK_MESH_MAX_RANKS)
			return sk_err_set(err, -EINVAL,
					  "a mesh of more than %d ranks",
					  SK_MESH_MAX_RANKS);
	}
	*ret_count = count;
	return 0;
}

static int compare_rank(const void *a, const void *b)
{
	int32_t x = ((const struct by_rank *)a)->rank;
	int32_t y = ((const struct by_rank *)b)->rank;

	return (x > y) - (x < y);
}

static int set_ranks(struct sk_mesh *mesh, const int32_t *ranks,
		     struct sk_err *err)
{
	size_t n = (size_t)mesh->count;

	if (sk_steps_of(ranks, mesh->count, &mesh->steps))
		return 0;
	mesh->ranks = malloc(n * sizeof(*mesh->ranks));
	mesh->sorted = malloc(n * sizeof(*mesh->sorted));
	if (!mesh->ranks || !mesh->sorted)
		return sk_err_set(err, -ENOMEM, "out of memory for a mesh");
	memcpy(mesh->ranks, ranks, n * sizeof(*ranks));
	for (size_t i = 0; i < n; i++)
		mesh->sorted[i] = (struct by_rank){ ranks[i], (int32_t)i };
	qsort(mesh->sorted, n, sizeof(*mesh->sorted), compare_rank);
	if (mesh->sorted[0].rank < 0)
		return sk_err_set(err, -EINVAL, "a mesh holds rank %d",
				  mesh->sorted[0].rank);
	for (size_t i = 1; i < n; i++)
		if (mesh->sorted[i].rank == mesh->sorted[i - 1].rank)
			return sk_err_set(err, -EINVAL,
					  "a mesh holds rank %d twice",
					  mesh->sorted[i].rank);
	return 0;
}

static int set_names(struct sk_mesh *mesh, const char *const *names,
		     struct sk_err *err)
{
	if (!names)
		return 0;
	mesh->named = true;
	for (int d = 0; d < mesh->ndim; d++) {
		if (!names[d] || !*names[d])
			return sk_err_set(err, -EINVAL, "dimension %d of a "
					  "named mesh has no name", d);
		if (sk_name_check(names[d], "mesh's dimension", err) < 0)
			return -EINVAL;
		for (int e = 0; e < d; e++)
			if (!strcmp(names[d], names[e]))
				return sk_err_set(err, -EINVAL, "two "
						  "dimensions of a mesh are "
						  "named \"%s\"", names[d]);
		mesh->names[d] = strdup(names[d]);
		if (!mesh->names[d])
			return sk_err_set(err, -ENOMEM,
					  "out of memory for a mesh");
	}
	return 0;
}

/* Equal meshes have the same. */
static uint64_t hash_mesh(const struct sk_mesh *mesh)
{
	const struct sk_steps *s = &mesh->steps;
	uint64_t h = sk_hash_bytes(sk_hash_seed(), mesh->shape,
				   sizeof(mesh->shape));

	if (mesh->ranks) {
		h = sk_hash_bytes(h, mesh->ranks, (size_t)mesh->count *
						  sizeof(*mesh->ranks));
	} else {
		h = sk_hash_bytes(h, &s->first, sizeof(s->first));
		h = sk_hash_bytes(h, s->v, (size_t)s->n * sizeof(*s->v));
	}
	for (int d = 0; mesh->named && d < mesh->ndim; d++)
		h = sk_hash_bytes(h, mesh->names[d],
				  strlen(mesh->names[d]) + 1);
	return h;
}

/* 0, 1, 2, ... unless @steps or @ranks say others. */
static int mesh_new(int ndim, const int64_t *shape,
		    const struct sk_steps *steps, const int32_t *ranks,
		    const char *const *names, struct sk_mesh **ret_mesh,
		    struct sk_err *err)
{
	struct sk_mesh *mesh;
	int64_t count = 0;
	int r = check_shape(ndim, shape, &count, err);

	if (r < 0)
		return r;
	mesh = calloc(1, sizeof(*mesh));
	if (!mesh)
		return sk_err_set(err, -ENOMEM, "out of memory for a mesh");
	atomic_init(&mesh->refs, 1);
	mesh->ndim = ndim;
	mesh->count = count;
	memcpy(mesh->shape, shape, (size_t)ndim * sizeof(*shape));
	mesh->steps = steps ? *steps : (struct sk_steps){ 0, 1, { { count,
								    1 } } };
	if (!sk_steps_normalize(&mesh->steps, count))
		r = sk_err_set(err, -EINVAL, "the steps of a mesh are not %lld "
			       "ranks, each once", (long long)count);
	if (r >= 0 && ranks)
		r = set_ranks(mesh, ranks, err);
	if (r >= 0)
		r = set_names(mesh, names, err);
	if (r < 0) {
		mesh_free(mesh);
		return r;
	}
	mesh->hash = hash_mesh(mesh);
	*ret_mesh = mesh;
	return 0;
}

int sk_mesh_new(int ndim, const int64_t *shape, const int32_t *ranks,
		const char *const *names, struct sk_mesh **ret_mesh,
		struct sk_err *err)
{
	return mesh_new(ndim, shape, NULL, ranks, names, ret_mesh, err);
}

int sk_mesh_new_steps(int ndim, const int64_t *shape,
		      const struct sk_steps *steps, const char *const *names,
		      struct sk_mesh **ret_mesh, struct sk_err *err)
{
	return mesh_new(ndim, shape, steps, NULL, names, ret_mesh, err);
}

struct sk_mesh *sk_mesh_ref(const struct sk_mesh *mesh)
{
	/* Immutable but for the count, which is why const may be cast. */
	struct sk_mesh *m = (struct sk_mesh *)mesh;

	if (m)
		atomic_fetch_add_explicit(&m->refs, 1, memory_order_relaxed);
	return m;
}

struct sk_mesh *sk_mesh_unref(struct sk_mesh *mesh)
{
	if (mesh && atomic_fetch_sub_explicit(&mesh->refs, 1,
					      memory_order_acq_rel) == 1)
		mesh_free(mesh);
	return NULL;
}

int sk_mesh_ndim(const struct sk_mesh *mesh)
{
	return mesh->ndim;
}

int64_t sk_mesh_dim(const struct sk_mesh *mesh, int d)
{
	assert(d >= 0 && d < mesh->ndim);
	return mesh->shape[d];
}

int64_t sk_mesh_count(const struct sk_mesh *mesh)
{
	return mesh->count;
}

const char *sk_mesh_name(const struct sk_mesh *mesh, int d)
{
	assert(d >= 0 && d < mesh->ndim);
	return mesh->names[d];
}

int sk_mesh_find_dim(const struct sk_mesh *mesh, const char *name)
{
	for (int d = 0; mesh->named && d < mesh->ndim; d++)
		if (!strcmp(mesh->names[d], name))
			return d;
	return -ENOENT;
}

int32_t sk_mesh_last_rank(const struct sk_mesh *mesh)
{
	int64_t last = mesh->count - 1;

	/* Steps go up: the last index has the highest rank. */
	return mesh->sorted ? mesh->sorted[last].rank :
			      sk_steps_at(&mesh->steps, last);
}

int32_t sk_mesh_rank_at(const struct sk_mesh *mesh, int64_t index)
{
	assert(index >= 0 && index < mesh->count);
	return mesh->ranks ? mesh->ranks[index] :
			     sk_steps_at(&mesh->steps, index);
}

const struct sk_steps *sk_mesh_steps(const struct sk_mesh *mesh)
{
	return mesh->ranks ? NULL : &mesh->steps;
}

bool sk_mesh_is_dense(const struct sk_mesh *mesh)
{
	const struct sk_steps *s = &mesh->steps;

	return !mesh->ranks && s->first == 0 &&
	       (s->n == 0 || (s->n == 1 && s->v[0].stride == 1));
}

static int64_t find_index(const struct sk_mesh *mesh, int32_t rank)
{
	struct by_rank key = { .rank = rank }, *found;

	if (!mesh->sorted)
		return sk_steps_find(&mesh->steps, rank);
	found = bsearch(&key, mesh->sorted, (size_t)mesh->count,
			sizeof(*mesh->sorted), compare_rank);
	return found ? found->index : -1;
}

int sk_mesh_coords(const struct sk_mesh *mesh, int32_t rank,
		   int64_t *ret_coords)
{
	int64_t index = find_index(mesh, rank);

	if (index < 0)
		return -ENOENT;
	for (int d = mesh->ndim - 1; d >= 0; d--) {
		ret_coords[d] = index % mesh->shape[d];
		index /= mesh->shape[d];
	}
	return 0;
}

static int find_dims(const struct sk_mesh *mesh, const char *const *names,
		     int n, int *ret_dims, struct sk_err *err)
{
	if (!mesh->named)
		return sk_err_set(err, -EINVAL, "an unnamed mesh cannot be "
				  "sliced by name");
	if (n < 1 || n > mesh->ndim)
		return sk_err_set(err, -EINVAL, "a slice of %d of the %d "
				  "dimensions of a mesh", n, mesh->ndim);
	for (int i = 0; i < n; i++) {
		if (!names[i])
			return sk_err_set(err, -EINVAL, "name %d of %d is a "
					  "null pointer", i, n);
		ret_dims[i] = sk_mesh_find_dim(mesh, names[i]);
		if (ret_dims[i] < 0)
			return sk_err_set(err, -EINVAL, "the mesh has no "
					  "dimension \"%s\"", names[i]);
		if (i && ret_dims[i] <= ret_dims[i - 1])
			return sk_err_set(err, -EINVAL, "\"%s\" stands "
					  "before \"%s\" in the mesh; name "
					  "dimensions in its order",
					  names[i], names[i - 1]);
	}
	return 0;
}

/* Ranks of the child, row-major over @dims, other coordinates as in @at. */
static void child_ranks(const struct sk_mesh *mesh, const int64_t *at,
			const int *dims, int n, int64_t count, int32_t *ranks)
{
	int64_t stride[SK_MAX_DIMS], base = 0, s = 1;

	for (int d = mesh->ndim - 1; d >= 0; d--) {
		stride[d] = s;
		s *= mesh->shape[d];
		base += at[d] * stride[d];
	}
	for (int i = 0; i < n; i++)
		base -= at[dims[i]] * stride[dims[i]];
	for (int64_t i = 0; i < count; i++) {
		int64_t index = base, rest = i;

		for (int k = n - 1; k >= 0; k--) {
			index += rest % mesh->shape[dims[k]] *
				 stride[dims[k]];
			rest /= mesh->shape[dims[k]];
		}
		ranks[i] = sk_mesh_rank_at(mesh, index);
	}
}

int sk_mesh_slice(const struct sk_mesh *mesh, int32_t rank,
		  const char *const *names, int n_names,
		  struct sk_mesh **ret_mesh, struct sk_err *err)
{
	int64_t at[SK_MAX_DIMS], shape[SK_MAX_DIMS], count = 1;
	_cleanup_free_ int32_t *ranks = NULL;
	int dims[SK_MAX_DIMS], r;

	r = find_dims(mesh, names, n_names, dims, err);
	if (r < 0)
		return r;
	if (sk_mesh_coords(mesh, rank, at) < 0)
		return sk_err_set(err, -ENOENT, "rank %d is not in the mesh",
				  rank);
	for (int i = 0; i < n_names; i++) {
		shape[i] = mesh->shape[dims[i]];
		count *= shape[i];
	}
	ranks = malloc((size_t)count * sizeof(*ranks));
	if (!ranks)
		return sk_err_set(err, -ENOMEM, "out of memory for a mesh");
	child_ranks(mesh, at, dims, n_names, count, ranks);
	return sk_mesh_new(n_names, shape, ranks, names, ret_mesh, err);
}

static bool same_names(const struct sk_mesh *a, const struct sk_mesh *b)
{
	if (a->named != b->named)
		return false;
	for (int d = 0; a->named && d < a->ndim; d++)
		if (strcmp(a->names[d], b->names[d]))
			return false;
	return true;
}

bool sk_mesh_equal(const struct sk_mesh *a, const struct sk_mesh *b)
{
	if (a == b)
		return true;
	if (a->hash != b->hash || a->ndim != b->ndim ||
	    !a->ranks != !b->ranks ||
	    memcmp(a->shape, b->shape, (size_t)a->ndim * sizeof(*a->shape)))
		return false;
	if (a->ranks ? memcmp(a->ranks, b->ranks,
			      (size_t)a->count * sizeof(*a->ranks)) != 0 :
		       !sk_steps_equal(&a->steps, &b->steps))
		return false;
	return same_names(a, b);
}

uint64_t sk_mesh_hash(const struct sk_mesh *mesh)
{
	return mesh->hash;
}
