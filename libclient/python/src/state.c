/* SPDX-License-Identifier: Apache-2.0 */
#include "core.h"

#include <errno.h>
#include <unistd.h>

#include "state/ahead.h"
#include "state/state.h"

/* A wait returns to the interpreter so often, for Ctrl-C. */
#define SLICE_MS 200u

bool state_usable(const struct state *s)
{
	if (!s->state)
		PyErr_SetString(PyExc_ValueError, "the state is closed");
	return s->state;
}

void describing_begin(struct state *s)
{
	if (s->client->pid == getpid())
		(void)pthread_mutex_lock(&s->describing);
}

void describing_end(struct state *s)
{
	if (s->client->pid == getpid())
		(void)pthread_mutex_unlock(&s->describing);
}

/* The arguments of State() but client, job, rank, world and flags. */
enum { RUN, SLOTS, FLUSH_EVERY, KEEP_LAST, KEEP_EVERY, KEEP_AGE, KEEP_BYTES };

static int parse_job(PyObject *args, PyObject *kwargs, PyObject **client,
		     struct sk_job *job)
{
	static char *names[] = { "client", "job", "rank", "world", "run",
				 "slots", "flush_every", "flags", "keep_last",
				 "keep_every", "keep_age", "keep_bytes", NULL };
	struct natural n[] = {
		[RUN] = { "run", UINT64_MAX, 0 },
		[SLOTS] = { "slots", UINT32_MAX, 0 },
		[FLUSH_EVERY] = { "flush_every", UINT32_MAX, 0 },
		[KEEP_LAST] = { "keep_last", UINT32_MAX, 0 },
		[KEEP_EVERY] = { "keep_every", UINT32_MAX, 0 },
		[KEEP_AGE] = { "keep_age", UINT64_MAX, 0 },
		[KEEP_BYTES] = { "keep_bytes", UINT64_MAX, 0 },
	};

	if (!PyArg_ParseTupleAndKeywords(
		    args, kwargs, "O!sii|O&O&O&IO&O&O&O&:State", names,
		    &client_type, client, &job->name, &job->rank, &job->world,
		    take_natural, &n[RUN], take_natural, &n[SLOTS],
		    take_natural, &n[FLUSH_EVERY], &job->flags,
		    take_natural, &n[KEEP_LAST], take_natural, &n[KEEP_EVERY],
		    take_natural, &n[KEEP_AGE], take_natural, &n[KEEP_BYTES]))
		return -1;
	job->run = n[RUN].value;
	job->slots = (uint32_t)n[SLOTS].value;
	job->flush_every = (uint32_t)n[FLUSH_EVERY].value;
	job->keep_last = (uint32_t)n[KEEP_LAST].value;
	job->keep_every = (uint32_t)n[KEEP_EVERY].value;
	job->keep_age_s = n[KEEP_AGE].value;
	job->keep_bytes = n[KEEP_BYTES].value;
	return 0;
}

static int state_init(PyObject *self, PyObject *args, PyObject *kwargs)
{
	struct state *s = (struct state *)self;
	struct sk_job job = { 0 };
	PyObject *client;
	int r;

	if (parse_job(args, kwargs, &client, &job))
		return -1;
	if (s->client || !((struct client *)client)->sk) {
		PyErr_SetString(PyExc_ValueError, s->client ?
				"the state is made already" :
				"the client is closed");
		return -1;
	}
	s->describing = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
	s->rank = job.rank;
	s->world = job.world;
	s->blobs = PyDict_New();
	if (!s->blobs)
		return -1;
	r = sk_state_create(((struct client *)client)->sk, &job, &s->state);
	if (r < 0) {
		raise_error(r);
		return -1;
	}
	s->state->slice_ms = SLICE_MS;
	s->client = (struct client *)Py_NewRef(client);
	s->client->states++;
	return 0;
}

