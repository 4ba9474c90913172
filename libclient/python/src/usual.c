/* SPDX-License-Identifier: Apache-2.0 */
#include "usual.h"

#include <string.h>

#include "insides.h"
#include "look.h"

/* Names of attributes, made once. */
enum name {
	LOCAL, SPEC, MESH, PLACEMENTS, SHAPE, DIM, SPLIT, DTYPE, STORAGE,
	NBYTES, OFFSET, RAW, OUTSIDE, SHARDS, GLOBAL, META,
	N_NAMES
};

/* A mesh and placements; most tensors share a few. */
struct place {
	PyObject *device_mesh, *mesh;
	struct sk_mesh *sk;
	int n;
	struct sk_placement v[SK_MAX_DIMS];
	bool outside;			/* this rank is not in the mesh */
};

/* With more than so many, Python tells of the others. */
#define PLACES_MAX 64

/* A type and dispatch keys that were found fit. */
struct kind {
	PyTypeObject *type;		/* one of the plain ones */
	uint64_t keys;
	PyObject *device;		/* what stands in fit: its kind */
};

#define KINDS_MAX 8

struct usual {
	PyObject_HEAD
	PyObject *args;			/* the following are borrowed from */
	PyObject *keys, *fit, *plain, *kinds, *placed, *dtypes;
	PyTypeObject *sharded;
	Py_ssize_t slot;		/* of a sharded one's own part */
	Py_ssize_t spec_slot;		/* and of its spec; 0: asked for */
	struct insides insides;
	struct kind found[KINDS_MAX];
	int n_found;
	const struct dlpack_api *api;
	PyObject *names[N_NAMES];
	struct place places[PLACES_MAX];
	int n_places, last;
};

/* ---- what it is ---- */

static PyObject *get(const struct usual *u, PyObject *from, enum name name)
{
	return PyObject_GetAttr(from, u->names[name]);
}

/* The same of a sharded one, by its slot where it has one. */
static PyObject *get_slot(const struct usual *u, PyObject *t, Py_ssize_t slot,
			  enum name name)
{
	PyObject *found = slot ? *(PyObject **)((char *)t + slot) : NULL;

	return found ? Py_NewRef(found) : get(u, t, name);
}

/* Of a call without arguments, or of an attribute; -1 raised. */
static int64_t number(PyObject *from)
{
	int64_t n = from ? PyLong_AsLongLong(from) : -1;

	Py_XDECREF(from);
	return n;
}

static int64_t call(const struct usual *u, PyObject *of, enum name name)
{
	return number(PyObject_CallMethodNoArgs(of, u->names[name]));
}

static bool is_plain(const struct usual *u, PyObject *t)
{
	for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(u->plain); i++)
		if ((PyObject *)Py_TYPE(t) == PyTuple_GET_ITEM(u->plain, i))
			return true;
	return false;
}

/* One that says itself which parts it holds: by attributes of its own. */
static int says_parts(const struct usual *u, PyObject *t)
{
	PyObject **own = _PyObject_GetDictPtr(t);
	int r;

	if (!own || !*own || !PyDict_GET_SIZE(*own))
		return 0;
	r = PyDict_Contains(*own, u->names[SHARDS]);
	return r ? r : PyDict_Contains(*own, u->names[GLOBAL]);
}

/* As the framework tells them. */
static PyObject *ask_kind(const struct usual *u, PyObject *t)
{
	PyObject *keys = PyObject_CallOneArg(u->keys, t);
	PyObject *raw = keys ? PyObject_CallMethodNoArgs(keys, u->names[RAW]) :
			       NULL;
	PyObject *kind = raw ? PyTuple_Pack(2, Py_TYPE(t), raw) : NULL;
	PyObject *found = kind ? PyDict_GetItemWithError(u->fit, kind) : NULL;

	Py_XDECREF(keys);
	Py_XDECREF(raw);
	Py_XDECREF(kind);
	return found;
}

