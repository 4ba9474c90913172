/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Watch: whether tensors are as they were. Every snapshot looks at every
 * tensor, in the trainer's own time.
 */
#include "core.h"

#include <string.h>

#include "changes.h"
#include "contents.h"
#include "look.h"
#include "usual.h"

struct counted {
	PyObject *what;
	Py_ssize_t n;		/* its length */
};

/* Of counts, and of what is held, dicts come first whose changes are told:
 * while none changed, those need not be looked at. */
struct watch {
	PyObject_HEAD
	PyObject *usual;		/* NULL: attributes alone */
	struct watched *tensors;
	Py_ssize_t n;
	bool blind;			/* one can be looked at by nobody */
	bool untold;			/* not each of their dicts is told of */
	struct counted *counts;
	Py_ssize_t n_counts, told_counts;
	struct contents *held;
	Py_ssize_t n_held, told_held;
	uint64_t changes;		/* when all held last; 0: cannot tell */
};

/* ---- looking ---- */

static int count_holds(const struct counted *c)
{
	Py_ssize_t now = PyDict_Check(c->what) ? PyDict_GET_SIZE(c->what) :
						 PyObject_Length(c->what);

	return now < 0 ? -1 : now == c->n;
}

static int counts_hold(const struct watch *self, Py_ssize_t from)
{
	int r = 1;

	for (Py_ssize_t i = from; i < self->n_counts && r > 0; i++) {
		if (i + LOOK_AHEAD < self->n_counts)
			__builtin_prefetch(self->counts[i + LOOK_AHEAD].what);
		r = count_holds(&self->counts[i]);
	}
	return r;
}

static int contents_hold(const struct watch *self, Py_ssize_t from)
{
	bool same = true;

	for (Py_ssize_t i = from; i < self->n_held && same; i++) {
		if (i + LOOK_AHEAD < self->n_held)
			__builtin_prefetch(self->held[i + LOOK_AHEAD].what);
		same = contents_same(&self->held[i]);
	}
	return same;
}

static int tensors_hold(const struct watch *self, bool placed)
{
	int r = 1;

	for (Py_ssize_t i = 0; i < self->n && r > 0; i++) {
		if (i + LOOK_AHEAD < self->n)
			look_ahead(&self->tensors[i + LOOK_AHEAD], placed);
		r = look_same((struct usual *)self->usual,
			      &self->tensors[i], placed);
	}
	return r;
}

static PyObject *watch_holds(PyObject *object, PyObject *args)
{
	struct watch *self = (struct watch *)object;
	uint64_t now = changes_of_dicts();	/* before any is looked at */
	bool placed = now && now == self->changes;
	int r = self->blind ? 0 :
		counts_hold(self, placed ? self->told_counts : 0);

	(void)args;
	if (r > 0)
		r = contents_hold(self, placed ? self->told_held : 0);
	if (r > 0)
		r = tensors_hold(self, placed && !self->untold);
	if (r > 0)
		self->changes = now;
	return r < 0 ? NULL : PyBool_FromLong(r);
}

/* ---- what is watched ---- */

/* Whether what a pair is about is a dict whose changes are told. */
static bool is_told(PyObject *fast, Py_ssize_t i)
{
	PyObject *pair = PySequence_Fast_GET_ITEM(fast, i);

	return PyTuple_Check(pair) && PyTuple_GET_SIZE(pair) == 2 &&
	       PyTuple_GET_ITEM(pair, 1) != Py_None &&
	       PyDict_Check(PyTuple_GET_ITEM(pair, 0)) &&
	       changes_told(PyTuple_GET_ITEM(pair, 0));
}

static int take_count(struct watch *self, PyObject *from)
{
	PyObject *what;
	Py_ssize_t n;

	if (!PyTuple_Check(from) || PyTuple_GET_SIZE(from) != 2) {
		PyErr_SetString(PyExc_TypeError,
				"a count is a pair: what, how many");
		return -1;
	}
	if (!PyArg_ParseTuple(from, "On", &what, &n))
		return -1;
	self->counts[self->n_counts++] = (struct counted){
		.what = Py_NewRef(what), .n = n,
	};
	return 0;
}

static int take_counts(struct watch *self, PyObject *fast)
{
	Py_ssize_t n = PySequence_Fast_GET_SIZE(fast);
	int r = 0;

	self->counts = PyMem_Calloc((size_t)n + 1, sizeof(*self->counts));
	if (!self->counts) {
		PyErr_NoMemory();
		return -1;
	}
	for (Py_ssize_t i = 0; i < n && !r; i++)
		if (is_told(fast, i))
			r = take_count(self, PySequence_Fast_GET_ITEM(fast, i));
	self->told_counts = self->n_counts;
	for (Py_ssize_t i = 0; i < n && !r; i++)
		if (!is_told(fast, i))
			r = take_count(self, PySequence_Fast_GET_ITEM(fast, i));
	return r;
}

static PyObject *tensor_at(void *watch, Py_ssize_t i)
{
	const struct watch *self = watch;

	return i < self->n ? self->tensors[i].tensor : NULL;
}

/* How those that were found look. */
static int take_looks(struct watch *self, PyObject *local_of)
{
	struct usual *usual = (struct usual *)self->usual;
	int r = 1;

	for (Py_ssize_t i = 0; i < self->n && r > 0; i++) {
		if (usual)
			usual_ahead(usual, tensor_at, self, i);
		r = look_take(usual, local_of, &self->tensors[i]);
	}
	return r;
}

