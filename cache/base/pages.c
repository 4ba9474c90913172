/* SPDX-License-Identifier: Apache-2.0 */
#include "base/pages.h"

#include <assert.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/util.h"

size_t sk_page_bytes(void)
{
	long bytes = sysconf(_SC_PAGESIZE);

	return bytes > (long)SK_PAGE ? (size_t)bytes : SK_PAGE;
}

void *sk_pages_new(const struct sk_os *os, size_t bytes)
{
	void *pages;

	assert(bytes);
	if (os->mmap(os, NULL, bytes, PROT_READ | PROT_WRITE,
		     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0, &pages) < 0)
		return NULL;
	if (os->madvise(os, pages, bytes, MADV_DONTFORK) >= 0)
		return pages;
	return sk_pages_free(os, pages, bytes);
}

void *sk_pages_free(const struct sk_os *os, void *pages, size_t bytes)
{
	if (pages)
		(void)os->munmap(os, pages, bytes);
	return NULL;
}