/* Whether its values are the bytes at its address, as is known of its type and
 * dispatch keys once one of them was looked at: where its kind of device
 * stands in @fit. Borrowed, or NULL: not known, or raised. */
static PyObject *find_kind(struct usual *u, PyObject *t)
{
	struct kind like = { .type = Py_TYPE(t) };
	PyObject *device;

	if (!u->insides.known)
		return ask_kind(u, t);
	like.keys = insides_keys(&u->insides, t);
	for (int i = 0; i < u->n_found; i++)
		if (u->found[i].type == like.type &&
		    u->found[i].keys == like.keys)
			return u->found[i].device;
	device = ask_kind(u, t);
	if (device && u->n_found < KINDS_MAX) {
		like.device = Py_NewRef(device);
		u->found[u->n_found++] = like;
	}
	return device;
}

/* ---- its memory ---- */

/* Elements up to the last one, 0 if it has none; -1: those that share memory,
 * and what is no shape. */
static int64_t extent(const struct dlpack_tensor *d)
{
	int64_t end = 1, more;
	bool none = false;

	for (int i = 0; i < d->ndim; i++) {
		int64_t n = d->shape[i];

		none |= n == 0;
		if (n < 0 || (n > 1 && d->strides[i] <= 0))
			return -1;
		if (n > 1 &&
		    (__builtin_mul_overflow(n - 1, d->strides[i], &more) ||
		     __builtin_add_overflow(end, more, &end)))
			return -1;
	}
	return none ? 0 : end;
}

/* Where in its storage it begins, and the bytes of that; -1 raised. */
static int ask_extent(const struct usual *u, PyObject *t, int64_t *ret_from,
		      int64_t *ret_bytes)
{
	PyObject *storage;

	*ret_from = call(u, t, OFFSET);
	storage = *ret_from < 0 ? NULL :
		  PyObject_CallMethodNoArgs(t, u->names[STORAGE]);
	if (!storage)
		return -1;
	*ret_bytes = call(u, storage, NBYTES);
	Py_DECREF(storage);
	return *ret_bytes < 0 ? -1 : 0;
}

/* Whether its storage has all of them. */
static int has_memory(const struct usual *u, PyObject *t,
		      const struct dlpack_tensor *d, int64_t end)
{
	int64_t size = d->dtype.bits * d->dtype.lanes / 8, from, bytes;

	if (!d->data || !size)
		return 0;
	if (!insides_extent(&u->insides, t, &from, &bytes) &&
	    ask_extent(u, t, &from, &bytes))
		return -1;
	return from >= 0 && from <= INT64_MAX - end &&
	       from + end <= bytes / size;
}

static int read_dtype(const struct usual *u, PyObject *t,
		      struct sk_tensor *ret)
{
	PyObject *dtype = get(u, t, DTYPE), *found;

	if (!dtype)
		return -1;
	found = PyDict_GetItemWithError(u->dtypes, dtype);
	Py_DECREF(dtype);
	if (!found)
		return PyErr_Occurred() ? -1 : 0;
	ret->dtype = (int32_t)PyLong_AsLong(found);
	return PyErr_Occurred() ? -1 : 1;
}

/* What it lies on: the host, or a device that the library knows. */
static bool read_device(const struct dlpack_tensor *d, PyObject *kind,
			struct sk_tensor *ret)
{
	bool host = !PyUnicode_CompareWithASCIIString(kind, "cpu");

	if (host)
		return d->device.type == DLPACK_CPU;
	ret->memory = SK_CUDA;
	ret->device = d->device.id;
	return d->device.type == DLPACK_CUDA;
}

