/* SPDX-License-Identifier: Apache-2.0 */
/* State.restore(), and a comm that Python gives. */
#include "links.h"

#include <errno.h>
#include <string.h>

#include "restore/room.h"

const char state_restore_doc[] =
	"restore(step=LATEST, flags=0, timeout_ms=0, names=None, run=0, "
	"allgather=None, world=1, exchange=None, abort=None, device=None, "
	"comm=None, room=True)"
	"\n--\n\n"
	"Brings the described tensors and blobs back; every rank must call "
	"it. Returns a dict with the report. allgather(bytes, timeout_ms) "
	"returns what all ranks gave, joined in rank order; None: the "
	"agent's, for jobs whose ranks are all on this node. "
	"exchange(sends, receives, timeout_ms) moves bytes between nodes: "
	"lists of (rank, memoryview), which are valid until it returns; "
	"abort() is called once one of them has failed. comm: Links, in place "
	"of those four; ranks may differ in that. What goes to "
	"tensors on CUDA device number device then goes by NCCL. room=False "
	"leaves it to make_room() to ask for the memory of snapshots.";

const char state_make_room_doc[] =
	"make_room(begun, newest)\n--\n\n"
	"Asks for the memory of snapshots, as restore() does at its end. What "
	"fails is told by the snapshot that misses it. begun: what begun() of "
	"this state gave, or of the one before it; newest: what is newer was "
	"found incomplete, with what all ranks' agents have.";

const char state_begun_doc[] =
	"begun()\n--\n\n"
	"Run, its id and step of what was restored last; of run 0, nothing.";

PyObject *state_begun(PyObject *self, PyObject *args)
{
	struct state *s = (struct state *)self;
	struct sk_begun begun;

	(void)args;
	if (!state_usable(s))
		return NULL;
	s->busy++;
	Py_BEGIN_ALLOW_THREADS
	begun = sk_restore_begun(s->state);
	Py_END_ALLOW_THREADS
	s->busy--;
	return Py_BuildValue("(KKL)", (unsigned long long)begun.run,
			     (unsigned long long)begun.run_id,
			     (long long)begun.step);
}

PyObject *state_make_room(PyObject *self, PyObject *args)
{
	struct state *s = (struct state *)self;
	unsigned long long run, run_id;
	struct sk_begun begun;
	long long step;
	int newest;

	if (!PyArg_ParseTuple(args, "(KKL)p:make_room", &run, &run_id, &step,
			      &newest) || !state_usable(s))
		return NULL;
	begun = (struct sk_begun){ .run = run, .run_id = run_id, .step = step,
				   .newest = newest };
	s->busy++;
	Py_BEGIN_ALLOW_THREADS
	sk_restore_begin_with(s->state, &begun);
	sk_restore_room(s->state);
	Py_END_ALLOW_THREADS
	s->busy--;
	Py_RETURN_NONE;
}

const char state_nodes_as_doc[] =
	"nodes_as(other)\n--\n\n"
	"This state's ranks share nodes as the last restore of that one, of "
	"the same ranks, has found: where each node keeps replicas once.";

PyObject *state_nodes_as(PyObject *self, PyObject *other)
{
	struct state *s = (struct state *)self, *from;

	if (!PyObject_TypeCheck(other, &state_type)) {
		PyErr_SetString(PyExc_TypeError, "nodes_as() takes a State");
		return NULL;
	}
	from = (struct state *)other;
	if (!state_usable(s) || !state_usable(from))
		return NULL;
	sk_restore_nodes_as(s->state, from->state);
	Py_RETURN_NONE;
}

/* Of an exchange, which is calls of Python and of the process group: of 1 MiB
 * each, a restore by gloo takes a third longer. */
#define ROUND_BYTES ((uint64_t)4 << 20)

struct comm {
	struct sk_comm comm;	/* of Python's functions */
	const struct sk_comm *links;	/* in their place, or NULL */
	PyObject *allgather, *exchange, *abort;
	size_t world;
	struct sk_comm nccl;	/* over comm, where there is a device */
	PyObject *raised[3];	/* by one of them, the first time */
};

