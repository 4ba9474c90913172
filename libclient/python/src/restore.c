/* SPDX-License-Identifier: Apache-2.0 */
/* State.restore(), and a comm that Python gives. */
#include "core.h"

#include <errno.h>
#include <string.h>

const char state_restore_doc[] =
	"restore(step=LATEST, flags=0, timeout_ms=0, names=None, run=0, "
	"allgather=None, world=1)\n--\n\n"
	"Brings the described tensors and blobs back; every rank must call "
	"it. Returns a dict with the report. allgather(bytes, timeout_ms) "
	"returns what all ranks gave, joined in rank order; None: the "
	"agent's, for jobs whose ranks are all on this node.";

struct comm {
	struct sk_comm comm;
	PyObject *allgather;
	size_t world;
	PyObject *raised[3];	/* by allgather */
};

static int gather(struct comm *c, const void *in, size_t bytes, void *out,
		  uint32_t timeout_ms)
{
	PyObject *all = PyObject_CallFunction(c->allgather, "y#I", in,
					      (Py_ssize_t)bytes, timeout_ms);
	Py_ssize_t n = 0;
	char *data;

	if (!all || PyBytes_AsStringAndSize(all, &data, &n) < 0)
		goto fail;
	if ((size_t)n != bytes * c->world) {
		PyErr_Format(PyExc_ValueError, "allgather returned %zd bytes; "
			     "%zu ranks gave %zu each", n, c->world, bytes);
		goto fail;
	}
	memcpy(out, data, (size_t)n);
	Py_DECREF(all);
	return 0;
fail:
	PyErr_Fetch(&c->raised[0], &c->raised[1], &c->raised[2]);
	Py_XDECREF(all);
	return -EIO;
}

static int gather_from_python(void *ctx, const void *in, size_t bytes,
			      void *out, uint32_t timeout_ms)
{
	PyGILState_STATE gil = PyGILState_Ensure();
	int r = gather(ctx, in, bytes, out, timeout_ms);

	PyGILState_Release(gil);
	return r;
}

static PyObject *report_dict(const struct sk_report *r)
{
	return Py_BuildValue(
		"{s:K, s:L, s:i, s:I, s:I, s:I, s:I, s:K, s:K, s:K, s:K, "
		"s:K, s:K, s:K, s:K}",
		"run", (unsigned long long)r->run,
		"step", (long long)r->step, "world", r->world,
		"tensors", r->tensors, "missing", r->missing,
		"extra", r->extra, "damaged", r->damaged,
		"bytes_memory", (unsigned long long)r->bytes_memory,
		"bytes_remote", (unsigned long long)r->bytes_remote,
		"bytes_disk", (unsigned long long)r->bytes_disk,
		"bytes_verified", (unsigned long long)r->bytes_verified,
		"agree_ns", (unsigned long long)r->agree_ns,
		"plan_ns", (unsigned long long)r->plan_ns,
		"copy_ns", (unsigned long long)r->copy_ns,
		"total_ns", (unsigned long long)r->total_ns);
}

/* Borrowed from @fast. */
static const char **take_names(PyObject *fast, size_t n)
{
	const char **names = calloc(n + 1, sizeof(*names));

	if (!names)
		return (const char **)PyErr_NoMemory();
	for (size_t i = 0; i < n; i++) {
		names[i] = PyUnicode_AsUTF8(
			PySequence_Fast_GET_ITEM(fast, (Py_ssize_t)i));
		if (!names[i]) {
			free(names);
			return NULL;
		}
	}
	return names;
}

static PyObject *run(struct state *s, long long step, struct comm *comm,
		     const struct sk_restore_options *o)
{
	struct sk_report report;
	int r;

	s->busy++;
	Py_BEGIN_ALLOW_THREADS
	r = sk_restore(s->state, step, comm->allgather ? &comm->comm : NULL, o,
		       &report);
	Py_END_ALLOW_THREADS
	s->busy--;
	if (r >= 0)
		return report_dict(&report);
	if (comm->raised[0]) {
		PyErr_Restore(comm->raised[0], comm->raised[1],
			      comm->raised[2]);
		return NULL;
	}
	return raise_error(r);
}

PyObject *state_restore(PyObject *self, PyObject *args, PyObject *kwargs)
{
	static char *words[] = { "step", "flags", "timeout_ms", "names",
				 "run", "allgather", "world", NULL };
	PyObject *names = Py_None, *gatherer = Py_None, *fast = NULL, *ret;
	struct state *s = (struct state *)self;
	struct sk_restore_options o = { 0 };
	long long step = SK_LATEST;
	unsigned long long run_id = 0;
	struct comm comm = { .comm.allgather = gather_from_python };
	Py_ssize_t world = 1;

	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|LIIOKOn:restore",
					 words, &step, &o.flags,
					 &o.timeout_ms, &names, &run_id,
					 &gatherer, &world) ||
	    !state_usable(s))
		return NULL;
	o.run = run_id;
	if (names != Py_None) {
		fast = PySequence_Fast(names, "the names to restore");
		o.n_names = fast ? (size_t)PySequence_Fast_GET_SIZE(fast) : 0;
		o.names = fast ? take_names(fast, o.n_names) : NULL;
		if (!o.names) {
			Py_XDECREF(fast);
			return NULL;
		}
	}
	if (gatherer != Py_None) {
		comm.comm.ctx = &comm;
		comm.allgather = gatherer;
		comm.world = (size_t)world;
	}
	ret = run(s, step, &comm, &o);
	free((void *)o.names);
	Py_XDECREF(fast);
	return ret;
}