/* The rank's own tensor: dtype, memory, strides and its shape. */
static int read_memory(struct usual *u, PyObject *t, struct usual_read *ret,
		       int *ret_ndim, bool *ret_some)
{
	struct sk_tensor *to = ret->tensor;
	PyObject *kind = find_kind(u, t);
	struct dlpack_tensor d;
	int64_t end;
	int r;

	if (!kind)
		return PyErr_Occurred() ? -1 : 0;
	if (u->api->look(t, &d)) {
		PyErr_Clear();	/* Python says what is wrong with it */
		return 0;
	}
	if (d.ndim > SK_MAX_DIMS || (d.ndim && !d.strides) || d.byte_offset)
		return 0;
	end = extent(&d);
	if (end < 0 || (end && !read_device(&d, kind, to)))
		return 0;
	r = end ? has_memory(u, t, &d, end) : 1;
	if (r > 0)
		r = read_dtype(u, t, to);
	if (r <= 0)
		return r;
	for (int i = 0; i < d.ndim; i++) {
		ret->local_shape[i] = d.shape[i];
		to->strides[i] = end ? d.strides[i] : 0;
	}
	to->data = end ? d.data : NULL;
	*ret_ndim = d.ndim;
	*ret_some = end > 0;
	ret->memory = t;
	return 1;
}

/* ---- its mesh ---- */

static int read_placement(const struct usual *u, PyObject *p,
			  struct sk_placement *ret)
{
	for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(u->kinds); i++) {
		PyObject *kind = PyTuple_GET_ITEM(u->kinds, i);

		if ((PyObject *)Py_TYPE(p) != PyTuple_GET_ITEM(kind, 0))
			continue;
		ret->kind = (int32_t)PyLong_AsLong(PyTuple_GET_ITEM(kind, 1));
		if (ret->kind != SK_PLACEMENT_REPLICATE)
			ret->dim = (int32_t)number(get(u, p, DIM));
		if (ret->kind == SK_PLACEMENT_STRIDED_SHARD)
			ret->split_factor = number(get(u, p, SPLIT));
		return PyErr_Occurred() ? -1 : 1;
	}
	return 0;
}

static int read_placements(const struct usual *u, PyObject *from,
			   struct place *ret)
{
	int r = 1;

	if (!PyTuple_Check(from) || PyTuple_GET_SIZE(from) > SK_MAX_DIMS)
		return 0;
	ret->n = (int)PyTuple_GET_SIZE(from);
	for (int i = 0; i < ret->n && r > 0; i++)
		r = read_placement(u, PyTuple_GET_ITEM(from, i), &ret->v[i]);
	return r;
}

static bool same_place(const struct place *a, const struct place *b)
{
	return a->device_mesh == b->device_mesh && a->n == b->n &&
	       !memcmp(a->v, b->v, (size_t)a->n * sizeof(a->v[0]));
}

/* A new one, as Python tells it. */
static int learn(struct usual *u, PyObject *name, PyObject *t,
		 struct place *place)
{
	PyObject *found = PyObject_CallFunctionObjArgs(u->placed, name, t,
						       NULL);
	PyObject *mesh = found ? get(u, found, MESH) : NULL;
	PyObject *outside = mesh ? get(u, found, OUTSIDE) : NULL;
	int r = outside ? PyObject_IsTrue(outside) : -1;

	Py_XDECREF(found);
	Py_XDECREF(outside);
	if (r < 0 || take_mesh(mesh, &place->sk)) {
		Py_XDECREF(mesh);
		return -1;
	}
	place->outside = r;
	place->mesh = mesh;
	Py_INCREF(place->device_mesh);
	u->last = u->n_places++;
	u->places[u->last] = *place;
	return 1;
}

static int find_place(struct usual *u, PyObject *name, PyObject *t,
		      struct place *like, const struct place **ret)
{
	int r = 1;

	if (!same_place(&u->places[u->last], like)) {
		int i = 0;

		while (i < u->n_places && !same_place(&u->places[i], like))
			i++;
		if (i == PLACES_MAX)
			return 0;
		u->last = i;
		if (i == u->n_places)
			r = learn(u, name, t, like);
	}
	*ret = &u->places[u->last];
	return r;
}