/* What failed first is what is raised. */
static int keep_raised(struct comm *c)
{
	if (c->raised[0])
		PyErr_Clear();
	else
		PyErr_Fetch(&c->raised[0], &c->raised[1], &c->raised[2]);
	return -EIO;
}

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
	Py_XDECREF(all);
	return keep_raised(c);
}

static int gather_from_python(void *ctx, const void *in, size_t bytes,
			      void *out, uint32_t timeout_ms)
{
	PyGILState_STATE gil = PyGILState_Ensure();
	int r = gather(ctx, in, bytes, out, timeout_ms);

	PyGILState_Release(gil);
	return r;
}

static PyObject *parts_list(const struct sk_comm_part *parts, size_t n)
{
	PyObject *list = PyList_New((Py_ssize_t)n);

	for (size_t i = 0; list && i < n; i++) {
		PyObject *one = Py_BuildValue(
			"(iN)", (int)parts[i].rank,
			PyMemoryView_FromMemory(parts[i].data,
						(Py_ssize_t)parts[i].bytes,
						PyBUF_WRITE));

		if (one)
			PyList_SET_ITEM(list, (Py_ssize_t)i, one);
		else
			Py_CLEAR(list);
	}
	return list;
}

static int exchange_from_python(void *ctx, const struct sk_comm_part *sends,
				size_t n_sends,
				const struct sk_comm_part *receives,
				size_t n_receives, uint32_t timeout_ms)
{
	PyGILState_STATE gil = PyGILState_Ensure();
	PyObject *from = parts_list(sends, n_sends), *done = NULL;
	PyObject *to = from ? parts_list(receives, n_receives) : NULL;
	struct comm *c = ctx;
	int r;

	if (to)
		done = PyObject_CallFunction(c->exchange, "OOI", from, to,
					     timeout_ms);
	r = done ? 0 : keep_raised(c);
	Py_XDECREF(done);
	Py_XDECREF(from);
	Py_XDECREF(to);
	PyGILState_Release(gil);
	return r;
}

static void abort_from_python(void *ctx)
{
	PyGILState_STATE gil = PyGILState_Ensure();
	struct comm *c = ctx;
	PyObject *done = PyObject_CallNoArgs(c->abort);

	if (!done)
		(void)keep_raised(c);
	Py_XDECREF(done);
	PyGILState_Release(gil);
}

