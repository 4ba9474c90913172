/* SPDX-License-Identifier: Apache-2.0 */
#include "facts.h"

#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "items.h"

size_t fact_largest;

double fact_now(void)
{
	struct timespec t;

	(void)clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

void *fact_pages(size_t bytes, unsigned flags)
{
	int fd = memfd_create("facts", MFD_CLOEXEC | flags);
	void *p = MAP_FAILED;

	if (fd >= 0 && !ftruncate(fd, (off_t)bytes))
		p = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
			 MAP_SHARED | (flags ? MAP_POPULATE : 0), fd, 0);
	CHECK(p != MAP_FAILED || flags);
	if (fd >= 0)
		close(fd);
	if (p == MAP_FAILED)
		return NULL;
	memset(p, 1, bytes);
	return p;
}

sk_cu_stream fact_stream(const struct trainer_cuda *t)
{
	sk_cu_stream s;

	IS(0, t->cuStreamCreate(&s, SK_CU_STREAM_NON_BLOCKING));
	return s;
}