/* Of a sharded one, by its spec. */
static int read_place(struct usual *u, PyObject *name, PyObject *t,
		      PyObject *spec, const struct place **ret)
{
	PyObject *mesh = get(u, spec, MESH);
	PyObject *placements = mesh ? get(u, spec, PLACEMENTS) : NULL;
	struct place like = { .device_mesh = mesh };
	int r = placements ? read_placements(u, placements, &like) : -1;

	if (r > 0)
		r = find_place(u, name, t, &like, ret);
	Py_XDECREF(placements);
	Py_XDECREF(mesh);	/* the place has one of its own */
	return r;
}

static void put_place(const struct place *p, bool whole, struct sk_tensor *to)
{
	to->mesh = p->sk;
	for (int i = 0; i < p->n; i++)
		to->placements[i] = whole ? (struct sk_placement){
			.kind = SK_PLACEMENT_REPLICATE } : p->v[i];
}

/* ---- one tensor ---- */

static int read_shape(const struct usual *u, PyObject *spec,
		      struct sk_tensor *to)
{
	/* The spec's own shape is this one's, by a property. */
	PyObject *meta = get(u, spec, META);
	PyObject *shape = meta && meta != Py_None ? get(u, meta, SHAPE) : NULL;
	int n = shape ? take_numbers(shape, "a shape", to->shape) : -1;

	Py_XDECREF(meta);
	Py_XDECREF(shape);
	to->ndim = n;
	return n >= 0 ? 1 : PyErr_Occurred() ? -1 : 0;
}

static int read_sharded(struct usual *u, PyObject *name, PyObject *t,
			struct usual_read *ret)
{
	PyObject *local = get_slot(u, t, u->slot, LOCAL);
	PyObject *spec = local ? get_slot(u, t, u->spec_slot, SPEC) : NULL;
	const struct place *place = NULL;
	bool some = false;
	int ndim = 0, r;

	r = !spec ? -1 : !is_plain(u, local) ? 0 :
	    read_memory(u, local, ret, &ndim, &some);
	if (r > 0)
		r = read_place(u, name, t, spec, &place);
	if (r > 0)
		r = read_shape(u, spec, ret->tensor);
	if (r > 0) {
		put_place(place, false, ret->tensor);
		/* What is empty here may have any shape. */
		if (some && !place->outside)
			ret->tensor->local_shape = ret->local_shape;
		if (some && !place->outside && ndim != ret->tensor->ndim)
			r = 0;
	}
	Py_XDECREF(local);	/* the tensor has it */
	Py_XDECREF(spec);
	return r;
}

/* On the ranks of its owner's mesh. */
static int read_owner(struct usual *u, PyObject *name, PyObject *owner,
		      struct sk_tensor *to)
{
	const struct place *place;
	PyObject *spec;
	int r;

	if (!owner || is_plain(u, owner))
		return 1;
	if (Py_TYPE(owner) != u->sharded)
		return 0;
	spec = get_slot(u, owner, u->spec_slot, SPEC);
	r = spec ? read_place(u, name, owner, spec, &place) : -1;
	Py_XDECREF(spec);
	if (r > 0)
		put_place(place, true, to);
	return r;
}

static int read_whole(struct usual *u, PyObject *name, PyObject *t,
		      PyObject *owner, struct usual_read *ret)
{
	struct sk_tensor *to = ret->tensor;
	int r = says_parts(u, t);
	bool some;

	if (r)
		return r < 0 ? -1 : 0;
	r = read_memory(u, t, ret, &to->ndim, &some);
	if (r > 0)
		r = read_owner(u, name, owner, to);
	if (r <= 0)
		return r;
	memcpy(to->shape, ret->local_shape,
	       (size_t)to->ndim * sizeof(to->shape[0]));
	to->local_shape = ret->local_shape;
	return 1;
}