static void state_drop(struct state *s)
{
	struct sk_state *state = s->state;

	s->state = NULL;
	if (!state)
		return;
	if (s->client->pid == getpid()) {
		Py_BEGIN_ALLOW_THREADS
		sk_state_free(state);
		Py_END_ALLOW_THREADS
	}
	s->client->states--;
}

static int state_traverse(PyObject *self, visitproc visit, void *arg)
{
	struct state *s = (struct state *)self;

	Py_VISIT(s->client);
	Py_VISIT(s->described);
	Py_VISIT(s->copying);
	Py_VISIT(s->blobs);
	return 0;
}

/* What is copied from must outlive the state itself. */
static int state_clear_refs(PyObject *self)
{
	struct state *s = (struct state *)self;

	state_drop(s);
	Py_CLEAR(s->described);
	Py_CLEAR(s->copying);
	Py_CLEAR(s->blobs);
	Py_CLEAR(s->client);
	return 0;
}

static void state_dealloc(PyObject *self)
{
	PyObject_GC_UnTrack(self);
	(void)state_clear_refs(self);
	Py_TYPE(self)->tp_free(self);
}

static PyObject *state_close(PyObject *self, PyObject *args)
{
	struct state *s = (struct state *)self;

	(void)args;
	if (s->busy) {
		PyErr_SetString(PyExc_RuntimeError, "the state is in use by "
				"another thread");
		return NULL;
	}
	state_drop(s);
	Py_CLEAR(s->described);
	Py_CLEAR(s->copying);
	if (s->blobs)
		PyDict_Clear(s->blobs);
	Py_RETURN_NONE;
}

/* ---- describing ---- */

static PyObject *state_tensors(PyObject *self, PyObject *args)
{
	struct state *s = (struct state *)self;
	struct described d;
	PyObject *list, *keep = Py_None, *was = NULL;
	int r;

	if (!PyArg_ParseTuple(args, "O|O:tensors", &list, &keep) ||
	    !state_usable(s))
		return NULL;
	if (described_make(list, &d)) {
		described_free(&d);
		return NULL;
	}
	s->busy++;
	Py_BEGIN_ALLOW_THREADS
	describing_begin(s);
	r = sk_state_tensors(s->state, d.tensors, d.n);
	Py_END_ALLOW_THREADS
	if (r >= 0) {
		was = s->described;
		s->described = Py_NewRef(keep);
	}
	describing_end(s);
	s->busy--;
	described_free(&d);
	Py_XDECREF(was);
	return none_or_error(r);
}

/* The library's part of a blob, and the interpreter's. -1 raised; 0, or what
 * the library says. */
static int take_blob(struct state *s, const char *name, PyObject *view,
		     bool local)
{
	const Py_buffer *b = PyMemoryView_GET_BUFFER(view);
	PyObject *was = NULL;
	int r, held = 0;

	s->busy++;
	Py_BEGIN_ALLOW_THREADS
	describing_begin(s);
	r = (local ? sk_state_blob_local : sk_state_blob)(s->state, name,
							  b->buf,
							  (size_t)b->len);
	Py_END_ALLOW_THREADS
	if (r >= 0) {
		was = Py_XNewRef(PyDict_GetItemString(s->blobs, name));
		held = PyDict_SetItemString(s->blobs, name, view);
	}
	if (held) {
		Py_BEGIN_ALLOW_THREADS
		(void)sk_state_remove(s->state, name);
		Py_END_ALLOW_THREADS
	}
	describing_end(s);
	s->busy--;
	Py_XDECREF(was);
	return held ? -1 : r;
}

