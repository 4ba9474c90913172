/* SPDX-License-Identifier: Apache-2.0 */
/* What the benchmark asks of the system, and leaves behind nothing of. */
#include <ftw.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "bench.h"

uint64_t first_number(const char *path, const char *key)
{
	unsigned long long v = 0;
	FILE *f = fopen(path, "re");
	char line[256];

	while (f && fgets(line, sizeof(line), f))
		if (!strncmp(line, key, strlen(key)) &&
		    sscanf(line + strlen(key), "%llu", &v) == 1)
			break;
	if (f)
		fclose(f);
	return v;
}

void *share(size_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
		       MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	return p == MAP_FAILED ? NULL : p;
}

static int remove_one(const char *path, const struct stat *st, int type,
		      struct FTW *ftw)
{
	(void)st;
	(void)type;
	(void)ftw;
	return remove(path);
}

void remove_tree(const char *path)
{
	(void)nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}
