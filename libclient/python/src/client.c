/* SPDX-License-Identifier: Apache-2.0 */
#include "core.h"

#include <errno.h>
#include <unistd.h>

/* ---- Client ---- */

static int client_init(PyObject *self, PyObject *args, PyObject *kwargs)
{
	static char *names[] = { "socket", "threads", "timeout_ms", "start",
				 NULL };
	struct client *c = (struct client *)self;
	struct natural threads = { "threads", UINT32_MAX, 0 };
	struct natural timeout = { "timeout_ms", UINT32_MAX, 0 };
	struct sk_options o = { 0 };
	int start = 1, r;
	struct sk *sk;

	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|zO&O&p:Client", names,
					 &o.socket, take_natural, &threads,
					 take_natural, &timeout, &start))
		return -1;
	o.threads = (uint32_t)threads.value;
	o.timeout_ms = (uint32_t)timeout.value;
	if (c->sk) {
		PyErr_SetString(PyExc_RuntimeError, "the client is open");
		return -1;
	}
	o.flags = start ? 0 : SK_OPEN_NO_START;
	Py_BEGIN_ALLOW_THREADS
	r = sk_open(&o, &sk);
	Py_END_ALLOW_THREADS
	if (r < 0) {
		/* NotFound is of snapshots, and leave to begin anew. */
		raise_error(r == -ENOENT ? -ECONNREFUSED : r);
		return -1;
	}
	c->sk = sk;
	c->pid = getpid();
	/* What of the environment an agent that ran already ignores. */
	if (sk_error()[0])
		return PyErr_WarnEx(PyExc_RuntimeWarning, sk_error(), 1);
	return 0;
}

static void client_drop(struct client *c)
{
	struct sk *sk = c->sk;

	c->sk = NULL;
	if (!sk || c->pid != getpid())
		return;
	Py_BEGIN_ALLOW_THREADS
	sk_close(sk);
	Py_END_ALLOW_THREADS
}

static void client_dealloc(PyObject *self)
{
	client_drop((struct client *)self);
	Py_TYPE(self)->tp_free(self);
}

static PyObject *client_close(PyObject *self, PyObject *args)
{
	struct client *c = (struct client *)self;

	(void)args;
	if (c->states || c->busy) {
		PyErr_Format(PyExc_RuntimeError, "%u states of the client are "
			     "open, %u calls under way; close them first",
			     c->states, c->busy);
		return NULL;
	}
	client_drop(c);
	Py_RETURN_NONE;
}

static bool client_usable(const struct client *c)
{
	if (!c->sk)
		PyErr_SetString(PyExc_ValueError, "the client is closed");
	return c->sk;
}

static PyObject *text_or_error(int r, char *json)
{
	PyObject *text;

	if (r < 0)
		return raise_error(r);
	text = PyUnicode_FromString(json);
	free(json);
	return text;
}

static PyObject *client_snapshots(PyObject *self, PyObject *args)
{
	struct client *c = (struct client *)self;
	const char *job = NULL;
	char *json = NULL;
	int r;

	if (!PyArg_ParseTuple(args, "|z:snapshots", &job) || !client_usable(c))
		return NULL;
	c->busy++;
	Py_BEGIN_ALLOW_THREADS
	r = sk_snapshots(c->sk, job, &json);
	Py_END_ALLOW_THREADS
	c->busy--;
	return text_or_error(r, json);
}

static PyObject *client_inspect(PyObject *self, PyObject *args,
				PyObject *kwargs)
{
	static char *names[] = { "job", "step", "run", "brief", NULL };
	struct client *c = (struct client *)self;
	struct natural run = { "run", UINT64_MAX, 0 };
	long long step = SK_LATEST;
	char *json = NULL;
	const char *job;
	int r, brief = 0;

	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "s|LO&p:inspect", names,
					 &job, &step, take_natural, &run,
					 &brief) ||
	    !client_usable(c))
		return NULL;
	c->busy++;
	Py_BEGIN_ALLOW_THREADS
	r = sk_inspect(c->sk, job, step, run.value,
		       brief ? SK_INSPECT_BRIEF : 0, &json);
	Py_END_ALLOW_THREADS
	c->busy--;
	return text_or_error(r, json);
}

