/* SPDX-License-Identifier: Apache-2.0 */
/* Links: the comm of sk_comm_meet(), for State.restore() and by itself. */
#include "links.h"

#include <errno.h>

#include "comm/links.h"
#include "conn/say.h"

struct links {
	PyObject_HEAD
	struct sk_comm comm;	/* ctx NULL: there are none */
	bool busy;		/* a call has let the interpreter go on */
};

static struct sk_links *links_of(const struct links *l)
{
	return l->comm.ctx;
}

/* ---- meeting ---- */

struct teller {
	PyObject *tell;
	PyObject *raised[3];	/* by it */
};

static int tell_python(void *ctx, const char *at)
{
	PyGILState_STATE gil = PyGILState_Ensure();
	struct teller *t = ctx;
	PyObject *done = PyObject_CallFunction(t->tell, "s", at);

	if (!done)
		PyErr_Fetch(&t->raised[0], &t->raised[1], &t->raised[2]);
	Py_XDECREF(done);
	PyGILState_Release(gil);
	return done ? 0 : -EIO;
}

/* -1 raised. */
static int meet(struct links *l, struct sk_meeting *m, PyObject *tell)
{
	struct teller t = { .tell = tell };
	int r;

	if (tell != Py_None) {
		m->tell = tell_python;
		m->tell_ctx = &t;
	}
	l->busy = true;
	Py_BEGIN_ALLOW_THREADS
	r = sk_comm_meet(NULL, m, &l->comm);
	Py_END_ALLOW_THREADS
	l->busy = false;
	if (r >= 0)
		return 0;
	if (t.raised[0])
		PyErr_Restore(t.raised[0], t.raised[1], t.raised[2]);
	else
		raise_error(r);
	return -1;
}

static int links_init(PyObject *self, PyObject *args, PyObject *kwargs)
{
	static char *names[] = { "at", "rank", "world", "secret", "timeout_ms",
				 "tell", "interfaces", NULL };
	struct natural timeout = { "timeout_ms", UINT32_MAX, 0 };
	struct links *l = (struct links *)self;
	struct sk_meeting m = { 0 };
	PyObject *tell = Py_None;

	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "sii|zO&Oz:Links",
					 names, &m.at, &m.rank, &m.world,
					 &m.secret, take_natural, &timeout,
					 &tell, &m.interfaces))
		return -1;
	if (l->comm.ctx || l->busy) {
		PyErr_SetString(PyExc_RuntimeError, "the ranks have met");
		return -1;
	}
	m.timeout_ms = (uint32_t)timeout.value;
	return meet(l, &m, tell);
}

static void links_dealloc(PyObject *self)
{
	struct links *l = (struct links *)self;

	if (l->comm.ctx)
		sk_comm_meet_free(&l->comm);
	Py_TYPE(self)->tp_free(self);
}

/* ---- using them ---- */

const struct sk_comm *links_take(PyObject *from, int32_t *ret_rank,
				 int32_t *ret_world)
{
	struct links *l = (struct links *)from;

	if (!PyObject_TypeCheck(from, &links_type)) {
		PyErr_Format(PyExc_TypeError, "comm is %R: Links are needed",
			     from);
		return NULL;
	}
	if (!l->comm.ctx || l->busy) {
		PyErr_SetString(PyExc_RuntimeError, l->busy ?
				"another call has the links" :
				"the ranks have not met");
		return NULL;
	}
	l->busy = true;
	*ret_rank = links_of(l)->rank;
	*ret_world = links_of(l)->world;
	return &l->comm;
}

void links_give(PyObject *from)
{
	((struct links *)from)->busy = false;
}

static struct sk_links *take(PyObject *self, int32_t *ret_world)
{
	int32_t rank;

	return links_take(self, &rank, ret_world) ?
		       links_of((struct links *)self) : NULL;
}

/* What the comm says by a number alone; @ret is given back where all is well,
 * else dropped. */
static PyObject *give(PyObject *self, int r, const char *what, PyObject *ret)
{
	const struct sk_links *l = links_of((struct links *)self);
	struct sk_err err = { "" };

	links_give(self);
	if (r >= 0)
		return ret;
	Py_DECREF(ret);
	return raise_error(sk_say(sk_err_errno(&err, r, "rank %d %s", l->rank,
					       what), &err));
}

static PyObject *links_allgather(PyObject *self, PyObject *args)
{
	struct natural timeout = { "timeout_ms", UINT32_MAX, 0 };
	const struct sk_comm *comm = &((struct links *)self)->comm;
	const char *mine;
	PyObject *all;
	Py_ssize_t n;
	int32_t world;
	int r;

	if (!PyArg_ParseTuple(args, "y#O&:allgather", &mine, &n, take_natural,
			      &timeout) ||
	    !take(self, &world))
		return NULL;
	if (n > PY_SSIZE_T_MAX / world) {
		links_give(self);
		return PyErr_NoMemory();
	}
	all = PyBytes_FromStringAndSize(NULL, n * world);
	if (!all) {
		links_give(self);
		return NULL;
	}
	Py_BEGIN_ALLOW_THREADS
	r = comm->allgather(comm->ctx, mine, (size_t)n, PyBytes_AS_STRING(all),
			    (uint32_t)timeout.value);
	Py_END_ALLOW_THREADS
	return give(self, r, "did not hear what all others have to say", all);
}

