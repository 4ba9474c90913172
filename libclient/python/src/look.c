/* SPDX-License-Identifier: Apache-2.0 */
#include "look.h"

#include <stdbool.h>
#include <string.h>
#include <structmember.h>

#include "contents.h"
#include "usual.h"

/* A sharded tensor's own part (torch.distributed.tensor.DTensor). */
#define LOCAL "_local_tensor"

int look_api(PyObject *capsule, const struct dlpack_api **ret)
{
	const struct dlpack_api *api;

	api = PyCapsule_GetPointer(capsule, DLPACK_API_NAME);
	if (!api)
		return -1;
	while (api && api->version.major != DLPACK_MAJOR)
		api = api->older;
	*ret = api && api->look ? api : NULL;
	return 0;
}

/* ---- the dict ---- */

static int same_place(struct watched *w)
{
	uint64_t version = dict_version(w->where);

	if (version && version == w->version)
		return 1;
	if (PyDict_GetItemWithError(w->where, w->key) != w->tensor)
		return PyErr_Occurred() ? -1 : 0;
	w->version = version;
	return 1;
}

/* ---- the local tensor ---- */

Py_ssize_t look_slot(PyTypeObject *type, const char *attribute)
{
	PyObject *found = PyObject_GetAttrString((PyObject *)type, attribute);
	Py_ssize_t slot = 0;

	if (found && Py_IS_TYPE(found, &PyMemberDescr_Type)) {
		const PyMemberDef *m = ((PyMemberDescrObject *)found)->d_member;

		slot = m->type == T_OBJECT_EX ? m->offset : 0;
	}
	Py_XDECREF(found);
	PyErr_Clear();
	return slot;
}

static int same_local(const struct watched *w)
{
	PyObject *now;

	if (w->local == w->tensor)
		return 1;
	if (w->slot)
		return *(PyObject **)((char *)w->tensor + w->slot) == w->local;
	now = PyObject_GetAttrString(w->tensor, LOCAL);
	if (!now)
		return -1;
	Py_DECREF(now);
	return now == w->local;
}

/* ---- what it looks like ---- */

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

static int same_slowly(const struct watched *w)
{
	PyObject *now = look_slowly(w->local);
	int r = now ? PyObject_RichCompareBool(now, w->look, Py_EQ) : -1;

	Py_XDECREF(now);
	return r;
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

int look_same(const struct usual *u, struct watched *w, bool placed)
{
	struct dlpack_tensor now;
	int r = placed ? 1 : same_place(w);

	if (r > 0)
		r = same_local(w);
	if (r <= 0)
		return r;
	if (w->look)
		return same_slowly(w);
	if (!usual_api(u)->look(w->local, &now))
		return same(w, &now);
	PyErr_Clear();		/* it has become what cannot be shown */
	return 0;
}

/* ---- taking one ---- */

static int keep_sizes(struct watched *w)
{
	const struct dlpack_tensor *t = &w->seen;
	size_t bytes = bytes_of(t);

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

/* What the framework does not show this way is looked at slowly. */
static int remember(const struct usual *u, struct watched *w, bool usual)
{
	if (usual && !usual_api(u)->look(w->local, &w->seen)) {
		usual_insides(u, w->local, &w->impl, &w->storage);
		return keep_sizes(w) ? -1 : 1;
	}
	PyErr_Clear();
	w->look = look_slowly(w->local);
	return w->look ? 1 : -1;
}

/* What has the data of one that is not usual; NULL: nothing that could be
 * looked at, or raised. */
static PyObject *ask(PyObject *local_of, PyObject *tensor)
{
	PyObject *local = PyObject_CallOneArg(local_of, tensor);

	if (local == Py_None)
		Py_CLEAR(local);
	return local;
}

int look_find(PyObject *from, struct watched *ret)
{
	PyObject *where, *key, *tensor;

	if (!PyTuple_Check(from) || PyTuple_GET_SIZE(from) != 2) {
		PyErr_SetString(PyExc_TypeError, "a place is a pair: dict, key");
		return -1;
	}
	where = PyTuple_GET_ITEM(from, 0);
	key = PyTuple_GET_ITEM(from, 1);
	if (!PyDict_Check(where))
		return 0;
	tensor = PyDict_GetItemWithError(where, key);
	if (!tensor) {
		if (!PyErr_Occurred())
			PyErr_SetObject(PyExc_KeyError, key);
		return -1;
	}
	*ret = (struct watched){
		.where = Py_NewRef(where), .key = Py_NewRef(key),
		.tensor = Py_NewRef(tensor),
	};
	return 1;
}

int look_take(const struct usual *u, PyObject *local_of, struct watched *w)
{
	PyObject *tensor = w->tensor;
	bool usual;

	w->local = u ? Py_XNewRef(usual_memory(u, tensor, &w->slot)) : NULL;
	usual = w->local;
	if (!w->local && !PyErr_Occurred()) {
		w->local = ask(local_of, tensor);
		w->slot = w->local && w->local != tensor ?
				  look_slot(Py_TYPE(tensor), LOCAL) : 0;
	}
	if (!w->local)
		return PyErr_Occurred() ? -1 : 0;
	return remember(u, w, usual);
}

void look_drop(struct watched *w)
{
	Py_CLEAR(w->where);
	Py_CLEAR(w->key);
	Py_CLEAR(w->tensor);
	Py_CLEAR(w->local);
	Py_CLEAR(w->look);
	PyMem_Free(w->sizes);
	w->sizes = NULL;
}
