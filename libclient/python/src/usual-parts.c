/* SPDX-License-Identifier: Apache-2.0 */
/* Usual: what tensors consist of, for who asks the framework about each. */
#include "usual-private.h"

static PyObject *listed(void *list, Py_ssize_t i)
{
	return i < PyList_GET_SIZE((PyObject *)list) ?
		       PyList_GET_ITEM((PyObject *)list, i) : NULL;
}

/* A sharded one has an own part beside itself. */
static int add_sharded(const struct usual *u, PyObject *t, PyObject *to)
{
	PyObject *local = usual_get_slot(u, t, u->slot, LOCAL);
	int r = local ? PyList_Append(to, local) : -1;

	Py_XDECREF(local);
	return r ? -1 : PyList_Append(to, t);
}

static int add_others(PyObject *others, PyObject *t, PyObject *to)
{
	PyObject *found = PyObject_CallOneArg(others, t);
	Py_ssize_t n = PyList_GET_SIZE(to);
	int r = found ? PyList_SetSlice(to, n, n, found) : -1;

	Py_XDECREF(found);
	return r;
}

static int add(const struct usual *u, PyObject *t, PyObject *others,
	       PyObject *to)
{
	int r;

	if (Py_TYPE(t) == u->sharded)
		return add_sharded(u, t, to);
	r = usual_is_plain(u, t) ? usual_says_parts(u, t) : 1;
	if (r < 0)
		return -1;
	return r ? add_others(others, t, to) : PyList_Append(to, t);
}

PyObject *usual_parts(PyObject *object, PyObject *args)
{
	const struct usual *u = (const struct usual *)object;
	PyObject *tensors, *others, *t, *to;
	Py_ssize_t i, end;
	int r = 0;

	if (!PyArg_ParseTuple(args, "O!nnO:parts", &PyList_Type, &tensors, &i,
			      &end, &others))
		return NULL;
	if (!u->args) {
		PyErr_SetString(PyExc_ValueError, "the Usual was not made");
		return NULL;
	}
	to = i < 0 ? NULL : PyList_New(0);
	if (i < 0)
		PyErr_SetString(PyExc_ValueError, "begin is negative");
	for (; to && !r && i < end && (t = listed(tensors, i)); i++) {
		usual_ahead(u, listed, tensors, i);
		Py_INCREF(t);	/* others() may take it out of the list */
		r = add(u, t, others, to);
		Py_DECREF(t);
	}
	if (r)
		Py_CLEAR(to);
	return to;
}
