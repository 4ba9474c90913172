/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table against libraries: each that is named exports all of it, says its
 * version, and makes ids that differ, without a GPU.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "nccl/nccl.h"

#define NAME(function, since, need, result, params) #function,

static const char *const names[] = { SK_NCCL_TABLE(NAME) };

static int count_missing(const char *path)
{
	void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	int missing = 0;

	if (!library) {
		fprintf(stderr, "%s\n", dlerror());
		return 1;
	}
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (!dlsym(library, names[i])) {
			fprintf(stderr, "%s has no %s\n", path, names[i]);
			missing++;
		}
	return missing;
}

static int look(const char *path)
{
	struct sk_err err = { "" };
	struct sk_nccl nccl;
	sk_nccl_id a, b;

	if (sk_nccl_open(sk_os_linux(), path, &nccl, &err) < 0) {
		fprintf(stderr, "%s\n", err.text);
		return 1;
	}
	if (nccl.ncclGetUniqueId(&a) || nccl.ncclGetUniqueId(&b) ||
	    !memcmp(&a, &b, sizeof(a))) {
		fprintf(stderr, "%s makes no ids\n", path);
		return 1;
	}
	printf("%s is %d\n", path, nccl.version);
	return 0;
}

int main(int argc, char **argv)
{
	int bad = 0;

	if (argc < 2)
		return 2;
	/* That it can fail. */
	if (!count_missing("libm.so.6"))
		return 3;
	for (int i = 1; i < argc; i++)
		bad += count_missing(argv[i]) + look(argv[i]);
	return bad != 0;
}