static PyObject *state_blob(PyObject *self, PyObject *args, PyObject *kwargs)
{
	static char *names[] = { "name", "buffer", "local", NULL };
	struct state *s = (struct state *)self;
	PyObject *buffer, *view;
	const char *name;
	int local = 0, r;
	Py_buffer *b;

	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "sO|p:blob", names,
					 &name, &buffer, &local) ||
	    !state_usable(s))
		return NULL;
	view = PyMemoryView_FromObject(buffer);
	if (!view)
		return NULL;
	b = PyMemoryView_GET_BUFFER(view);
	if (b->readonly || !PyBuffer_IsContiguous(b, 'C')) {
		PyErr_Format(PyExc_TypeError, "blob %s needs a contiguous "
			     "buffer that can be written to", name);
		Py_DECREF(view);
		return NULL;
	}
	r = take_blob(s, name, view, local);
	Py_DECREF(view);
	return PyErr_Occurred() ? NULL : none_or_error(r);
}

static PyObject *state_remove(PyObject *self, PyObject *args)
{
	struct state *s = (struct state *)self;
	PyObject *was = NULL;
	const char *name;
	int r, held = 0;

	if (!PyArg_ParseTuple(args, "s:remove", &name) || !state_usable(s))
		return NULL;
	s->busy++;
	Py_BEGIN_ALLOW_THREADS
	describing_begin(s);
	r = sk_state_remove(s->state, name);
	Py_END_ALLOW_THREADS
	if (r >= 0)
		was = Py_XNewRef(PyDict_GetItemString(s->blobs, name));
	if (was)
		held = PyDict_DelItemString(s->blobs, name);
	describing_end(s);
	s->busy--;
	Py_XDECREF(was);
	return held ? NULL : none_or_error(r);
}

/* Nothing copies any more once this returns: see sk_snapshot(). */
static PyObject *state_clear(PyObject *self, PyObject *args)
{
	PyObject *blobs = PyDict_New(), *described = NULL, *copying = NULL;
	struct state *s = (struct state *)self;
	int r;

	(void)args;
	if (!blobs || !state_usable(s)) {
		Py_XDECREF(blobs);
		return NULL;
	}
	s->busy++;
	Py_BEGIN_ALLOW_THREADS
	(void)sk_fence(s->state);
	describing_begin(s);
	r = sk_state_clear(s->state);
	Py_END_ALLOW_THREADS
	if (r >= 0) {
		PyObject *was = s->blobs;

		s->blobs = blobs;
		blobs = was;
		described = s->described;
		copying = s->copying;
		s->described = s->copying = NULL;
	}
	describing_end(s);
	s->busy--;
	Py_DECREF(blobs);
	Py_XDECREF(described);
	Py_XDECREF(copying);
	return none_or_error(r);
}

/* ---- snapshots ---- */

static PyObject *state_prepare(PyObject *self, PyObject *args)
{
	struct state *s = (struct state *)self;
	struct natural timeout = { "timeout_ms", UINT32_MAX, 60000 };
	int r;

	if (!PyArg_ParseTuple(args, "|O&:prepare", take_natural, &timeout) ||
	    !state_usable(s))
		return NULL;
	s->busy++;
	Py_BEGIN_ALLOW_THREADS
	r = sk_prepare(s->state, (uint32_t)timeout.value);
	Py_END_ALLOW_THREADS
	s->busy--;
	return none_or_error(r);
}

/* Until there is a slot, or a slice of the wait for one is over: -EINTR. */
static int snapshot_slice(struct state *s, int64_t step, PyObject *keep,
			  struct sk_snapshot_options *o)
{
	/* Blobs replaced while this one copies stay until it is done. */
	PyObject *blobs = PyDict_Copy(s->blobs);
	int r;

	if (!blobs)
		return -ENOMEM;
	s->busy++;
	Py_BEGIN_ALLOW_THREADS
	r = sk_snapshot(s->state, step, o);
	Py_END_ALLOW_THREADS
	s->busy--;
	if (r >= 0)
		Py_XSETREF(s->copying, Py_BuildValue("(OOO)", keep, blobs,
						     s->described ?
						     s->described : Py_None));
	Py_DECREF(blobs);
	o->wait_ms -= r == -EINTR ? SLICE_MS : 0;
	return r;
}

