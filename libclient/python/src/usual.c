/* SPDX-License-Identifier: Apache-2.0 */
#include "usual-private.h"

#include <string.h>

/* ---- one tensor ---- */

int usual_says_parts(const struct usual *u, PyObject *t)
{
	PyObject **own = _PyObject_GetDictPtr(t);
	int r;

	if (!own || !*own || !PyDict_GET_SIZE(*own))
		return 0;
	r = PyDict_Contains(*own, u->names[SHARDS]);
	return r ? r : PyDict_Contains(*own, u->names[GLOBAL]);
}

static void put_place(const struct place *p, bool whole, struct sk_tensor *to)
{
	to->mesh = p->sk;
	for (int i = 0; i < p->n; i++)
		to->placements[i] = whole ? (struct sk_placement){
			.kind = SK_PLACEMENT_REPLICATE } : p->v[i];
}

static int read_shape(const struct usual *u, PyObject *name, PyObject *spec,
		      struct sk_tensor *to)
{
	const char *what = PyUnicode_AsUTF8(name);
	/* The spec's own shape is this one's, by a property. */
	PyObject *meta = usual_get(u, spec, META);
	PyObject *shape = meta && meta != Py_None ?
		usual_get(u, meta, SHAPE) : NULL;
	int n = shape && what ? take_numbers(shape, what, to->shape) : -1;

	Py_XDECREF(meta);
	Py_XDECREF(shape);
	to->ndim = n;
	return n >= 0 ? 1 : PyErr_Occurred() ? -1 : 0;
}

static int read_sharded(struct usual *u, PyObject *name, PyObject *t,
			struct usual_read *ret)
{
	PyObject *local = usual_get_slot(u, t, u->slot, LOCAL);
	PyObject *spec = local ?
		usual_get_slot(u, t, u->spec_slot, SPEC) : NULL;
	const struct place *place = NULL;
	bool some = false;
	int ndim = 0, r;

	r = !spec ? -1 : !usual_is_plain(u, local) ? 0 :
	    usual_read_memory(u, local, ret, &ndim, &some);
	if (r > 0)
		r = usual_read_place(u, name, t, spec, &place);
	if (r > 0)
		r = read_shape(u, name, spec, ret->tensor);
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

	if (!owner || usual_is_plain(u, owner))
		return 1;
	if (Py_TYPE(owner) != u->sharded)
		return 0;
	spec = usual_get_slot(u, owner, u->spec_slot, SPEC);
	r = spec ? usual_read_place(u, name, owner, spec, &place) : -1;
	Py_XDECREF(spec);
	if (r > 0)
		put_place(place, true, to);
	return r;
}

static int read_whole(struct usual *u, PyObject *name, PyObject *t,
		      PyObject *owner, struct usual_read *ret)
{
	struct sk_tensor *to = ret->tensor;
	int r = usual_says_parts(u, t);
	bool some;

	if (r)
		return r < 0 ? -1 : 0;
	r = usual_read_memory(u, t, ret, &to->ndim, &some);
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
	else if (usual_is_plain(u, t))
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
	if (usual_is_plain(u, t))
		return usual_says_parts(u, t) ? NULL : t;
	if (Py_TYPE(t) != u->sharded)
		return NULL;
	*ret_slot = u->slot;
	local = usual_get_slot(u, t, u->slot, LOCAL);
	Py_XDECREF(local);	/* the tensor has it */
	return local && usual_is_plain(u, local) ? local : NULL;
}

void usual_insides(const struct usual *u, PyObject *t, const char **ret_impl,
		   const char **ret_storage)
{
	const struct insides *in = &u->insides;

	*ret_impl = in->known ? insides_word(t, in->impl) : NULL;
	*ret_storage = *ret_impl ? insides_word(*ret_impl, in->storage) : NULL;
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

int usual_take(PyObject *from, struct usual **ret)
{
	*ret = NULL;
	if (from == Py_None)
		return 0;
	if (!PyObject_TypeCheck(from, &usual_type)) {
		PyErr_SetString(PyExc_TypeError, "usual is a Usual or None");
		return -1;
	}
	if (!((struct usual *)from)->args) {
		PyErr_SetString(PyExc_ValueError, "the Usual was not made");
		return -1;
	}
	*ret = (struct usual *)from;
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

static PyMethodDef methods[] = {
	{ "parts", usual_parts, METH_VARARGS,
	  "parts(tensors, begin, end, others)\n--\n\n"
	  "Those of the list's tensors from begin to end, or its end, that "
	  "have values of their own: plain ones, sharded ones and their own "
	  "parts; of any other what others(tensor) lists." },
	{ 0 },
};

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
	.tp_methods = methods,
};
