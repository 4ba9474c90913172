/* SPDX-License-Identifier: Apache-2.0 */
#include "contents.h"

/* The next one of its type; @at counts from 0. */
static bool next(const struct contents *c, Py_ssize_t *at, PyObject **key,
		 PyObject **value)
{
	if (PyDict_Check(c->what)) {
		while (PyDict_Next(c->what, at, key, value))
			if (PyObject_TypeCheck(*value, c->type))
				return true;
		return false;
	}
	*key = NULL;
	while (*at < PyList_GET_SIZE(c->what)) {
		*value = PyList_GET_ITEM(c->what, (*at)++);
		if (PyObject_TypeCheck(*value, c->type))
			return true;
	}
	return false;
}

bool contents_same(struct contents *c)
{
	bool dict = PyDict_Check(c->what);
	uint64_t version = dict ? dict_version(c->what) : 0;
	PyObject *key, *value;
	Py_ssize_t at = 0, i = 0;

	if (version && version == c->version)
		return true;
	for (; next(c, &at, &key, &value); i++)
		if (i == c->n || c->items[2 * i] != key ||
		    c->items[2 * i + 1] != value)
			return false;
	if (i != c->n)
		return false;
	c->version = version;
	return true;
}

int contents_take(PyObject *from, struct contents *ret)
{
	PyObject *what, *key, *value;
	PyTypeObject *type;
	Py_ssize_t at = 0;

	if (!PyTuple_Check(from) ||
	    !PyArg_ParseTuple(from, "OO!", &what, &PyType_Type, &type) ||
	    !(PyDict_Check(what) || PyList_Check(what))) {
		if (!PyErr_Occurred())
			PyErr_SetString(PyExc_TypeError, "contents are of a "
					"pair: dict or list, type");
		return -1;
	}
	ret->what = Py_NewRef(what);
	ret->type = (PyTypeObject *)Py_NewRef(type);
	ret->items = PyMem_Calloc(2 * (size_t)PyObject_Length(what) + 1,
				  sizeof(*ret->items));
	if (!ret->items) {
		PyErr_NoMemory();
		return -1;
	}
	for (; next(ret, &at, &key, &value); ret->n++) {
		ret->items[2 * ret->n] = Py_XNewRef(key);
		ret->items[2 * ret->n + 1] = Py_NewRef(value);
	}
	return 0;
}

void contents_drop(struct contents *c)
{
	for (Py_ssize_t i = 0; i < 2 * c->n; i++)
		Py_XDECREF(c->items[i]);
	PyMem_Free(c->items);
	Py_XDECREF(c->what);
	Py_XDECREF(c->type);
}

int contents_visit(const struct contents *c, visitproc visit, void *arg)
{
	Py_VISIT(c->what);
	Py_VISIT(c->type);
	for (Py_ssize_t i = 0; i < 2 * c->n; i++)
		Py_VISIT(c->items[i]);
	return 0;
}
