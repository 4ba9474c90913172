/* SPDX-License-Identifier: Apache-2.0 */
#include "links.h"

#include <errno.h>

#include "tensor/dtype.h"

static PyObject *error_type, *error_types;

PyObject *raise_error(int r)
{
	PyObject *code = PyLong_FromLong(-r), *type, *args;

	if (!code)
		return NULL;
	type = PyDict_GetItemWithError(error_types, code);
	args = Py_BuildValue("(Os)", code, sk_error());
	if (args)
		PyErr_SetObject(type ? type : error_type, args);
	Py_XDECREF(args);
	Py_DECREF(code);
	return NULL;
}

PyObject *none_or_error(int r)
{
	if (r < 0)
		return raise_error(r);
	Py_RETURN_NONE;
}

/* The package makes the exceptions: they read better in Python. */
static PyObject *set_errors(PyObject *self, PyObject *args)
{
	PyObject *all, *by_errno;

	(void)self;
	if (!PyArg_ParseTuple(args, "OO!:set_errors", &all, &PyDict_Type,
			      &by_errno))
		return NULL;
	Py_XSETREF(error_type, Py_NewRef(all));
	Py_XSETREF(error_types, Py_NewRef(by_errno));
	Py_RETURN_NONE;
}

static PyObject *version(PyObject *self, PyObject *args)
{
	(void)self;
	(void)args;
	return PyUnicode_FromString(sk_version());
}

static PyMethodDef functions[] = {
	{ "set_errors", set_errors, METH_VARARGS,
	  "set_errors(base, by_errno)\n--\n\nWhat failed calls raise." },
	{ "version", version, METH_NOARGS,
	  "version()\n--\n\nThe version of the C library." },
	{ 0 },
};

static struct PyModuleDef module = {
	PyModuleDef_HEAD_INIT,
	.m_name = "shardkeep._core",
	.m_doc = "The C library of Shardkeep. Use the package shardkeep.",
	.m_size = -1,
	.m_methods = functions,
};

static const struct {
	const char *name;
	long value;
} constants[] = {
	{ "REPLICATE", SK_PLACEMENT_REPLICATE },
	{ "SHARD", SK_PLACEMENT_SHARD },
	{ "STRIDED_SHARD", SK_PLACEMENT_STRIDED_SHARD },
	{ "PARTIAL", SK_PLACEMENT_PARTIAL },
	{ "HOST", SK_HOST },
	{ "CUDA", SK_CUDA },
	{ "MAX_DIMS", SK_MAX_DIMS },
	{ "JOB_NO_REPLICAS", SK_JOB_NO_REPLICAS },
	{ "JOB_NODE_REPLICAS", SK_JOB_NODE_REPLICAS },
	{ "JOB_VERIFY", SK_JOB_VERIFY },
	{ "JOB_READER", SK_JOB_READER },
	{ "COPY_FAST", SK_COPY_FAST },
	{ "COPY_OVERLAP", SK_COPY_OVERLAP },
	{ "SNAPSHOT_FLUSH", SK_SNAPSHOT_FLUSH },
	{ "SNAPSHOT_NO_FLUSH", SK_SNAPSHOT_NO_FLUSH },
	{ "SNAPSHOT_VERIFY", SK_SNAPSHOT_VERIFY },
	{ "SEALED", SK_SEALED },
	{ "COMPLETE", SK_COMPLETE },
	{ "DURABLE", SK_DURABLE },
	{ "WRITTEN", SK_WRITTEN },
	{ "LATEST", SK_LATEST },
	{ "RESTORE_MISSING_OK", SK_RESTORE_MISSING_OK },
	{ "RESTORE_EXTRA_OK", SK_RESTORE_EXTRA_OK },
	{ "RESTORE_MEMORY_ONLY", SK_RESTORE_MEMORY_ONLY },
	{ "RESTORE_DISK_ONLY", SK_RESTORE_DISK_ONLY },
	{ "RESTORE_NO_VERIFY", SK_RESTORE_NO_VERIFY },
};

static int add_dtypes(PyObject *m)
{
	PyObject *dtypes = PyDict_New();
	int r = dtypes ? 0 : -1;

	for (int t = 1; t < SK_DTYPE_COUNT && !r; t++) {
		PyObject *value = PyLong_FromLong(t);

		r = value ? PyDict_SetItemString(dtypes, sk_dtype_name(t),
						 value) : -1;
		Py_XDECREF(value);
	}
	if (!r)
		r = PyModule_AddObjectRef(m, "DTYPES", dtypes);
	Py_XDECREF(dtypes);
	return r;
}

static int add_all(PyObject *m)
{
	for (size_t i = 0; i < sizeof(constants) / sizeof(*constants); i++)
		if (PyModule_AddIntConstant(m, constants[i].name,
					    constants[i].value))
			return -1;
	if (PyModule_AddIntConstant(m, "FLUSH_NEVER", (long)SK_FLUSH_NEVER) ||
	    PyModule_AddIntConstant(m, "KEEP_ALL", (long)SK_KEEP_ALL) ||
	    PyModule_AddType(m, &client_type) ||
	    PyModule_AddType(m, &mesh_type) ||
	    PyModule_AddType(m, &state_type) ||
	    PyModule_AddType(m, &usual_type) ||
	    PyModule_AddType(m, &links_type) ||
	    PyModule_AddType(m, &watch_type))
		return -1;
	return add_dtypes(m);
}

PyMODINIT_FUNC PyInit__core(void);

PyMODINIT_FUNC PyInit__core(void)
{
	PyObject *m = PyModule_Create(&module);

	if (!m)
		return NULL;
	error_type = Py_NewRef(PyExc_OSError);
	error_types = PyDict_New();
	if (!error_types || add_all(m)) {
		Py_DECREF(m);
		return NULL;
	}
	return m;
}
