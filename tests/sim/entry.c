/* SPDX-License-Identifier: Apache-2.0 */
/* Ways into the simulated driver: functions by name and version, counts. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "vcuda.h"

struct vcu *vcu(void)
{
	static struct vcu state = { .lock = PTHREAD_MUTEX_INITIALIZER };

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

bool vcu_mode(const char *mode)
{
	const char *said = getenv("VCUDA_MODE");

	return said && !strcmp(said, mode);
}

long vcu_setting(const char *name, long otherwise)
{
	const char *said = getenv(name);

	return said && *said ? strtol(said, NULL, 0) : otherwise;
}

void vcu_misuse(const char *fmt, ...)
{
	va_list ap;

	fprintf(stderr, "vcuda: MISUSE: ");
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fprintf(stderr, "\n");
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
	const char *missing = getenv("VCUDA_MISSING");

	if (missing && !strcmp(name, missing))
		return NULL;
	if (is_other(name, version))
		return (void *)other_function;
	for (size_t i = 0; i < sizeof(entries) / sizeof(entries[0]); i++)
		if (!strcmp(name, entries[i].name) &&
		    version >= entries[i].version)
			return entries[i].function;
	return NULL;
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
	if (!name || !function || flags)
		return SK_CU_INVALID_VALUE;
	*function = find(name, version);
	if (found)
		*found = !*function;	/* 1: there is no such symbol */
	return *function ? SK_CU_SUCCESS : SK_CU_NOT_FOUND;
}

/* ---- counts, for tests ---- */

/* Calls of that name since the process began; 0 of an unknown one. */
VCU_API uint64_t vcudaCalls(const char *name);
VCU_API uint64_t vcudaCalls(const char *name)
{
	for (size_t i = 0; i < VCU_FUNCTIONS; i++)
		if (!strcmp(name, entries[i].name))
			return __atomic_load_n(&vcu()->calls[i],
					       __ATOMIC_RELAXED);
	return 0;
}

sk_cu_result vcu_enter(enum vcu_function function)
{
	struct vcu *v = vcu();

	__atomic_fetch_add(&v->calls[function], 1, __ATOMIC_RELAXED);
	if (vcu_mode("stub"))
		return SK_CU_STUB_LIBRARY;
	if (!__atomic_load_n(&v->initialized, __ATOMIC_ACQUIRE))
		return SK_CU_NOT_INITIALIZED;
	/* A forked child has no driver. */
	return v->pid == getpid() ? SK_CU_SUCCESS : SK_CU_NOT_INITIALIZED;
}

sk_cu_result vcu_enter_context(enum vcu_function function)
{
	sk_cu_result r = vcu_enter(function);

	if (r == SK_CU_SUCCESS && !vcu_current())
		r = SK_CU_INVALID_CONTEXT;
	return r;
}
