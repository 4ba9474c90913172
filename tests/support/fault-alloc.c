/* SPDX-License-Identifier: Apache-2.0 */
#include "fault-alloc.h"

#include <assert.h>
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#define LIVE_MOST (1u << 18)	/* a power of two; more than a test makes */

struct fault {
	pthread_mutex_t lock;
	bool on;
	uint64_t first, times, calls, hits, n_live, bytes, peak;
	void *live[LIVE_MOST];	/* open addressing; NULL: free */
};

/* The allocator has no context to carry one: a test program has one of it, or
 * two have one together. */
static struct fault own = { .lock = PTHREAD_MUTEX_INITIALIZER };
static struct fault *fault = &own;
static atomic_bool apart;	/* what this process does is not counted */

void *__real_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t size);
void *__real_aligned_alloc(size_t align, size_t size);
void __real_free(void *p);

void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t size);
void *__wrap_reallocarray(void *p, size_t n, size_t size);
void *__wrap_aligned_alloc(size_t align, size_t size);
char *__wrap_strdup(const char *s);
char *__wrap_strndup(const char *s, size_t n);
int __wrap_vasprintf(char **ret, const char *fmt, va_list ap);
int __wrap_asprintf(char **ret, const char *fmt, ...);
void __wrap_free(void *p);

static size_t home(const void *p)
{
	return (size_t)((uintptr_t)p * UINT64_C(0x9e3779b97f4a7c15) >> 40) %
	       LIVE_MOST;
}

static void live_add(void *p)
{
	size_t i = home(p);

	assert(fault->n_live < LIVE_MOST / 2);
	while (fault->live[i])
		i = (i + 1) % LIVE_MOST;
	fault->live[i] = p;
	fault->n_live++;
	fault->bytes += malloc_usable_size(p);
	fault->peak = fault->bytes > fault->peak ? fault->bytes : fault->peak;
}

/* Those behind it in its run move up, so that the run has no gap. */
static void close_gap(size_t gap)
{
	for (size_t i = (gap + 1) % LIVE_MOST; fault->live[i];
	     i = (i + 1) % LIVE_MOST) {
		size_t away = (i - home(fault->live[i])) % LIVE_MOST;

		if (away < (i - gap) % LIVE_MOST)
			continue;
		fault->live[gap] = fault->live[i];
		gap = i;
	}
	fault->live[gap] = NULL;
}

static void live_remove(void *p)
{
	for (size_t i = home(p); fault->live[i]; i = (i + 1) % LIVE_MOST)
		if (fault->live[i] == p) {
			close_gap(i);
			fault->n_live--;
			fault->bytes -= malloc_usable_size(p);
			return;
		}
}

void sk_fault_alloc_share(void)
{
	pthread_mutexattr_t attr;
	struct fault *f = mmap(NULL, sizeof(*f), PROT_READ | PROT_WRITE,
			       MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	assert(f != MAP_FAILED);
	pthread_mutexattr_init(&attr);
	pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
	pthread_mutex_init(&f->lock, &attr);
	pthread_mutexattr_destroy(&attr);
	apart = true;
	fault = f;
}

void sk_fault_alloc_next(uint64_t nth, uint64_t times)
{
	pthread_mutex_lock(&fault->lock);
	fault->first = nth ? fault->calls + nth : UINT64_MAX;
	fault->times = times;
	fault->hits = 0;
	pthread_mutex_unlock(&fault->lock);
}

uint64_t sk_fault_alloc_hits(void)
{
	uint64_t hits;

	pthread_mutex_lock(&fault->lock);
	hits = fault->hits;
	pthread_mutex_unlock(&fault->lock);
	return hits;
}

void sk_fault_alloc_fail(uint64_t nth, uint64_t times)
{
	apart = false;
	pthread_mutex_lock(&fault->lock);
	fault->on = true;
	fault->first = nth ? nth : UINT64_MAX;
	fault->times = times;
	fault->calls = fault->hits = fault->n_live = 0;
	fault->bytes = fault->peak = 0;
	memset(fault->live, 0, sizeof(fault->live));
	pthread_mutex_unlock(&fault->lock);
}

void sk_fault_alloc_mend(void)
{
	pthread_mutex_lock(&fault->lock);
	fault->first = UINT64_MAX;
	pthread_mutex_unlock(&fault->lock);
}

uint64_t sk_fault_alloc_end(uint64_t *ret_live)
{
	pthread_mutex_lock(&fault->lock);
	fault->on = false;
	if (ret_live)
		*ret_live = fault->n_live;
	pthread_mutex_unlock(&fault->lock);
	return fault->hits;
}

uint64_t sk_fault_alloc_calls(void)
{
	return fault->calls;
}

uint64_t sk_fault_alloc_peak(void)
{
	return fault->peak;
}

/* Whether the next allocation happens. */
static bool allowed(void)
{
	bool fails;

	if (apart)
		return true;
	pthread_mutex_lock(&fault->lock);
	fails = fault->on && ++fault->calls >= fault->first &&
		fault->calls - fault->first < fault->times;
	fault->hits += fails;
	pthread_mutex_unlock(&fault->lock);
	if (fails)
		errno = ENOMEM;
	return !fails;
}

static void *made(void *p)
{
	if (apart)
		return p;
	pthread_mutex_lock(&fault->lock);
	if (fault->on && p)
		live_add(p);
	pthread_mutex_unlock(&fault->lock);
	return p;
}

/* Before it is freed: its address may be somebody else's right after. */
static void gone(void *p)
{
	if (apart)
		return;
	pthread_mutex_lock(&fault->lock);
	if (fault->on && p)
		live_remove(p);
	pthread_mutex_unlock(&fault->lock);
}

void *__wrap_malloc(size_t size)
{
	return allowed() ? made(__real_malloc(size)) : NULL;
}

void *__wrap_calloc(size_t n, size_t size)
{
	return allowed() ? made(__real_calloc(n, size)) : NULL;
}

void *__wrap_realloc(void *p, size_t size)
{
	if (!allowed())
		return NULL;
	gone(p);
	return made(__real_realloc(p, size));
}

void *__wrap_reallocarray(void *p, size_t n, size_t size)
{
	size_t bytes;

	if (__builtin_mul_overflow(n, size, &bytes)) {
		errno = ENOMEM;
		return NULL;
	}
	return __wrap_realloc(p, bytes);
}

void *__wrap_aligned_alloc(size_t align, size_t size)
{
	return allowed() ? made(__real_aligned_alloc(align, size)) : NULL;
}

char *__wrap_strndup(const char *s, size_t n)
{
	size_t bytes = strnlen(s, n < PTRDIFF_MAX ? n : PTRDIFF_MAX);
	char *copy = __wrap_malloc(bytes + 1);

	if (copy) {
		memcpy(copy, s, bytes);
		copy[bytes] = 0;
	}
	return copy;
}

char *__wrap_strdup(const char *s)
{
	return __wrap_strndup(s, SIZE_MAX);
}

int __wrap_vasprintf(char **ret, const char *fmt, va_list ap)
{
	va_list again;
	int n;

	va_copy(again, ap);
	n = vsnprintf(NULL, 0, fmt, again);
	va_end(again);
	*ret = n < 0 ? NULL : __wrap_malloc((size_t)n + 1);
	return *ret ? vsnprintf(*ret, (size_t)n + 1, fmt, ap) : -1;
}

int __wrap_asprintf(char **ret, const char *fmt, ...)
{
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = __wrap_vasprintf(ret, fmt, ap);
	va_end(ap);
	return n;
}

void __wrap_free(void *p)
{
	gone(p);
	__real_free(p);
}
