/* SPDX-License-Identifier: Apache-2.0 */
/* Ways into the simulated driver: functions by name and version, counts. */
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "vcuda.h"

struct vcu *vcu(void)
{
	static struct vcu state = { .lock = PTHREAD_MUTEX_INITIALIZER,
				    .changed = PTHREAD_COND_INITIALIZER };

	return &state;
}

void vcu_lock(void)
{
	(void)pthread_mutex_lock(&vcu()->lock);
}

void vcu_unlock(void)
{
	(void)pthread_mutex_unlock(&vcu()->lock);
}

const char *vcu_getenv(const char *variable)
{
	static const char *const kept[] = { "VCUDA_DEVICES", "VCUDA_MIG",
					    "VCUDA_SCHED", "VCUDA_SEED" };
	const char *hardware = getenv("VCUDA_AS_HARDWARE");
	bool asked = !hardware || !*hardware;

	for (size_t i = 0; i < sizeof(kept) / sizeof(kept[0]); i++)
		asked |= !strcmp(variable, kept[i]);
	return asked ? getenv(variable) : NULL;
}

bool vcu_said(const char *variable, const char *value)
{
	const char *said = vcu_getenv(variable);

	return said && !strcmp(said, value);
}

bool vcu_mode(const char *mode)
{
	return vcu_said("VCUDA_MODE", mode);
}

long vcu_setting(const char *name, long otherwise)
{
	const char *said = vcu_getenv(name);

	return said && *said ? strtol(said, NULL, 0) : otherwise;
}

void vcu_misuse(const char *fmt, ...)
{
	const char *path = getenv("VCUDA_MISUSE");
	FILE *file = path && *path ? fopen(path, "ae") : NULL;
	char text[512];
	va_list ap;

	va_start(ap, fmt);
	(void)vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	fprintf(stderr, "vcuda: MISUSE: %s\n", text);
	/* Whoever began this process may take its end for any other. */
	if (file)
		fprintf(file, "vcuda: %s\n", text);
	if (file)
		(void)fclose(file);
	abort();
}

/* ---- functions ---- */

struct entry {
	const char *name;
	int version;
	void *function;
};