static PyObject *state_snapshot(PyObject *self, PyObject *args,
				PyObject *kwargs)
{
	static char *names[] = { "step", "flags", "wait_ms", "keep",
				"stream", NULL };
	struct state *s = (struct state *)self;
	struct natural wait = { "wait_ms", UINT32_MAX, 0 };
	struct sk_snapshot_options o = { 0 };
	PyObject *keep = Py_None;
	unsigned long long stream = 0;
	long long step;
	int r;

	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "L|IO&OK:snapshot",
					 names, &step, &o.flags, take_natural,
					 &wait, &keep, &stream) ||
	    !state_usable(s))
		return NULL;
	o.wait_ms = (uint32_t)wait.value;
	o.stream = stream;
	do {
		r = snapshot_slice(s, step, keep, &o);
	} while (r == -EINTR && !PyErr_CheckSignals() && state_usable(s));
	return PyErr_Occurred() ? NULL : none_or_error(r);
}

static PyObject *state_ask(PyObject *self, PyObject *args)
{
	struct state *s = (struct state *)self;
	struct natural wait = { "wait_ms", UINT32_MAX, 0 };
	struct sk_snapshot_options o = { 0 };
	long long step;

	if (!PyArg_ParseTuple(args, "LIO&:ask", &step, &o.flags, take_natural,
			      &wait) || !state_usable(s))
		return NULL;
	o.wait_ms = (uint32_t)wait.value;
	s->busy++;
	Py_BEGIN_ALLOW_THREADS
	sk_ahead_ask(s->state, step, &o);
	Py_END_ALLOW_THREADS
	s->busy--;
	Py_RETURN_NONE;
}

static PyObject *state_ask_no_more(PyObject *self, PyObject *args)
{
	struct state *s = (struct state *)self;

	(void)args;
	if (!state_usable(s))
		return NULL;
	s->busy++;
	Py_BEGIN_ALLOW_THREADS
	sk_ahead_end(s->state);
	Py_END_ALLOW_THREADS
	s->busy--;
	Py_RETURN_NONE;
}

/* What a snapshot holds is let go of as soon as it is copied: device memory
 * is dear. @was is what was held before the question; what another thread's
 * snapshot holds since is not touched. */
static void let_go(struct state *s, PyObject *was)
{
	struct sk_status st;

	if (was && s->state && s->copying == was &&
	    sk_status(s->state, &st) >= 0 && (st.copied_ns || st.result < 0))
		Py_CLEAR(s->copying);
	Py_XDECREF(was);
}

static PyObject *state_fence(PyObject *self, PyObject *args)
{
	struct state *s = (struct state *)self;
	PyObject *was = Py_XNewRef(s->copying);
	const char *name = NULL;
	int r;

	if (!PyArg_ParseTuple(args, "|z:fence", &name) || !state_usable(s)) {
		Py_XDECREF(was);
		return NULL;
	}
	s->busy++;
	Py_BEGIN_ALLOW_THREADS
	r = name ? sk_fence_tensor(s->state, name) : sk_fence(s->state);
	Py_END_ALLOW_THREADS
	s->busy--;
	let_go(s, was);
	return none_or_error(r);
}

static PyObject *state_fence_stream(PyObject *self, PyObject *args)
{
	struct state *s = (struct state *)self;
	PyObject *was = Py_XNewRef(s->copying);
	unsigned long long stream;
	int r;

	if (!PyArg_ParseTuple(args, "K:fence_stream", &stream) ||
	    !state_usable(s)) {
		Py_XDECREF(was);
		return NULL;
	}
	s->busy++;
	Py_BEGIN_ALLOW_THREADS
	r = sk_fence_stream(s->state, stream);
	Py_END_ALLOW_THREADS
	s->busy--;
	let_go(s, was);
	return none_or_error(r);
}