static PyObject *report_dict(const struct sk_report *r)
{
	return Py_BuildValue(
		"{s:K, s:L, s:i, s:I, s:I, s:I, s:I, s:K, s:K, s:K, s:K, "
		"s:K, s:K, s:K, s:K, s:K, s:K, s:K, s:K, s:K, s:K}",
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
		"total_ns", (unsigned long long)r->total_ns,
		"bytes_sent", (unsigned long long)r->bytes_sent,
		"bytes_passed", (unsigned long long)r->bytes_passed,
		"bytes_received", (unsigned long long)r->bytes_received,
		"bytes_device", (unsigned long long)r->bytes_device,
		"bytes_device_slot",
		(unsigned long long)r->bytes_device_slot,
		"staging_bytes", (unsigned long long)r->staging_bytes);
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

/* The comm that Python gives, or NULL where it gives none. */
static const struct sk_comm *comm_of(struct comm *c)
{
	if (c->nccl.allgather)
		return &c->nccl;
	if (c->links)
		return c->links;
	return c->allgather ? &c->comm : NULL;
}

static PyObject *run(struct state *s, long long step, struct comm *comm,
		     const struct sk_restore_options *o, bool room)
{
	struct sk_report report;
	int r;

	s->busy++;
	Py_BEGIN_ALLOW_THREADS
	r = (room ? sk_restore : sk_restore_first)(s->state, step,
						   comm_of(comm), o, &report);
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

/* What ranks give has to fit what there is room for. -1 raised. */
static int check_world(const struct state *s, const struct comm *c)
{
	if (c->world == (size_t)s->world)
		return 0;
	PyErr_Format(PyExc_ValueError, "the comm is of %zu ranks, and the "
		     "state is of %d", c->world, (int)s->world);
	return -1;
}

/* -1 raised. */
static int take_links(const struct state *s, struct comm *c, PyObject *links)
{
	int32_t rank, world;

	if (links == Py_None)
		return c->allgather ? check_world(s, c) : 0;
	c->links = links_take(links, &rank, &world);
	if (!c->links)
		return -1;
	c->world = (size_t)world;
	if (rank == s->rank && !check_world(s, c))
		return 0;
	links_give(links);
	if (!PyErr_Occurred())
		PyErr_Format(PyExc_ValueError, "the links are rank %d's, and "
			     "the state is rank %d's", (int)rank,
			     (int)s->rank);
	return -1;
}

/* -1 raised. */
static int make_comm(struct state *s, struct comm *c, PyObject *device)
{
	long ordinal = device == Py_None ? -1 : PyLong_AsLong(device);
	const struct sk_comm *base;
	int r;

	if (PyErr_Occurred())
		return -1;
	c->comm = (struct sk_comm){ .ctx = c,
				    .allgather = gather_from_python,
				    .world = (int32_t)c->world,
				    .rank = s->rank };
	if (c->allgather && c->exchange != Py_None) {
		c->comm.exchange = exchange_from_python;
		c->comm.round_bytes = ROUND_BYTES;
		c->comm.abort = c->abort == Py_None ? NULL : abort_from_python;
	}
	base = comm_of(c);
	if (ordinal < 0 || !base || !base->exchange)
		return 0;
	r = sk_comm_nccl(s->client->sk, base, s->rank, (int32_t)c->world,
			 (int32_t)ordinal, &c->nccl);
	if (r < 0)
		raise_error(r);
	return r < 0 ? -1 : 0;
}

/* The report, with why NCCL was done without. */
static PyObject *end_comm(struct comm *c, PyObject *report)
{
	PyObject *why;

	if (!c->nccl.allgather)
		return report;
	why = report ? PyUnicode_FromString(sk_comm_nccl_why(&c->nccl)) : NULL;
	if (report && (!why || PyDict_SetItemString(report, "without_nccl",
						    why)))
		Py_CLEAR(report);
	Py_XDECREF(why);
	sk_comm_nccl_free(&c->nccl);
	return report;
}

PyObject *state_restore(PyObject *self, PyObject *args, PyObject *kwargs)
{
	static char *words[] = { "step", "flags", "timeout_ms", "names",
				 "run", "allgather", "world", "exchange",
				 "abort", "device", "comm", "room", NULL };
	PyObject *names = Py_None, *fast = NULL, *ret = NULL;
	PyObject *gatherer = Py_None, *exchange = Py_None, *abort = Py_None;
	PyObject *device = Py_None, *links = Py_None;
	struct state *s = (struct state *)self;
	struct sk_restore_options o = { 0 };
	long long step = SK_LATEST;
	struct natural of_run = { "run", UINT64_MAX, 0 };
	struct natural timeout = { "timeout_ms", UINT32_MAX, 0 };
	struct comm comm = { .world = 1 };
	Py_ssize_t world = 1;
	int room = true;

	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|LIO&OO&OnOOOOp:restore",
					 words, &step, &o.flags, take_natural,
					 &timeout, &names, take_natural,
					 &of_run, &gatherer, &world, &exchange,
					 &abort, &device, &links, &room) ||
	    !state_usable(s))
		return NULL;
	o.run = of_run.value;
	o.timeout_ms = (uint32_t)timeout.value;
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
		comm.allgather = gatherer;
		comm.exchange = exchange;
		comm.abort = abort;
		comm.world = (size_t)world;
	}
	if (!take_links(s, &comm, links)) {
		if (!make_comm(s, &comm, device))
			ret = run(s, step, &comm, &o, room);
		ret = end_comm(&comm, ret);
		if (comm.links)
			links_give(links);
	}
	free((void *)o.names);
	Py_XDECREF(fast);
	return ret;
}
