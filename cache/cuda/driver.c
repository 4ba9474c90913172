/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda/driver.h"

#include <assert.h>
#include <dlfcn.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"

/* One line of the table. */
struct function {
	const char *name;
	int version;
	bool required;
	size_t at;		/* in struct sk_cuda_driver */
};

enum { OPTIONAL, REQUIRED };

#define LINE(function, exported, version, need, params)			\
	{ #function, version, need, offsetof(struct sk_cuda_driver, function) },

static const struct function table[] = { SK_CUDA_TABLE(LINE) };

/* All that there is; the first that lacks, or NULL. */
static const struct function *find_all(struct sk_cuda_driver *driver)
{
	const struct function *missing = NULL;

	for (size_t i = 0; i < SK_ARRAY_SIZE(table); i++) {
		const struct function *f = &table[i];
		void *found = NULL;

		/* Of what came after it, it would give an older one, which
		 * takes other parameters. */
		if (!driver->version || f->version <= driver->version)
			found = sk_cuda_driver_find(driver, f->name,
						    f->version);
		if (!found && f->required && !missing)
			missing = f;
		*(void **)((char *)driver + f->at) = found;
	}
	return missing;
}

/* The stub answers every call so, and has none of the functions. */
static int check_stub(const struct sk_cuda_driver *driver, const char *file,
		      struct sk_err *err)
{
	sk_cu_enum found;
	void *function;

	if (driver->get_proc("cuInit", &function, 2000, 0, &found) !=
	    SK_CU_STUB_LIBRARY)
		return 0;
	return sk_err_set(err, -ENODEV, "\"%s\" is the CUDA toolkit's stub, "
			  "to link with, and no driver; leave its folder out "
			  "of LD_LIBRARY_PATH", file);
}

static int too_old(const char *file, int version, struct sk_err *err)
{
	return sk_err_set(err, -ENODEV, "the CUDA driver \"%s\" is of CUDA "
			  "%d.%d, and 12.0 is the oldest that is used; update "
			  "the driver", file, version / 1000,
			  version % 1000 / 10);
}

/* Whether whoever has trouble with them has said so. */
static bool may_batch(void)
{
	const char *said = getenv("SHARDKEEP_CUDA_BATCHES");

	return !said || strcmp(said, "0") != 0;
}

static int fill(struct sk_cuda_driver *driver, const char *file,
		struct sk_err *err)
{
	const struct function *missing;

	/* Works before cuInit(), and does not initialize anything. */
	driver->cuDriverGetVersion = (sk_cu_result(*)(int *))
		sk_cuda_driver_find(driver, "cuDriverGetVersion", 2020);
	if (driver->cuDriverGetVersion)
		(void)driver->cuDriverGetVersion(&driver->version);
	missing = find_all(driver);
	if (!may_batch())
		driver->cuMemcpyBatchAsync = NULL;
	else if (!driver->cuMemcpyBatchAsync)
		driver->cuMemcpyBatchAsync_12080 = (sk_cu_batch_12080)
			sk_cuda_driver_find(driver, "cuMemcpyBatchAsync",
					    12080);
	if (driver->version && driver->version < SK_CUDA_VERSION_LEAST)
		return too_old(file, driver->version, err);
	if (!missing)
		return 0;
	return sk_err_set(err, -ENODEV, "the CUDA driver \"%s\" has no %s of "
			  "version %d.%d", file, missing->name,
			  missing->version / 1000,
			  missing->version % 1000 / 10);
}

static const char *file_of(const char *file)
{
	const char *said = file ? file : getenv("SHARDKEEP_LIBCUDA");

	return said && *said ? said : "libcuda.so.1";
}

int sk_cuda_driver_open(const struct sk_os *os, const char *file,
			struct sk_cuda_driver *ret_driver,
			struct sk_err *err)
{
	struct sk_cuda_driver driver = { 0 };
	void *library, *get_proc;
	int r;

	file = file_of(file);
	r = os->dlopen(os, file, RTLD_NOW | RTLD_LOCAL, &library);
	if (r < 0) {
		const char *why = dlerror();

		return sk_err_set(err, -ENODEV, "no CUDA driver: %.200s",
				  why ? why : file);
	}
	r = os->dlsym(os, library, "cuGetProcAddress_v2", &get_proc);
	if (r < 0)
		return sk_err_set(err, -ENODEV, "the CUDA driver \"%s\" is "
				  "older than 12.0 (it has no "
				  "cuGetProcAddress_v2); update the driver",
				  file);
	driver.get_proc = (sk_cu_get_proc)get_proc;
	r = check_stub(&driver, file, err);
	if (r >= 0)
		r = fill(&driver, file, err);
	if (r >= 0)
		*ret_driver = driver;
	return r;
}
