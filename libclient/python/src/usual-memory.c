/* SPDX-License-Identifier: Apache-2.0 */
/* Usual: whether a tensor's values are the bytes at its address, and where
 * that is. */
#include "usual-private.h"

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

static int64_t call(const struct usual *u, PyObject *of, enum name name)
{
	return usual_number(PyObject_CallMethodNoArgs(of, u->names[name]));
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
	PyObject *dtype = usual_get(u, t, DTYPE), *found;

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

int usual_read_memory(struct usual *u, PyObject *t, struct usual_read *ret,
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
