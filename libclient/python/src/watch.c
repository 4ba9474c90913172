/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Watch: whether tensors are as they were. Every snapshot looks at every
 * tensor, in the trainer's own time: by the framework's C functions where it
 * has them, without an object made; else by the tensor's attributes.
 */
#include "core.h"

#include <string.h>

#include "dlpack.h"

struct watched {
	PyObject *where, *key;	/* the dict that holds it, and its name there */
	PyObject *tensor;	/* it */
	PyObject *local;	/* what has its data; itself, if not sharded */
	PyObject *look;		/* (data_ptr, shape, strides, dtype), or NULL:
				 * the following */
	struct dlpack_tensor seen;
	int64_t *sizes;		/* its shape, then its strides */
};

struct watch {
	PyObject_HEAD
	const struct dlpack_api *api;	/* NULL: attributes alone */
	struct watched *tensors;
	Py_ssize_t n;
	PyObject *counts;	/* ((sized, how many), ...) */
};

/* ---- looking ---- */

static PyObject *look_slowly(PyObject *t)
{
	PyObject *at = PyObject_CallMethod(t, "data_ptr", NULL);
	PyObject *shape = at ? PyObject_GetAttrString(t, "shape") : NULL;
	PyObject *strides = shape ? PyObject_CallMethod(t, "stride", NULL) :
				    NULL;
	PyObject *dtype = strides ? PyObject_GetAttrString(t, "dtype") : NULL;
	PyObject *all = dtype ? PyTuple_Pack(4, at, shape, strides, dtype) :
				NULL;

	Py_XDECREF(at);
	Py_XDECREF(shape);
	Py_XDECREF(strides);
	Py_XDECREF(dtype);
	return all;
}

static size_t bytes_of(const struct dlpack_tensor *t)
{
	return (size_t)t->ndim * sizeof(*t->shape);
}

static bool same(const struct watched *w, const struct dlpack_tensor *now)
{
	const struct dlpack_tensor *was = &w->seen;
	size_t bytes = bytes_of(was);

	return now->data == was->data &&
	       now->byte_offset == was->byte_offset &&
	       now->ndim == was->ndim &&
	       !memcmp(&now->dtype, &was->dtype, sizeof(now->dtype)) &&
	       !memcmp(&now->device, &was->device, sizeof(now->device)) &&
	       (!bytes ||
		(!memcmp(now->shape, w->sizes, bytes) &&
		 !memcmp(now->strides, w->sizes + was->ndim, bytes)));
}

/* Whether one is there and as it was; -1 raised. */
static int holds_one(const struct watch *self, const struct watched *w)
{
	PyObject *now = PyDict_GetItemWithError(w->where, w->key);
	struct dlpack_tensor t;
	int r;

	if (now != w->tensor)
		return PyErr_Occurred() ? -1 : 0;
	if (!w->look) {
		if (!self->api->look(w->local, &t))
			return same(w, &t);
		PyErr_Clear();	/* it has become what cannot be shown */
		return 0;
	}
	now = look_slowly(w->local);
	if (!now)
		return -1;
	r = PyObject_RichCompareBool(now, w->look, Py_EQ);
	Py_DECREF(now);
	return r;
}

static int counts_hold(PyObject *counts)
{
	for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(counts); i++) {
		PyObject *pair = PyTuple_GET_ITEM(counts, i);
		Py_ssize_t was, now;

		was = PyLong_AsSsize_t(PyTuple_GET_ITEM(pair, 1));
		now = PyObject_Length(PyTuple_GET_ITEM(pair, 0));
		if (now < 0 || (was < 0 && PyErr_Occurred()))
			return -1;
		if (now != was)
			return 0;
	}
	return 1;
}

static PyObject *watch_holds(PyObject *object, PyObject *args)
{
	const struct watch *self = (const struct watch *)object;
	int r = counts_hold(self->counts);

	(void)args;
	for (Py_ssize_t i = 0; i < self->n && r > 0; i++)
		r = holds_one(self, &self->tensors[i]);
	return r < 0 ? NULL : PyBool_FromLong(r);
}

/* ---- what is watched ---- */

/* What the framework does not show this way is looked at slowly. */
static int remember(const struct watch *self, struct watched *w, bool plain)
{
	struct dlpack_tensor *t = &w->seen;
	size_t bytes;

	if (!plain || !self->api || self->api->look(w->local, t)) {
		PyErr_Clear();
		w->look = look_slowly(w->local);
		return w->look ? 0 : -1;
	}
	bytes = bytes_of(t);
	w->sizes = PyMem_Malloc(2 * bytes + 1);
	if (!w->sizes) {
		PyErr_NoMemory();
		return -1;
	}
	if (bytes) {
		memcpy(w->sizes, t->shape, bytes);
		memcpy(w->sizes + t->ndim, t->strides, bytes);
	}
	return 0;
}