static int take_places(struct watch *self, PyObject *fast, PyObject *local_of)
{
	Py_ssize_t n = PySequence_Fast_GET_SIZE(fast);
	int r = 1;

	self->tensors = PyMem_Calloc((size_t)n + 1, sizeof(*self->tensors));
	if (!self->tensors) {
		PyErr_NoMemory();
		return -1;
	}
	for (Py_ssize_t i = 0; i < n && r > 0; i++)
		r = look_find(PySequence_Fast_GET_ITEM(fast, i),
			      &self->tensors[self->n++]);
	if (r > 0)
		r = take_looks(self, local_of);
	self->blind = !r;
	return r < 0 ? -1 : 0;
}

static int take_held(struct watch *self, PyObject *fast)
{
	Py_ssize_t n = PySequence_Fast_GET_SIZE(fast);
	int r = 0;

	self->held = PyMem_Calloc((size_t)n + 1, sizeof(*self->held));
	if (!self->held) {
		PyErr_NoMemory();
		return -1;
	}
	for (Py_ssize_t i = 0; i < n && !r; i++)
		if (is_told(fast, i))
			r = contents_take(PySequence_Fast_GET_ITEM(fast, i),
					  &self->held[self->n_held++]);
	self->told_held = self->n_held;
	for (Py_ssize_t i = 0; i < n && !r; i++)
		if (!is_told(fast, i))
			r = contents_take(PySequence_Fast_GET_ITEM(fast, i),
					  &self->held[self->n_held++]);
	return r;
}

/* From here on changes of these dicts are counted, if those of all are. */
static int take_dicts(struct watch *self)
{
	int r = 0;

	for (Py_ssize_t i = 0; i < self->told_counts && !r; i++)
		r = changes_watch(self->counts[i].what);
	for (Py_ssize_t i = 0; i < self->told_held && !r; i++)
		r = changes_watch(self->held[i].what);
	for (Py_ssize_t i = 0; i < self->n && !r; i++) {
		PyObject *where = self->tensors[i].where;

		self->untold |= where && !changes_told(where);
		r = where ? changes_watch(where) : 0;
	}
	return r;
}

static int take(struct watch *self, PyObject *from, const char *what,
		int (*each)(struct watch *, PyObject *))
{
	PyObject *fast = PySequence_Fast(from, what);
	int r = fast ? each(self, fast) : -1;

	Py_XDECREF(fast);
	return r;
}

static int take_usual(struct watch *self, PyObject *usual)
{
	struct usual *taken;

	if (usual_take(usual, &taken))
		return -1;
	self->usual = taken ? Py_NewRef(usual) : NULL;
	return 0;
}

static int watch_init(PyObject *object, PyObject *args, PyObject *kwargs)
{
	struct watch *self = (struct watch *)object;
	PyObject *places, *counts, *held, *usual, *local_of, *fast;
	int r;

	if (self->counts || (kwargs && PyDict_GET_SIZE(kwargs))) {
		PyErr_SetString(PyExc_TypeError,
				"Watch(places, counts, held, usual, local_of)");
		return -1;
	}
	if (!PyArg_ParseTuple(args, "OOOOO:Watch", &places, &counts, &held,
			      &usual, &local_of) ||
	    take_usual(self, usual) ||
	    take(self, counts, "counts", take_counts) ||
	    take(self, held, "held", take_held))
		return -1;
	fast = PySequence_Fast(places, "places");
	r = fast ? take_places(self, fast, local_of) : -1;
	Py_XDECREF(fast);
	return r ? r : take_dicts(self);
}

/* ---- its memory: watched dicts may lead back to it ---- */

static int watch_traverse(PyObject *object, visitproc visit, void *arg)
{
	struct watch *self = (struct watch *)object;
	int r = 0;

	Py_VISIT(self->usual);
	for (Py_ssize_t i = 0; i < self->n; i++) {
		Py_VISIT(self->tensors[i].where);
		Py_VISIT(self->tensors[i].tensor);
		Py_VISIT(self->tensors[i].local);
	}
	for (Py_ssize_t i = 0; i < self->n_counts; i++)
		Py_VISIT(self->counts[i].what);
	for (Py_ssize_t i = 0; i < self->n_held && !r; i++)
		r = contents_visit(&self->held[i], visit, arg);
	return r;
}

static int watch_clear(PyObject *object)
{
	struct watch *self = (struct watch *)object;
	struct watched *tensors = self->tensors;
	struct counted *counts = self->counts;
	struct contents *held = self->held;
	Py_ssize_t n = self->n, n_counts = self->n_counts;
	Py_ssize_t n_held = self->n_held;

	self->tensors = NULL;
	self->counts = NULL;
	self->held = NULL;
	self->n = self->n_counts = self->n_held = 0;
	for (Py_ssize_t i = 0; i < n; i++)
		look_drop(&tensors[i]);
	for (Py_ssize_t i = 0; i < n_counts; i++)
		Py_DECREF(counts[i].what);
	for (Py_ssize_t i = 0; i < n_held; i++)
		contents_drop(&held[i]);
	PyMem_Free(tensors);
	PyMem_Free(counts);
	PyMem_Free(held);
	Py_CLEAR(self->usual);
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
	.tp_doc = "Watch(places, counts, held, usual, local_of)\n--\n\n"
		  "Whether tensors are where and as they were. places: "
		  "(dict, key) each; counts: (sized, how many) each; held: "
		  "(dict or list, type) each, whose values of that type are "
		  "to stay, or (object, None), which is to keep its dict; "
		  "usual: a Usual, or None; local_of(tensor) what "
		  "has the data of another one, None: that cannot be told, "
		  "and nothing holds.",
	.tp_basicsize = sizeof(struct watch),
	.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
	.tp_new = PyType_GenericNew,
	.tp_init = watch_init,
	.tp_traverse = watch_traverse,
	.tp_clear = watch_clear,
	.tp_dealloc = watch_dealloc,
	.tp_methods = methods,
};