int usual_read(struct usual *u, PyObject *name, PyObject *t, PyObject *owner,
	       struct usual_read *ret)
{
	int r = 0;

	if (Py_TYPE(t) == u->sharded)
		r = read_sharded(u, name, t, ret);
	else if (is_plain(u, t))
		r = read_whole(u, name, t, owner, ret);
	if (!r)
		*ret->tensor = (struct sk_tensor){ 0 };
	return r;
}

/* ---- for those who watch it ---- */

PyObject *usual_memory(const struct usual *u, PyObject *t, Py_ssize_t *ret_slot)
{
	PyObject *local;

	*ret_slot = 0;
	if (is_plain(u, t))
		return says_parts(u, t) ? NULL : t;
	if (Py_TYPE(t) != u->sharded)
		return NULL;
	*ret_slot = u->slot;
	local = get_slot(u, t, u->slot, LOCAL);
	Py_XDECREF(local);	/* the tensor has it */
	return local && is_plain(u, local) ? local : NULL;
}

void usual_insides(const struct usual *u, PyObject *t, const char **ret_impl,
		   const char **ret_storage)
{
	const struct insides *in = &u->insides;

	*ret_impl = in->known ? insides_word(t, in->impl) : NULL;
	*ret_storage = *ret_impl ? insides_word(*ret_impl, in->storage) : NULL;
}

/* ---- ahead ---- */

/* What is asked of the memory by the distance, each by what the one before has
 * brought: the object, its own part, what that really is, its storage. */
#define AHEAD 3

static PyObject *own_part(const struct usual *u, PyObject *t)
{
	PyObject *local = Py_TYPE(t) == u->sharded && u->slot ?
		*(PyObject **)((char *)t + u->slot) : NULL;

	return local ? local : t;
}

static bool has_insides(const struct usual *u, PyObject *t)
{
	return u->insides.known && is_plain(u, t);
}

static void ahead_spec(const struct usual *u, PyObject *t)
{
	if (Py_TYPE(t) == u->sharded && u->spec_slot)
		__builtin_prefetch(*(char **)((char *)t + u->spec_slot));
}

static void ahead_impl(const struct usual *u, PyObject *t)
{
	const char *impl;

	if (!has_insides(u, t))
		return;
	impl = insides_word(t, u->insides.impl);
	__builtin_prefetch(impl);
	__builtin_prefetch(impl + 64);
	__builtin_prefetch(impl + 128);
	__builtin_prefetch(impl + 192);
}

static void ahead_storage(const struct usual *u, PyObject *t)
{
	if (has_insides(u, t))
		__builtin_prefetch(insides_word(insides_word(
			t, u->insides.impl), u->insides.storage));
}

void usual_ahead(const struct usual *u, PyObject *(*at)(void *, Py_ssize_t),
		 void *of, Py_ssize_t i)
{
	PyObject *t = at(of, i + 4 * AHEAD);

	if (t) {
		__builtin_prefetch(t);
		__builtin_prefetch((const char *)t + 64);
	}
	t = at(of, i + 3 * AHEAD);
	if (t) {
		__builtin_prefetch(own_part(u, t));
		ahead_spec(u, t);
	}
	t = at(of, i + 2 * AHEAD);
	if (t)
		ahead_impl(u, own_part(u, t));
	t = at(of, i + AHEAD);
	if (t)
		ahead_storage(u, own_part(u, t));
}

const struct dlpack_api *usual_api(const struct usual *u)
{
	return u->api;
}

/* ---- the type ---- */