static PyObject *state_wait(PyObject *self, PyObject *args)
{
	struct state *s = (struct state *)self;
	struct natural timeout = { "timeout_ms", UINT32_MAX, 0 };
	uint32_t timeout_ms, slice;
	PyObject *was;
	long long step;
	int until, r;

	if (!PyArg_ParseTuple(args, "LiO&:wait", &step, &until, take_natural,
			      &timeout) ||
	    !state_usable(s))
		return NULL;
	timeout_ms = (uint32_t)timeout.value;
	was = Py_XNewRef(s->copying);
	do {
		slice = timeout_ms < SLICE_MS ? timeout_ms : SLICE_MS;
		timeout_ms -= slice;
		s->busy++;
		Py_BEGIN_ALLOW_THREADS
		r = sk_wait(s->state, step, until, slice);
		Py_END_ALLOW_THREADS
		s->busy--;
	} while (r == -ETIMEDOUT && !PyErr_CheckSignals() && timeout_ms &&
		 state_usable(s));
	let_go(s, was);
	return PyErr_Occurred() ? NULL : none_or_error(r);
}

static PyObject *state_flush(PyObject *self, PyObject *args)
{
	struct state *s = (struct state *)self;
	long long step;
	int r;

	if (!PyArg_ParseTuple(args, "L:flush", &step) || !state_usable(s))
		return NULL;
	s->busy++;
	Py_BEGIN_ALLOW_THREADS
	r = sk_flush(s->state, step);
	Py_END_ALLOW_THREADS
	s->busy--;
	return none_or_error(r);
}

static PyObject *state_keep(PyObject *self, PyObject *args)
{
	struct state *s = (struct state *)self;
	struct sk_kept kept;
	long long step, next;
	int r;

	if (!PyArg_ParseTuple(args, "LL:keep", &step, &next) ||
	    !state_usable(s))
		return NULL;
	s->busy++;
	Py_BEGIN_ALLOW_THREADS
	r = sk_keep(s->state, step, next, &kept);
	Py_END_ALLOW_THREADS
	s->busy--;
	if (r < 0)
		return raise_error(r);
	return Py_BuildValue("(Li)", (long long)kept.written, (int)kept.next);
}

static PyObject *state_status(PyObject *self, PyObject *args)
{
	struct state *s = (struct state *)self;
	struct sk_status st;
	int r;

	(void)args;
	if (!state_usable(s))
		return NULL;
	r = sk_status(s->state, &st);
	if (r < 0)
		return raise_error(r);
	return Py_BuildValue(
		"{s:K, s:L, s:K, s:K, s:K, s:K, s:i, s:I, s:K, s:K, s:K, "
		"s:K, s:K, s:K}",
		"run", (unsigned long long)st.run,
		"step", (long long)st.step,
		"bytes", (unsigned long long)st.bytes,
		"returned_ns", (unsigned long long)st.returned_ns,
		"copied_ns", (unsigned long long)st.copied_ns,
		"sealed_ns", (unsigned long long)st.sealed_ns,
		"result", st.result, "slots", st.slots,
		"slot_bytes", (unsigned long long)st.slot_bytes,
		"taken", (unsigned long long)st.taken,
		"failed", (unsigned long long)st.failed,
		"busy_ns", (unsigned long long)st.busy_ns,
		"locked_bytes", (unsigned long long)st.locked_bytes,
		"device_bytes", (unsigned long long)st.device_bytes);
}

#define WITH_WORDS(f) (PyCFunction)(void *)(f), METH_VARARGS | METH_KEYWORDS

