/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tables against libraries: whatever they name is exported, by the
 * simulation, and by the toolkit's stub where there is one (the second
 * argument), which the loader takes for no driver.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "sim/exports.h"
#include "sim/trainer.h"

#define NAME(function, exported, version, need, params) #exported,

static const char *const names[] = {
	"cuGetProcAddress_v2",
	SK_CUDA_TABLE(NAME)
	VCUDA_MORE(NAME)
};

static int count_missing(const char *path)
{
	return exports_missing(path, names, sizeof(names) / sizeof(names[0]));
}

static int check_stub(const char *path)
{
	struct sk_cuda_driver driver;
	struct sk_err err = { "" };
	int r = sk_cuda_driver_open(sk_os_linux(), path, &driver, &err);

	if (r == -ENODEV && strstr(err.text, "stub"))
		return 0;
	fprintf(stderr, "the stub: %d, \"%s\"\n", r, err.text);
	return 1;
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
		bad += count_missing(argv[i]);
	if (argc > 2)
		bad += check_stub(argv[2]);
	return bad != 0;
}
