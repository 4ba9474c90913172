/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table against libraries: each that is named exports all of it, says its
 * version, and makes ids that differ, without a GPU.
 */
#include <stdio.h>
#include <string.h>

#include "nccl/nccl.h"
#include "sim/exports.h"

#define NAME(function, since, need, result, params) #function,

static const char *const names[] = { SK_NCCL_TABLE(NAME) };

static int count_missing(const char *path)
{
	return exports_missing(path, names, sizeof(names) / sizeof(names[0]));
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
