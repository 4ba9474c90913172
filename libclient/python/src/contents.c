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

static bool names_same(const struct contents *c)
{
	for (Py_ssize_t i = 0; i < c->n; i++)
		if (PyDict_GetItem(c->what, c->items[2 * i]) !=
		    c->items[2 * i + 1])
			return false;
	return true;
}

/* Of its own class as well, where that shows another one as __dict__. */
static PyObject *dict_of(PyObject *object)
{
	return PyObject_GenericGetDict(object, NULL);
}

static bool owner_same(const struct contents *c)
{
	PyObject *now = dict_of(c->what);

	if (!now)
		PyErr_Clear();
	Py_XDECREF(now);	/* compared by its address alone */
	return now == c->items[1];
}

bool contents_same(struct contents *c)
{
	bool dict = PyDict_Check(c->what);
	uint64_t version = dict ? dict_version(c->what) : 0;
	PyObject *key, *value;
	Py_ssize_t at = 0, i = 0;

	if (c->owner)
		return owner_same(c);
	if (version && version == c->version)
		return true;
	if (!c->type && !names_same(c))
		return false;
	for (; c->type && next(c, &at, &key, &value); i++)
		if (i == c->n || c->items[2 * i] != key ||
		    c->items[2 * i + 1] != value)
			return false;
	if (c->type && i != c->n)
		return false;
	c->version = version;
	return true;
}

static void keep(struct contents *c, PyObject *key, PyObject *value)
{
	c->items[2 * c->n] = Py_XNewRef(key);
	c->items[2 * c->n + 1] = Py_XNewRef(value);
	c->n++;
}

/* NULL where there is none of that name: nor shall there be. */
static int keep_named(struct contents *c, PyObject *names)
{
	for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(names); i++) {
		PyObject *name = PyTuple_GET_ITEM(names, i);
		PyObject *value = PyDict_GetItemWithError(c->what, name);

		if (!value && PyErr_Occurred())
			return -1;
		keep(c, name, value);
	}
	return 0;
}

static int keep_dict(struct contents *c)
{
	PyObject *dict = dict_of(c->what);

	c->owner = true;
	if (!dict)
		return -1;
	keep(c, NULL, dict);
	Py_DECREF(dict);
	return 0;
}

static bool may_take(PyObject *what, PyObject *which)
{
	if (which == Py_None)
		return true;
	return PyTuple_Check(which) ? PyDict_Check(what) :
	       PyType_Check(which) &&
	       (PyDict_Check(what) || PyList_Check(what));
}

int contents_take(PyObject *from, struct contents *ret)
{
	PyObject *what, *which, *key, *value;
	Py_ssize_t at = 0, most;

	if (!PyTuple_Check(from) ||
	    !PyArg_ParseTuple(from, "OO", &what, &which) ||
	    !may_take(what, which)) {
		if (!PyErr_Occurred())
			PyErr_SetString(PyExc_TypeError, "contents are of a "
					"pair: dict or list, type; dict, "
					"names; or object, None");
		return -1;
	}
	most = which == Py_None ? 1 :
	       PyObject_Length(PyTuple_Check(which) ? which : what);
	ret->what = Py_NewRef(what);
	ret->items = PyMem_Calloc(2 * (size_t)most + 1, sizeof(*ret->items));
	if (!ret->items) {
		PyErr_NoMemory();
		return -1;
	}
	if (which == Py_None)
		return keep_dict(ret);
	if (PyTuple_Check(which))
		return keep_named(ret, which);
	ret->type = (PyTypeObject *)Py_NewRef(which);
	while (next(ret, &at, &key, &value))
		keep(ret, key, value);
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