static PyMethodDef client_methods[] = {
	{ "snapshots", client_snapshots, METH_VARARGS,
	  "snapshots(job=None)\n--\n\nThe snapshots the agent knows, newest "
	  "first, as JSON." },
	{ "inspect", (PyCFunction)(void *)client_inspect,
	  METH_VARARGS | METH_KEYWORDS,
	  "inspect(job, step=LATEST, run=0, brief=False)\n--\n\nWhat one "
	  "snapshot holds, as JSON." },
	{ "instance", client_instance, METH_NOARGS, client_instance_doc },
	{ "close", client_close, METH_NOARGS,
	  "close()\n--\n\nCloses the connection; its states must be closed." },
	{ 0 },
};

PyTypeObject client_type = {
	PyVarObject_HEAD_INIT(NULL, 0)
	.tp_name = "shardkeep._core.Client",
	.tp_doc = "Client(socket=None, threads=0, timeout_ms=0, start=True)\n"
		  "--\n\nA connection to this node's agent, which is started "
		  "where none runs.",
	.tp_basicsize = sizeof(struct client),
	.tp_flags = Py_TPFLAGS_DEFAULT,
	.tp_new = PyType_GenericNew,
	.tp_init = client_init,
	.tp_dealloc = client_dealloc,
	.tp_methods = client_methods,
};

/* ---- Mesh ---- */

int take_natural(PyObject *from, void *to)
{
	struct natural *c = (struct natural *)to;
	PyObject *number = PyNumber_Index(from);
	unsigned long long v;
	bool fits;

	if (!number) {
		if (PyErr_ExceptionMatches(PyExc_TypeError))
			PyErr_Format(PyExc_TypeError, "%s is %R: a whole "
				     "number is needed", c->name, from);
		return 0;
	}
	v = PyLong_AsUnsignedLongLong(number);
	fits = !PyErr_Occurred() && v <= c->most;
	Py_DECREF(number);
	if (!fits) {
		PyErr_Format(PyExc_ValueError, "%s is %R: a whole number from "
			     "0 to %llu is needed", c->name, from, c->most);
		return 0;
	}
	c->value = v;
	return 1;
}

bool is_tuple(PyObject *from, const char *what)
{
	if (!PyTuple_Check(from))
		PyErr_Format(PyExc_TypeError, "%s is a tuple, and %R is none",
			     what, from);
	return PyTuple_Check(from);
}

/* A shape is of a type of its own, which PySequence_Fast() would copy. */
static PyObject *fast_of(PyObject *from, const char *what)
{
	return PyTuple_Check(from) ? Py_NewRef(from) :
				     PySequence_Fast(from, what);
}

int take_numbers(PyObject *from, const char *what, int64_t *ret)
{
	PyObject *fast = fast_of(from, what);
	Py_ssize_t n;

	if (!fast)
		return -1;
	n = PySequence_Fast_GET_SIZE(fast);
	if (n > SK_MAX_DIMS) {
		PyErr_Format(PyExc_ValueError, "%s: %zd dimensions, at most "
			     "%d", what, n, SK_MAX_DIMS);
		n = -1;
	}
	for (Py_ssize_t i = 0; i < n; i++) {
		ret[i] = PyLong_AsLongLong(PySequence_Fast_GET_ITEM(fast, i));
		if (ret[i] == -1 && PyErr_Occurred()) {
			n = -1;
			break;
		}
	}
	Py_DECREF(fast);
	return (int)n;
}

/* Names of @n dimensions, borrowed from @fast; -1 raised. */
static int take_names(PyObject *fast, Py_ssize_t n, const char **ret)
{
	if (n > SK_MAX_DIMS || PySequence_Fast_GET_SIZE(fast) != n) {
		PyErr_SetString(PyExc_ValueError,
				"a mesh has one name for each dimension");
		return -1;
	}
	for (Py_ssize_t i = 0; i < n; i++) {
		ret[i] = PyUnicode_AsUTF8(PySequence_Fast_GET_ITEM(fast, i));
		if (!ret[i])
			return -1;
	}
	return 0;
}

