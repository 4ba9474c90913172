/* SPDX-License-Identifier: Apache-2.0 */
#include "exports.h"

#include <dlfcn.h>
#include <stdio.h>

int exports_missing(const char *path, const char *const *names, size_t n)
{
	void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	int missing = 0;

	if (!library) {
		fprintf(stderr, "%s\n", dlerror());
		return 1;
	}
	for (size_t i = 0; i < n; i++)
		if (!dlsym(library, names[i])) {
			fprintf(stderr, "%s has no %s\n", path, names[i]);
			missing++;
		}
	return missing;
}
