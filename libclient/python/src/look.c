/* SPDX-License-Identifier: Apache-2.0 */
#include "look.h"

#include <stdbool.h>
#include <string.h>
#include <structmember.h>

#include "contents.h"

/* A sharded tensor's own part (torch.distributed.tensor.DTensor). */
#define LOCAL "_local_tensor"

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

/* Where objects of this type keep theirs; 0: it must be asked for. */
static Py_ssize_t slot_of(PyTypeObject *type)
{
	PyObject *found = PyObject_GetAttrString((PyObject *)type, LOCAL);
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

int look_same(const struct dlpack_api *api, struct watched *w)
{
	struct dlpack_tensor now;
	int r = same_place(w);

	if (r > 0)
		r = same_local(w);
	if (r <= 0)
		return r;
	if (w->look)
		return same_slowly(w);
	if (!api->look(w->local, &now))
		return same(w, &now);
	PyErr_Clear();		/* it has become what cannot be shown */
	return 0;
}

/* ---- taking one ---- */

/* Where the framework keeps an object's insides; NULL where it does not say.
 * Memory is asked for by it, and never read. */
static const char *address_of(PyObject *object)
{
	PyObject *at = object ? PyObject_GetAttrString(object, "_cdata") : NULL;
	void *found = at ? PyLong_AsVoidPtr(at) : NULL;

	Py_XDECREF(at);
	PyErr_Clear();
	return found;
}

static void find_insides(struct watched *w)
{
	PyObject *storage = PyObject_CallMethod(w->local, "untyped_storage",
						NULL);

	PyErr_Clear();
	w->impl = address_of(w->local);
	w->storage = address_of(storage);
	Py_XDECREF(storage);
}

/* What the framework does not show this way is looked at slowly. */
static int remember(const struct dlpack_api *api, struct watched *w, bool plain)
{
	struct dlpack_tensor *t = &w->seen;
	size_t bytes;

	if (!plain || !api || api->look(w->local, t)) {
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
	find_insides(w);
	return 0;
}

int look_take(const struct dlpack_api *api, PyObject *from,
	      struct watched *ret)
{
	PyObject *where, *key, *tensor, *local;
	int plain;

	if (!PyTuple_Check(from)) {
		PyErr_SetString(PyExc_TypeError, "a tensor is a tuple: dict, "
				"key, tensor, local, plain");
		return -1;
	}
	if (!PyArg_ParseTuple(from, "O!OOOp", &PyDict_Type, &where, &key,
			      &tensor, &local, &plain))
		return -1;
	*ret = (struct watched){
		.where = Py_NewRef(where), .key = Py_NewRef(key),
		.tensor = Py_NewRef(tensor), .local = Py_NewRef(local),
		.slot = local == tensor ? 0 : slot_of(Py_TYPE(tensor)),
	};
	return remember(api, ret, plain);
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