static PyMethodDef state_methods[] = {
	{ "tensors", state_tensors, METH_VARARGS,
	  "tensors(descriptions, keep=None)\n--\n\nDescribes tensors, each by "
	  "(name, dtype, shape, mesh, placements, pointer, strides, "
	  "local_shape, parts); keep is what the pointers point into." },
	{ "describe", state_describe, METH_VARARGS, state_describe_doc },
	{ "blob", WITH_WORDS(state_blob),
	  "blob(name, buffer, local=False)\n--\n\nBytes that are the same on "
	  "every rank, or local to this one; written to by restore." },
	{ "remove", state_remove, METH_VARARGS,
	  "remove(name)\n--\n\nForgets one description." },
	{ "clear", state_clear, METH_NOARGS,
	  "clear()\n--\n\nFences, and forgets all descriptions." },
	{ "prepare", state_prepare, METH_VARARGS,
	  "prepare(timeout_ms=60000)\n--\n\nRegisters and waits for warm "
	  "slots." },
	{ "snapshot", WITH_WORDS(state_snapshot),
	  "snapshot(step, flags=0, wait_ms=0, keep=None, stream=0)\n--\n\n"
	  "Starts a snapshot; keep is held until its tensors may be let go. "
	  "stream is the CUDA stream that wrote them last." },
	{ "ask", state_ask, METH_VARARGS,
	  "ask(step, flags, wait_ms)\n--\n\n"
	  "Asks for the slot that snapshot() with the same words will need, "
	  "and does not wait for it. Follow it by that, or by "
	  "ask_no_more()." },
	{ "ask_no_more", state_ask_no_more, METH_NOARGS,
	  "ask_no_more()\n--\n\nGives back what was asked for." },
	{ "fence", state_fence, METH_VARARGS,
	  "fence(name=None)\n--\n\nWaits until all tensors, or one, may be "
	  "overwritten." },
	{ "fence_stream", state_fence_stream, METH_VARARGS,
	  "fence_stream(stream)\n--\n\nHas a CUDA stream wait for the copies "
	  "of tensors on devices; waits itself only for those of the host." },
	{ "wait", state_wait, METH_VARARGS,
	  "wait(step, until, timeout_ms)\n--\n\nWaits until the snapshot is "
	  "SEALED, COMPLETE or DURABLE." },
	{ "flush", state_flush, METH_VARARGS,
	  "flush(step)\n--\n\nHas the agent write it to disk now." },
	{ "keep", state_keep, METH_VARARGS,
	  "keep(step, next)\n--\n\nSays which steps stay on this agent's disk, "
	  "as sk_keep() has it; the newest that its ranks have written, -1: "
	  "none, and 1, 0 or -1: they have next, not yet, not at all." },
	{ "status", state_status, METH_NOARGS,
	  "status()\n--\n\nThe last snapshot's times, and this rank's slots, as a "
	  "dict." },
	{ "beyond", state_beyond, METH_VARARGS, state_beyond_doc },
	{ "announce", state_announce, METH_NOARGS, state_announce_doc },
	{ "restore", WITH_WORDS(state_restore), state_restore_doc },
	{ "begun", state_begun, METH_NOARGS, state_begun_doc },
	{ "make_room", state_make_room, METH_VARARGS, state_make_room_doc },
	{ "nodes_as", state_nodes_as, METH_O, state_nodes_as_doc },
	{ "close", state_close, METH_NOARGS,
	  "close()\n--\n\nWaits for the seal and lets go; images stay." },
	{ 0 },
};

PyTypeObject state_type = {
	PyVarObject_HEAD_INIT(NULL, 0)
	.tp_name = "shardkeep._core.State",
	.tp_doc = "State(client, job, rank, world, run=0, slots=0, "
		  "flush_every=0, flags=0, keep_last=0, keep_every=0, "
		  "keep_age=0, keep_bytes=0)\n--\n\nOne rank of one job.",
	.tp_basicsize = sizeof(struct state),
	.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
	.tp_new = PyType_GenericNew,
	.tp_init = state_init,
	.tp_dealloc = state_dealloc,
	.tp_traverse = state_traverse,
	.tp_clear = state_clear_refs,
	.tp_methods = state_methods,
};