static int add(struct watch *self, PyObject *from)
{
	struct watched *w = &self->tensors[self->n];
	PyObject *where, *key, *tensor, *local;
	int plain;

	if (!PyArg_ParseTuple(from, "O!OOOp", &PyDict_Type, &where, &key,
			      &tensor, &local, &plain))
		return -1;
	*w = (struct watched){
		.where = Py_NewRef(where), .key = Py_NewRef(key),
		.tensor = Py_NewRef(tensor), .local = Py_NewRef(local),
	};
	self->n++;
	return remember(self, w, plain);
}

static int take_api(struct watch *self, PyObject *capsule)
{
	const struct dlpack_api *api;

	if (capsule == Py_None)
		return 0;
	api = PyCapsule_GetPointer(capsule, DLPACK_API_NAME);
	if (!api)
		return -1;
	while (api && api->version.major != DLPACK_MAJOR)
		api = api->older;
	self->api = api && api->look ? api : NULL;
	return 0;
}

static int take_counts(struct watch *self, PyObject *from)
{
	self->counts = PySequence_Tuple(from);
	if (!self->counts)
		return -1;
	for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(self->counts); i++) {
		PyObject *pair = PyTuple_GET_ITEM(self->counts, i);

		if (PyTuple_Check(pair) && PyTuple_GET_SIZE(pair) == 2)
			continue;
		PyErr_SetString(PyExc_TypeError,
				"a count is a pair: what, how many");
		return -1;
	}
	return 0;
}

static int watch_init(PyObject *object, PyObject *args, PyObject *kwargs)
{
	struct watch *self = (struct watch *)object;
	PyObject *tensors, *counts, *capsule, *fast;
	Py_ssize_t n;
	int r = 0;

	if (self->counts || (kwargs && PyDict_GET_SIZE(kwargs))) {
		PyErr_SetString(PyExc_TypeError, "Watch(tensors, counts, api)");
		return -1;
	}
	if (!PyArg_ParseTuple(args, "OOO:Watch", &tensors, &counts,
			      &capsule) ||
	    take_api(self, capsule) || take_counts(self, counts))
		return -1;
	fast = PySequence_Fast(tensors, "tensors");
	if (!fast)
		return -1;
	n = PySequence_Fast_GET_SIZE(fast);
	self->tensors = PyMem_Calloc((size_t)n + 1, sizeof(*self->tensors));
	if (!self->tensors) {
		PyErr_NoMemory();
		r = -1;
	}
	for (Py_ssize_t i = 0; i < n && !r; i++)
		r = add(self, PySequence_Fast_GET_ITEM(fast, i));
	Py_DECREF(fast);
	return r;
}

/* ---- its memory: watched dicts may lead back to it ---- */

static int watch_traverse(PyObject *object, visitproc visit, void *arg)
{
	struct watch *self = (struct watch *)object;

	for (Py_ssize_t i = 0; i < self->n; i++) {
		Py_VISIT(self->tensors[i].where);
		Py_VISIT(self->tensors[i].tensor);
		Py_VISIT(self->tensors[i].local);
	}
	Py_VISIT(self->counts);
	return 0;
}

static int watch_clear(PyObject *object)
{
	struct watch *self = (struct watch *)object;
	struct watched *tensors = self->tensors;
	Py_ssize_t n = self->n;

	self->tensors = NULL;
	self->n = 0;
	for (Py_ssize_t i = 0; i < n; i++) {
		Py_DECREF(tensors[i].where);
		Py_DECREF(tensors[i].key);
		Py_DECREF(tensors[i].tensor);
		Py_DECREF(tensors[i].local);
		Py_XDECREF(tensors[i].look);
		PyMem_Free(tensors[i].sizes);
	}
	PyMem_Free(tensors);
	Py_CLEAR(self->counts);
	return 0;
}

static void watch_dealloc(PyObject *object)
{
	PyObject_GC_UnTrack(object);
	(void)watch_clear(object);
	Py_TYPE(object)->tp_free(object);
}

/* ---- the type ---- */

static PyMethodDef methods[] = {
	{ "holds", watch_holds, METH_NOARGS,
	  "holds()\n--\n\nWhether all is as it was." },
	{ 0 },
};

PyTypeObject watch_type = {
	PyVarObject_HEAD_INIT(NULL, 0)
	.tp_name = "shardkeep._core.Watch",
	.tp_doc = "Watch(tensors, counts, api)\n--\n\n"
		  "Whether tensors are where and as they were. tensors: "
		  "(dict, key, tensor, local, plain) each, plain where api "
		  "(a capsule, or None) can show the local tensor; counts: "
		  "(sized, how many) each.",
	.tp_basicsize = sizeof(struct watch),
	.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
	.tp_new = PyType_GenericNew,
	.tp_init = watch_init,
	.tp_traverse = watch_traverse,
	.tp_clear = watch_clear,
	.tp_dealloc = watch_dealloc,
	.tp_methods = methods,
};