static int make_names(struct usual *u)
{
	static const char *const names[] = {
		[LOCAL] = "_local_tensor", [SPEC] = "_spec", [MESH] = "mesh",
		[PLACEMENTS] = "placements", [SHAPE] = "shape", [DIM] = "dim",
		[SPLIT] = "split_factor", [DTYPE] = "dtype",
		[STORAGE] = "untyped_storage", [NBYTES] = "nbytes",
		[OFFSET] = "storage_offset", [RAW] = "raw_repr",
		[OUTSIDE] = "outside", [SHARDS] = "local_shards",
		[GLOBAL] = "global_shape", [META] = "tensor_meta",
	};

	for (int i = 0; i < N_NAMES; i++) {
		u->names[i] = PyUnicode_InternFromString(names[i]);
		if (!u->names[i])
			return -1;
	}
	return 0;
}

static int usual_init(PyObject *object, PyObject *args, PyObject *kwargs)
{
	struct usual *u = (struct usual *)object;
	PyObject *capsule, *samples;

	if (u->args || (kwargs && PyDict_GET_SIZE(kwargs))) {
		PyErr_SetString(PyExc_TypeError, "Usual(api, keys, fit, plain, "
				"sharded, kinds, placed, dtypes, samples)");
		return -1;
	}
	if (!PyArg_ParseTuple(args, "OOO!O!O!O!OO!O!:Usual", &capsule, &u->keys,
			      &PyDict_Type, &u->fit, &PyTuple_Type, &u->plain,
			      &PyType_Type, &u->sharded, &PyTuple_Type,
			      &u->kinds, &u->placed, &PyDict_Type,
			      &u->dtypes, &PyTuple_Type, &samples) ||
	    look_api(capsule, &u->api) || make_names(u) ||
	    insides_learn(&u->insides, samples))
		return -1;
	if (!u->api) {
		PyErr_SetString(PyExc_ValueError,
				"the framework shows no tensors this way");
		return -1;
	}
	u->slot = look_slot(u->sharded, "_local_tensor");
	u->spec_slot = look_slot(u->sharded, "_spec");
	u->args = Py_NewRef(args);
	return 0;
}

static int usual_traverse(PyObject *object, visitproc visit, void *arg)
{
	struct usual *u = (struct usual *)object;

	Py_VISIT(u->args);
	for (int i = 0; i < u->n_places; i++)
		Py_VISIT(u->places[i].device_mesh);
	return 0;
}

static int usual_clear(PyObject *object)
{
	struct usual *u = (struct usual *)object;

	while (u->n_places) {
		struct place *p = &u->places[--u->n_places];

		Py_CLEAR(p->device_mesh);
		Py_CLEAR(p->mesh);
	}
	while (u->n_found) {
		struct kind *k = &u->found[--u->n_found];

		Py_CLEAR(k->device);
	}
	for (int i = 0; i < N_NAMES; i++)
		Py_CLEAR(u->names[i]);
	Py_CLEAR(u->args);
	return 0;
}

static void usual_dealloc(PyObject *object)
{
	PyObject_GC_UnTrack(object);
	(void)usual_clear(object);
	Py_TYPE(object)->tp_free(object);
}

PyTypeObject usual_type = {
	PyVarObject_HEAD_INIT(NULL, 0)
	.tp_name = "shardkeep._core.Usual",
	.tp_doc = "Usual(api, keys, fit, plain, sharded, kinds, placed, "
		  "dtypes, samples)\n--\n\n"
		  "How State.describe() reads what most tensors are. api: the "
		  "capsule that shows them; keys(tensor) and the type are "
		  "found in fit where such tensors can be stored; plain: "
		  "types; sharded: the type that has a mesh; kinds: (type of "
		  "placement, number) each; placed(name, tensor): its mesh; "
		  "dtypes: numbers; samples: (tensor, address, storage's, "
		  "keys, offset, bytes) of some, or none.",
	.tp_basicsize = sizeof(struct usual),
	.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
	.tp_new = PyType_GenericNew,
	.tp_init = usual_init,
	.tp_traverse = usual_traverse,
	.tp_clear = usual_clear,
	.tp_dealloc = usual_dealloc,
};
