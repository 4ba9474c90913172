/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shardkeep._core: the C library as Python types, no more.
 *
 *   module.c    the module, its constants and its exception
 *   client.c    Client: the connection to the agent; Mesh
 *   state.c     State: one rank of one job
 *   describe.c  Python tuples into struct sk_tensor
 *   usual*.c    Usual: what most tensors are, read without an object made
 *   insides.c   where the framework keeps what it tells
 *   items.c     State.describe(): tensors by name, the usual and the others
 *   beyond.c    State.beyond() and announce(), before a restore
 *   restore.c   State.restore() and the Python comm
 *   links.c     Links: a comm of sockets between all ranks
 *   watch.c     Watch: whether tensors are as they were
 *   look.c      whether one is; by dlpack.h
 *   changes.c   whether any of many dicts changed
 *   contents.c  whether a dict or a list has the same in it
 *
 * Every call into the library lets the interpreter go on. Objects may be used
 * from several threads as shardkeep.h says; close() is refused while another
 * call is under way. What was opened before a fork is left alone in the child.
 */
#ifndef SK_PYTHON_CORE_H
#define SK_PYTHON_CORE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <pthread.h>
#include <stdbool.h>
#include <sys/types.h>

#include "shardkeep.h"

struct client {
	PyObject_HEAD
	struct sk *sk;		/* NULL: closed */
	pid_t pid;
	unsigned states, busy;
};

struct mesh {
	PyObject_HEAD
	struct sk_mesh *mesh;
};

struct state {
	PyObject_HEAD
	struct client *client;
	struct sk_state *state;	/* NULL: closed */
	int32_t rank, world;
	PyObject *described;	/* keeps what the description points into */
	PyObject *copying;	/* keeps what the last snapshot reads */
	PyObject *blobs;	/* dict: name -> the memoryview it lies in */
	unsigned busy;
	/* Whoever describes: what the library was told last is what is held.
	 * Waited for without the interpreter; objects are let go of after
	 * it. */
	pthread_mutex_t describing;
};

extern PyTypeObject client_type, mesh_type, state_type, usual_type,
	watch_type;

/** Before the library is told of a description, and when what it points into
 * is held. The first one without the interpreter. A forked child, who is
 * refused, does not wait for a thread that it does not have. */
void describing_begin(struct state *s);
void describing_end(struct state *s);

/** Raises shardkeep.Error(-r, sentence); NULL. */
PyObject *raise_error(int r);
/** None, or raises for @r < 0. */
PyObject *none_or_error(int r);

/** A whole number that an argument may be; @value is what it is without. */
struct natural {
	const char *name;
	unsigned long long most;
	unsigned long long value;
};
/** For PyArg_Parse's "O&": its own "I" and "K" take -1 and 1 << 32 for
 * something else. @to: the struct natural. 0: raised. */
int take_natural(PyObject *from, void *to);
/** An int64 per element of the sequence @from; how many, or -1 raised. */
int take_numbers(PyObject *from, const char *what, int64_t *ret);
/** For PyArg_ParseTuple(), which takes anything else for a mistake of the
 * interpreter's; @what it is: "a part". Raised where it is none. */
bool is_tuple(PyObject *from, const char *what);
/** The struct sk_mesh of a Mesh or None; -1 raised. */
int take_mesh(PyObject *from, struct sk_mesh **ret);

/** Tensors as one array that points into the Python objects. */
struct described {
	struct sk_tensor *tensors;
	int64_t (*local_shapes)[SK_MAX_DIMS];
	size_t n;
};
/** Of a list of tuples. -1 raised. To be freed by described_free() in either
 * case. */
int described_make(PyObject *list, struct described *ret);
/** Of @n that say nothing yet; the same. */
int described_room(struct described *ret, Py_ssize_t n);
/** One of them by a tuple, which it points into; its local shape goes to
 * @local. -1 raised. */
int described_take(PyObject *from, struct sk_tensor *ret, int64_t *local);
void described_free(struct described *d);

/** State.describe(). */
PyObject *state_describe(PyObject *self, PyObject *args);
extern const char state_describe_doc[];

/** State.restore(), begun(), make_room() and nodes_as(). */
PyObject *state_restore(PyObject *self, PyObject *args, PyObject *kwargs);
PyObject *state_begun(PyObject *self, PyObject *args);
PyObject *state_make_room(PyObject *self, PyObject *args);
PyObject *state_nodes_as(PyObject *self, PyObject *other);
extern const char state_restore_doc[], state_begun_doc[],
		  state_make_room_doc[], state_nodes_as_doc[];

/** State.beyond() and State.announce(). */
PyObject *state_beyond(PyObject *self, PyObject *args);
PyObject *state_announce(PyObject *self, PyObject *args);
extern const char state_beyond_doc[], state_announce_doc[];
/** Client.instance(). */
PyObject *client_instance(PyObject *self, PyObject *args);
extern const char client_instance_doc[];

/** Whether the state is open and of this process; else raises. */
bool state_usable(const struct state *s);

#endif
