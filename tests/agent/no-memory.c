/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The agent where memory ends: each allocation of it and of what it links is
 * failed, once and from then on.
 *
 * The linker sends every call of malloc() and its like to the functions here.
 *
 * argv[1]: only every so many allocations (for slow builds).
 */
#include <errno.h>
#include <stdarg.h>
#include <string.h>
#include <sys/mman.h>

#include "agent/whole.h"

/* Of the test's process it is NULL: only the agent's memory ends. */
struct allocations {
	uint64_t n;		/* atomic */
	uint64_t first, times;	/* that fail */
	uint64_t hits;		/* atomic */
};

/* What the linker calls has no other way to learn of it. */
static struct allocations *allocations;

void *__real_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t size);
void *__real_reallocarray(void *p, size_t n, size_t size);
char *__real_strdup(const char *s);
char *__real_strndup(const char *s, size_t n);
void *__real_aligned_alloc(size_t alignment, size_t size);

void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t size);
void *__wrap_reallocarray(void *p, size_t n, size_t size);
char *__wrap_strdup(const char *s);
char *__wrap_strndup(const char *s, size_t n);
void *__wrap_aligned_alloc(size_t alignment, size_t size);
int __wrap_asprintf(char **ret, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

static bool fails(void)
{
	struct allocations *a = allocations;
	uint64_t n;

	if (!a)
		return false;
	n = __atomic_add_fetch(&a->n, 1, __ATOMIC_RELAXED);
	if (n < a->first || n - a->first >= a->times)
		return false;
	__atomic_add_fetch(&a->hits, 1, __ATOMIC_RELAXED);
	errno = ENOMEM;
	return true;
}

void *__wrap_malloc(size_t size)
{
	return fails() ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t n, size_t size)
{
	return fails() ? NULL : __real_calloc(n, size);
}

void *__wrap_realloc(void *p, size_t size)
{
	return fails() ? NULL : __real_realloc(p, size);
}

void *__wrap_reallocarray(void *p, size_t n, size_t size)
{
	return fails() ? NULL : __real_reallocarray(p, n, size);
}

char *__wrap_strdup(const char *s)
{
	return fails() ? NULL : __real_strdup(s);
}

char *__wrap_strndup(const char *s, size_t n)
{
	return fails() ? NULL : __real_strndup(s, n);
}

void *__wrap_aligned_alloc(size_t alignment, size_t size)
{
	return fails() ? NULL : __real_aligned_alloc(alignment, size);
}

int __wrap_asprintf(char **ret, const char *fmt, ...)
{
	va_list ap;
	int n;

	if (fails())
		return -1;
	va_start(ap, fmt);
	n = vasprintf(ret, fmt, ap);
	va_end(ap);
	return n;
}

static void begin(void *ctx)
{
	allocations = ctx;
}

static struct story run(uint64_t first, uint64_t times,
			struct allocations *shared)
{
	struct story story;
	struct whole w;

	*shared = (struct allocations){ .first = first, .times = times };
	whole_init(&w);
	w.before = begin;
	w.ctx = shared;
	whole_start(&w);
	story = whole_story(&w);
	whole_remove(&w);
	return story;
}

int main(int argc, char **argv)
{
	uint64_t stride = argc > 1 ? strtoull(argv[1], NULL, 10) : 1, last;
	struct allocations *shared;
	struct story s;

	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE,
		      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(shared != MAP_FAILED, "mmap");
	s = run(UINT64_MAX, 0, shared);
	CHECK(s.restored && s.status == 0, "with memory all is well");
	last = shared->n;
	for (uint64_t n = 1; n <= last; n += stride) {
		fprintf(stderr, "allocation %llu of %llu\n",
			(unsigned long long)n, (unsigned long long)last);
		(void)run(n, 1, shared);
		(void)run(n, UINT64_MAX, shared);
	}
	return 0;
}