static int32_t *take_ranks(PyObject *fast, int64_t count)
{
	int32_t *ranks;

	if (PySequence_Fast_GET_SIZE(fast) != count) {
		PyErr_Format(PyExc_ValueError, "a mesh of %lld ranks lists "
			     "%zd", (long long)count,
			     PySequence_Fast_GET_SIZE(fast));
		return NULL;
	}
	ranks = calloc((size_t)count + 1, sizeof(*ranks));
	if (!ranks)
		return (int32_t *)PyErr_NoMemory();
	for (int64_t i = 0; i < count; i++) {
		long v = PyLong_AsLong(PySequence_Fast_GET_ITEM(fast, i));

		if ((v == -1 && PyErr_Occurred()) || v < 0 || v > INT32_MAX) {
			if (!PyErr_Occurred())
				PyErr_SetString(PyExc_ValueError,
						"a rank of a mesh is out of "
						"range");
			free(ranks);
			return NULL;
		}
		ranks[i] = (int32_t)v;
	}
	return ranks;
}

static int mesh_make(struct mesh *m, PyObject *shape_obj, PyObject *rank_list,
		     PyObject *name_list)
{
	int64_t shape[SK_MAX_DIMS], count = 1;
	const char *names[SK_MAX_DIMS];
	int n = take_numbers(shape_obj, "a mesh's shape", shape), r;
	int32_t *ranks = NULL;

	if (n < 0)
		return -1;
	for (int d = 0; d < n; d++)
		if (__builtin_mul_overflow(count, shape[d], &count) ||
		    shape[d] < 0) {
			PyErr_SetString(PyExc_ValueError,
					"a mesh's shape is out of range");
			return -1;
		}
	if (name_list && take_names(name_list, n, names))
		return -1;
	if (rank_list) {
		ranks = take_ranks(rank_list, count);
		if (!ranks)
			return -1;
	}
	r = sk_mesh_create(n, shape, ranks, name_list ? names : NULL,
			   &m->mesh);
	free(ranks);
	if (r < 0)
		raise_error(r);
	return r < 0 ? -1 : 0;
}

static int mesh_init(PyObject *self, PyObject *args, PyObject *kwargs)
{
	static char *words[] = { "shape", "ranks", "names", NULL };
	PyObject *shape, *ranks = NULL, *names = NULL;
	struct mesh *m = (struct mesh *)self;
	int r = -1;

	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|OO:Mesh", words,
					 &shape, &ranks, &names))
		return -1;
	if (m->mesh) {
		PyErr_SetString(PyExc_RuntimeError, "a mesh does not change");
		return -1;
	}
	ranks = ranks && ranks != Py_None ?
		PySequence_Fast(ranks, "a mesh's ranks") : NULL;
	names = !PyErr_Occurred() && names && names != Py_None ?
		PySequence_Fast(names, "a mesh's names") : NULL;
	if (!PyErr_Occurred())
		r = mesh_make(m, shape, ranks, names);
	Py_XDECREF(ranks);
	Py_XDECREF(names);
	return r;
}

static void mesh_dealloc(PyObject *self)
{
	sk_mesh_release(((struct mesh *)self)->mesh);
	Py_TYPE(self)->tp_free(self);
}

int take_mesh(PyObject *from, struct sk_mesh **ret)
{
	*ret = NULL;
	if (from == Py_None)
		return 0;
	if (!PyObject_TypeCheck(from, &mesh_type)) {
		PyErr_SetString(PyExc_TypeError, "a mesh is a Mesh or None");
		return -1;
	}
	*ret = ((struct mesh *)from)->mesh;
	if (!*ret)
		PyErr_SetString(PyExc_ValueError, "the mesh was not made");
	return *ret ? 0 : -1;
}

PyTypeObject mesh_type = {
	PyVarObject_HEAD_INIT(NULL, 0)
	.tp_name = "shardkeep._core.Mesh",
	.tp_doc = "Mesh(shape, ranks=None, names=None)\n--\n\nAn N-d array of "
		  "global ranks, row-major; ranks None: 0, 1, 2, ...",
	.tp_basicsize = sizeof(struct mesh),
	.tp_flags = Py_TPFLAGS_DEFAULT,
	.tp_new = PyType_GenericNew,
	.tp_init = mesh_init,
	.tp_dealloc = mesh_dealloc,
};
