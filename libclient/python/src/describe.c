/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A tensor as a tuple:
 *   (name, dtype, shape, mesh, placements, pointer, strides, local_shape,
 *    parts)
 * placements: ((kind, dim, split_factor), ...); strides and local_shape: a
 * tuple or None; parts: ((offset, size, pointer, strides), ...) or None.
 */
#include "core.h"

#include <string.h>

/* An address: a negative number is none. Raised if so. */
static void *take_pointer(PyObject *from)
{
	return (void *)PyLong_AsSize_t(from);
}

static int take_placements(PyObject *from, struct sk_placement *ret)
{
	PyObject *fast = PySequence_Fast(from, "placements");
	Py_ssize_t n;

	if (!fast)
		return -1;
	n = PySequence_Fast_GET_SIZE(fast);
	if (n > SK_MAX_DIMS) {
		PyErr_Format(PyExc_ValueError, "%zd placements, at most %d",
			     n, SK_MAX_DIMS);
		goto fail;
	}
	for (Py_ssize_t i = 0; i < n; i++) {
		PyObject *one = PySequence_Fast_GET_ITEM(fast, i);
		long long split;

		if (!is_tuple(one, "a placement") ||
		    !PyArg_ParseTuple(one, "iiL", &ret[i].kind, &ret[i].dim,
				      &split))
			goto fail;
		ret[i].split_factor = split;
	}
	Py_DECREF(fast);
	return 0;
fail:
	Py_DECREF(fast);
	return -1;
}

/* All 0 where it is None: dense. */
static int take_strides(PyObject *from, int64_t *ret)
{
	if (from == Py_None)
		return 0;
	return take_numbers(from, "strides", ret) < 0 ? -1 : 0;
}

static int take_part(PyObject *from, struct sk_part *ret)
{
	PyObject *offset, *size, *pointer, *strides;

	if (!is_tuple(from, "a part") ||
	    !PyArg_ParseTuple(from, "OOOO", &offset, &size, &pointer,
			      &strides) ||
	    take_numbers(offset, "a part's offset", ret->box.offset) < 0 ||
	    take_numbers(size, "a part's size", ret->box.size) < 0 ||
	    take_strides(strides, ret->strides))
		return -1;
	ret->data = take_pointer(pointer);
	return PyErr_Occurred() ? -1 : 0;
}

static int take_parts(PyObject *from, struct sk_tensor *t)
{
	Py_ssize_t n = PyTuple_GET_SIZE(from);
	struct sk_part *to = calloc((size_t)n + 1, sizeof(*to));

	if (!to) {
		PyErr_NoMemory();
		return -1;
	}
	t->parts = to;
	t->n_parts = (uint32_t)n;
	for (Py_ssize_t i = 0; i < n; i++)
		if (take_part(PyTuple_GET_ITEM(from, i), &to[i]))
			return -1;
	return 0;
}

static int check_form(PyObject *from)
{
	PyObject *parts;

	if (!PyTuple_Check(from) || PyTuple_GET_SIZE(from) < 9 ||
	    PyTuple_GET_SIZE(from) > 10) {
		PyErr_SetString(PyExc_TypeError, "a tensor is described by a "
				"tuple of 9 or 10");
		return -1;
	}
	parts = PyTuple_GET_ITEM(from, 8);
	if (parts == Py_None || PyTuple_Check(parts))
		return 0;
	PyErr_SetString(PyExc_TypeError, "parts are a tuple or None");
	return -1;
}

int described_take(PyObject *from, struct sk_tensor *t, int64_t *local)
{
	PyObject *shape, *mesh, *placements, *pointer, *strides, *local_shape;
	PyObject *parts, *device = Py_None;
	struct sk_mesh *m;
	int n;

	if (check_form(from) ||
	    !PyArg_ParseTuple(from, "siOOOOOOO|O", &t->name, &t->dtype,
			      &shape, &mesh, &placements, &pointer, &strides,
			      &local_shape, &parts, &device))
		return -1;
	if (device != Py_None) {
		t->memory = SK_CUDA;
		t->device = (int32_t)PyLong_AsLong(device);
		if (PyErr_Occurred())
			return -1;
	}
	n = take_numbers(shape, t->name, t->shape);
	if (n < 0 || take_mesh(mesh, &m) ||
	    take_placements(placements, t->placements) ||
	    take_strides(strides, t->strides))
		return -1;
	t->ndim = n;
	t->mesh = m;
	t->data = take_pointer(pointer);
	if (PyErr_Occurred())
		return -1;
	if (local_shape != Py_None) {
		if (take_numbers(local_shape, "a local shape", local) != n) {
			if (!PyErr_Occurred())
				PyErr_Format(PyExc_ValueError, "tensor %s has "
					     "%d dimensions, its local part "
					     "another number", t->name, n);
			return -1;
		}
		t->local_shape = local;
	}
	return parts == Py_None ? 0 : take_parts(parts, t);
}

int described_room(struct described *d, Py_ssize_t n)
{
	*d = (struct described){
		.tensors = calloc((size_t)n + 1, sizeof(*d->tensors)),
		.local_shapes = calloc((size_t)n + 1,
				       sizeof(*d->local_shapes)),
		.n = (size_t)n,
	};
	if (d->tensors && d->local_shapes)
		return 0;
	PyErr_NoMemory();
	return -1;
}

int described_make(PyObject *list, struct described *ret)
{
	PyObject *fast = PySequence_Fast(list, "the tensors");
	int r;

	*ret = (struct described){ 0 };
	if (!fast)
		return -1;
	r = described_room(ret, PySequence_Fast_GET_SIZE(fast));
	for (size_t i = 0; i < ret->n && !r; i++)
		r = described_take(PySequence_Fast_GET_ITEM(fast,
							    (Py_ssize_t)i),
				   &ret->tensors[i], ret->local_shapes[i]);
	Py_DECREF(fast);
	return r;
}

void described_free(struct described *d)
{
	for (size_t i = 0; d->tensors && i < d->n; i++)
		free((void *)d->tensors[i].parts);
	free(d->tensors);
	free(d->local_shapes);
}