#define ENTRY(function, exported, version, need, params)		\
	{ #function, version, (void *)exported },

static const struct entry entries[] = {
	SK_CUDA_TABLE(ENTRY)
	VCUDA_MORE(ENTRY)
	/* Functions that have changed, as they were. */
	{ "cuMemcpyBatchAsync", 12080, (void *)cuMemcpyBatchAsync },
	{ "cuDeviceGetUuid", 9020, (void *)cuDeviceGetUuid },
};

/* Asked for by a version whose function is another one. */
static sk_cu_result other_function(void)
{
	vcu_misuse("a function was asked for by the version of another "
		   "signature, and called");
}

/* Later versions that take other parameters. */
static bool is_other(const char *name, int version)
{
	static const struct {
		const char *name;
		int version;
	} others[] = {
		{ "cuCtxSynchronize", 13000 },
		{ "cuCtxGetDevice", 13000 },
		{ "cuStreamGetCtx", 12050 },
	};

	for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
		if (!strcmp(name, others[i].name))
			return version >= others[i].version;
	return false;
}

static void *find(const char *name, int version)
{
	const char *missing = vcu_getenv("VCUDA_MISSING");
	const struct entry *best = NULL;

	if (missing && !strcmp(name, missing))
		return NULL;
	if (is_other(name, version))
		return (void *)other_function;
	for (size_t i = 0; i < sizeof(entries) / sizeof(entries[0]); i++)
		if (!strcmp(name, entries[i].name) &&
		    version >= entries[i].version &&
		    (!best || best->version < entries[i].version))
			best = &entries[i];
	return best ? best->function : NULL;
}

VCU_API sk_cu_result cuGetProcAddress_v2(const char *name, void **function,
					 int version, uint64_t flags,
					 sk_cu_enum *found);
VCU_API sk_cu_result cuGetProcAddress_v2(const char *name, void **function,
					 int version, uint64_t flags,
					 sk_cu_enum *found)
{
	if (vcu_mode("stub"))
		return SK_CU_STUB_LIBRARY;
	/* It cannot know what came after it. */
	if (!name || !function || flags ||
	    version > vcu_setting("VCUDA_VERSION", 13000))
		return SK_CU_INVALID_VALUE;
	*function = find(name, version);
	if (found)
		*found = !*function;	/* 1: there is no such symbol */
	return *function || found ? SK_CU_SUCCESS : SK_CU_NOT_FOUND;
}

/* ---- for tests ---- */

static int number_of(const char *name)
{
	for (int i = 0; i < VCU_FUNCTIONS; i++)
		if (!strcmp(name, entries[i].name))
			return i;
	vcu_misuse("no function %s", name);
}

/* Calls of that name since the process began. */
VCU_API uint64_t vcudaCalls(const char *name);
VCU_API uint64_t vcudaCalls(const char *name)
{
	return __atomic_load_n(&vcu()->calls[number_of(name)],
			       __ATOMIC_RELAXED);
}

/* The @nth call from now on (1: the next) has that result; from 700 on it
 * also breaks the context, as such errors do; UINT32_MAX kills the process, and
 * one less has it hang in the driver, with its sockets closed, as one does that
 * is ending and cannot; one less stops it there with SIGSTOP, and the call goes
 * on as ever when the process does. */
VCU_API void vcudaFail(const char *name, uint64_t nth, unsigned result);
VCU_API void vcudaFail(const char *name, uint64_t nth, unsigned result)
{
	vcu_lock();
	vcu()->failures[number_of(name)] =
		(struct vcu_failure){ nth, result };
	vcu_unlock();
}

/* What is set from now on may race with copies, as of a trainer that forgets
 * the fence; race detectors are not told. */
VCU_API void vcudaRace(int on);
VCU_API void vcudaRace(int on)
{
	vcu_lock();
	vcu()->race = on;
	vcu_unlock();
}

/* What there is: "events", "streams", "handles" of memory, and bytes: "locked",
 * "memory" with an address, "reserved" addresses, "modules" of code,
 * references to "contexts", "pending"
 * operations of streams; what was: "pageable" copies, bytes "out", "in",
 * "across" and "hashed", and those that are to keep off kernels, "overlap",
 * "calls" of any, "lazy" launches, which had to load their kernel first,
 * "loads" of code and "waits" for devices by the calling thread, and "busy"
 * waits, of which the driver makes loops: for a stream, and for an event that
 * was not made for sleeping; in a child of a fork, calls "of a child". */
VCU_API uint64_t vcudaCount(const char *what);
VCU_API uint64_t vcudaCount(const char *what)
{
	const struct vcu *v = vcu();
	uint64_t n = 0;

	vcu_lock();
	if (!strcmp(what, "events"))
		n = (uint64_t)v->live_events;
	else if (!strcmp(what, "streams"))
		n = (uint64_t)v->live_streams;
	else if (!strcmp(what, "pageable"))
		n = v->pageable;
	else if (!strcmp(what, "out"))
		n = v->bytes_out;
	else if (!strcmp(what, "in"))
		n = v->bytes_in;
	else if (!strcmp(what, "across"))
		n = v->bytes_across;
	else if (!strcmp(what, "overlap"))
		n = v->bytes_overlap;
	else if (!strcmp(what, "hashed"))
		n = v->bytes_hashed;
	else if (!strcmp(what, "pending"))
		for (struct CUstream_st *s = v->streams; s; s = s->next)
			n += s->queued - s->done;
	else if (!strcmp(what, "lazy"))
		n = v->lazy;
	else if (!strcmp(what, "loads"))
		n = vcu_loads();
	else if (!strcmp(what, "waits"))
		n = vcu_waits();
	else if (!strcmp(what, "busy"))
		n = v->busy;
	else if (!strcmp(what, "modules"))
		for (struct CUmod_st *m = v->modules; m; m = m->next)
			n += !m->gone;
	else if (!strcmp(what, "calls"))
		for (int i = 0; i < VCU_FUNCTIONS; i++)
			n += __atomic_load_n(&v->calls[i], __ATOMIC_RELAXED);
	else if (!strcmp(what, "locked"))
		for (struct vcu_locked *l = v->locked; l; l = l->next)
			n += l->bytes;
	else if (!strcmp(what, "memory"))
		for (struct vcu_memory *m = v->memory; m; m = m->next)
			n += m->freed ? 0 : m->bytes;
	else if (!strcmp(what, "reserved"))
		for (struct vcu_range *r = v->ranges; r; r = r->next)
			n += r->bytes;
	else if (!strcmp(what, "handles"))
		for (struct vcu_handle *h = v->handles; h; h = h->next)
			n += !h->gone;
	else if (!strcmp(what, "contexts"))
		for (int i = 0; i < v->n_devices; i++)
			n += v->contexts[i].refs;
	else if (!strcmp(what, "of a child"))
		n = __atomic_load_n(&v->child_calls, __ATOMIC_RELAXED);
	else
		vcu_misuse("nothing called %s is counted", what);
	vcu_unlock();
	return n;
}

/* ---- entering ---- */

#define ECC_UNCORRECTABLE 214u
#define CONTAINED 226u		/* a device's memory, told to who used it */

#define MMU_FAULT 31		/* as the kernel's log has an illegal address */

static bool is_sticky(sk_cu_result result)
{
	return result == ECC_UNCORRECTABLE || result == CONTAINED ||
	       (result >= SK_CU_ILLEGAL_ADDRESS &&
		result <= SK_CU_LAUNCH_FAILED &&
		result != SK_CU_ALREADY_REGISTERED &&
		result != SK_CU_NOT_REGISTERED);
}

static void break_context(sk_cu_result result)
{
	struct CUctx_st *context = vcu_current();

	if (context && is_sticky(result)) {
		vcu_spoil(context, result);
		vcu_settle(context);
	}
}

/* Another thread may wait in a connection, which only this ends; an end of a
 * pair may be others' as well. */
static void hang(void)
{
	struct sockaddr_un peer;

	for (int fd = 3; fd < 1024; fd++) {
		socklen_t size = sizeof(peer);

		if (getpeername(fd, (struct sockaddr *)&peer, &size))
			continue;
		if (size > sizeof(sa_family_t))
			(void)shutdown(fd, SHUT_RDWR);
		else
			(void)close(fd);
	}
	for (;;)
		(void)pause();
}

static sk_cu_result planned_failure(enum vcu_function function)
{
	struct vcu_failure *f = &vcu()->failures[function];
	sk_cu_result r = SK_CU_SUCCESS;
	bool stops = false;

	vcu_lock();
	if (f->left && !--f->left) {
		r = f->result;
		if (r == UINT32_MAX)
			(void)raise(SIGKILL);
		if (r == UINT32_MAX - 1)
			hang();
		stops = r == UINT32_MAX - 2;
		if (stops)
			r = SK_CU_SUCCESS;
		break_context(r);
	}
	vcu_unlock();
	if (stops)
		(void)raise(SIGSTOP);
	return r;
}

static sk_cu_result refuse_child(const char *name)
{
	if (!__atomic_fetch_add(&vcu()->child_calls, 1, __ATOMIC_RELAXED))
		fprintf(stderr, "vcuda: %s is called in a child of the "
			"process that initialized the driver\n", name);
	return SK_CU_NOT_INITIALIZED;
}

sk_cu_result vcu_enter(enum vcu_function function)
{
	struct vcu *v = vcu();

	__atomic_fetch_add(&v->calls[function], 1, __ATOMIC_RELAXED);
	if (vcu_mode("stub"))
		return SK_CU_STUB_LIBRARY;
	if (!__atomic_load_n(&v->initialized, __ATOMIC_ACQUIRE))
		return SK_CU_NOT_INITIALIZED;
	/* A forked child has no driver, and may not even take its lock. */
	if (v->pid != getpid())
		return refuse_child(entries[function].name);
	if (vcu_is_inside())
		vcu_misuse("%s is called by a function that a stream runs",
			   entries[function].name);
	if (vcu_said("VCUDA_FAILS", entries[function].name))
		return SK_CU_LAUNCH_FAILED;
	return planned_failure(function);
}

/* Whoever has to do with a device that was reset has to end. */
static void break_if_reset(struct CUctx_st *context)
{
	unsigned resets = vcu_resets(context->device);

	/* Most never were. */
	if (!resets || resets == __atomic_load_n(&context->resets,
						 __ATOMIC_RELAXED))
		return;
	vcu_lock();
	if (context->refs && !context->sticky) {
		__atomic_store_n(&context->sticky, SK_CU_LAUNCH_FAILED,
				 __ATOMIC_RELAXED);
		vcu_settle(context);
	}
	vcu_unlock();
}

void vcu_spoil(struct CUctx_st *context, sk_cu_result result)
{
	sk_cu_result was = __atomic_exchange_n(&context->sticky, result,
					       __ATOMIC_RELAXED);

	__atomic_store_n(&vcu()->sticky, result, __ATOMIC_RELAXED);
	if (was == SK_CU_SUCCESS && result == SK_CU_ILLEGAL_ADDRESS)
		vcu_record(context->device, MMU_FAULT);
}

/* By itself, or by what broke the process. */
static sk_cu_result broken(const struct CUctx_st *context)
{
	sk_cu_result r = __atomic_load_n(&context->sticky, __ATOMIC_RELAXED);

	return r ? r : __atomic_load_n(&vcu()->sticky, __ATOMIC_RELAXED);
}

sk_cu_result vcu_broken(int device)
{
	struct CUctx_st *context = &vcu()->contexts[device];

	break_if_reset(context);
	return broken(context);
}

sk_cu_result vcu_enter_context(enum vcu_function function)
{
	sk_cu_result r = vcu_enter(function);

	if (r != SK_CU_SUCCESS)
		return r;
	if (!vcu_current())
		return SK_CU_INVALID_CONTEXT;
	if (!__atomic_load_n(&vcu_current()->refs, __ATOMIC_RELAXED))
		return VCU_CONTEXT_IS_DESTROYED;
	break_if_reset(vcu_current());
	return broken(vcu_current());
}