static PyObject *links_broadcast(PyObject *self, PyObject *args)
{
	struct natural timeout = { "timeout_ms", UINT32_MAX, 0 };
	struct sk_links *l;
	PyObject *ret;
	Py_buffer data;
	int32_t world;
	int root, r;

	if (!PyArg_ParseTuple(args, "iw*O&:broadcast", &root, &data,
			      take_natural, &timeout))
		return NULL;
	l = take(self, &world);
	if (l && (root < 0 || root >= world)) {
		links_give(self);
		PyErr_Format(PyExc_ValueError, "there is no rank %d of %d",
			     root, (int)world);
		l = NULL;
	}
	if (!l) {
		PyBuffer_Release(&data);
		return NULL;
	}
	Py_BEGIN_ALLOW_THREADS
	r = sk_links_broadcast(l, root, data.buf, (size_t)data.len,
			       (uint32_t)timeout.value);
	Py_END_ALLOW_THREADS
	PyBuffer_Release(&data);
	ret = Py_NewRef(Py_None);
	return give(self, r, "did not get what another has to tell", ret);
}

/* ---- exchange ---- */

struct parts {
	struct sk_comm_part *parts;
	Py_buffer *views;	/* that they lie in */
	size_t n;
};

static void parts_free(struct parts *p)
{
	for (size_t i = 0; i < p->n; i++)
		PyBuffer_Release(&p->views[i]);
	PyMem_Free(p->views);
	PyMem_Free(p->parts);
}

/* Of a sequence of (rank, buffer). -1 raised; to be freed in either case. */
static int parts_take(PyObject *from, bool write, struct parts *ret)
{
	PyObject *fast = PySequence_Fast(from, "parts are a sequence");
	Py_ssize_t n = fast ? PySequence_Fast_GET_SIZE(fast) : -1;
	int r = n < 0 ? -1 : 0;

	ret->parts = PyMem_Calloc((size_t)n + 1, sizeof(*ret->parts));
	ret->views = PyMem_Calloc((size_t)n + 1, sizeof(*ret->views));
	if (!r && (!ret->parts || !ret->views)) {
		PyErr_NoMemory();
		r = -1;
	}
	for (Py_ssize_t i = 0; i < n && !r; i++) {
		PyObject *one = PySequence_Fast_GET_ITEM(fast, i);
		Py_buffer *view = &ret->views[i];
		int rank;

		if (!is_tuple(one, "a part") ||
		    !PyArg_ParseTuple(one, write ? "iw*" : "iy*", &rank,
				      view)) {
			r = -1;
			continue;
		}
		ret->parts[ret->n++] = (struct sk_comm_part){
			.rank = rank, .data = view->buf,
			.bytes = (uint64_t)view->len };
	}
	Py_XDECREF(fast);
	return r;
}

static PyObject *links_exchange(PyObject *self, PyObject *args)
{
	struct natural timeout = { "timeout_ms", UINT32_MAX, 0 };
	const struct sk_comm *comm = &((struct links *)self)->comm;
	struct parts sends = { 0 }, receives = { 0 };
	PyObject *to, *from, *ret = NULL;
	int32_t world;
	int r;

	if (!PyArg_ParseTuple(args, "OOO&:exchange", &to, &from, take_natural,
			      &timeout))
		return NULL;
	if (!parts_take(to, false, &sends) &&
	    !parts_take(from, true, &receives) && take(self, &world)) {
		Py_BEGIN_ALLOW_THREADS
		r = comm->exchange(comm->ctx, sends.parts, sends.n,
				   receives.parts, receives.n,
				   (uint32_t)timeout.value);
		Py_END_ALLOW_THREADS
		ret = give(self, r, "could not exchange bytes",
			   Py_NewRef(Py_None));
	}
	parts_free(&sends);
	parts_free(&receives);
	return ret;
}

/* ---- their end ---- */

static PyObject *links_abort(PyObject *self, PyObject *args)
{
	struct links *l = (struct links *)self;

	(void)args;
	if (l->comm.ctx)
		sk_links_abort(links_of(l));
	Py_RETURN_NONE;
}

static PyObject *links_broken(PyObject *self, void *closure)
{
	const struct links *l = (struct links *)self;

	(void)closure;
	return PyBool_FromLong(!l->comm.ctx || sk_links_failed(links_of(l)));
}

static PyMethodDef links_methods[] = {
	{ "allgather", links_allgather, METH_VARARGS,
	  "allgather(mine, timeout_ms)\n--\n\nWhat all ranks give, as many "
	  "bytes each, joined in rank order." },
	{ "broadcast", links_broadcast, METH_VARARGS,
	  "broadcast(root, data, timeout_ms)\n--\n\nWhat the root has in data, "
	  "into everybody's." },
	{ "exchange", links_exchange, METH_VARARGS,
	  "exchange(sends, receives, timeout_ms)\n--\n\nSends and receives "
	  "all of them: lists of (rank, buffer), one of a rank at most." },
	{ "abort", links_abort, METH_NOARGS,
	  "abort()\n--\n\nEnds them: what other ranks wait for fails as well. "
	  "From any thread." },
	{ 0 },
};

static PyGetSetDef links_values[] = {
	{ "broken", links_broken, NULL, "Whether a call has failed, after "
	  "which all do.", NULL },
	{ 0 },
};

PyTypeObject links_type = {
	PyVarObject_HEAD_INIT(NULL, 0)
	.tp_name = "shardkeep._core.Links",
	.tp_doc = "Links(at, rank, world, secret=None, timeout_ms=0, "
		  "tell=None, interfaces=None)\n--\n\nConnections between all "
		  "ranks, which meet at rank 0: sk_comm_meet(). tell(at) is "
		  "called by rank 0, with the at for the others.",
	.tp_basicsize = sizeof(struct links),
	.tp_flags = Py_TPFLAGS_DEFAULT,
	.tp_new = PyType_GenericNew,
	.tp_init = links_init,
	.tp_dealloc = links_dealloc,
	.tp_methods = links_methods,
	.tp_getset = links_values,
};
