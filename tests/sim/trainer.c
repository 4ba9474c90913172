/* SPDX-License-Identifier: Apache-2.0 */
#include "trainer.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>

#define FIND(function, exported, version, need, params)			\
	ret_cuda->function = (sk_cu_result(*) params)			\
		sk_cuda_driver_find(&ret_cuda->driver, #function, version); \
	if (!ret_cuda->function)					\
		return sk_err_set(err, -ENODEV, "no " #function);

int trainer_cuda_open(struct trainer_cuda *ret_cuda, struct sk_err *err)
{
	const char *file = getenv("SHARDKEEP_LIBCUDA");
	void *library;
	int r;

	*ret_cuda = (struct trainer_cuda){ 0 };
	r = sk_cuda_driver_open(sk_os_linux(), NULL, &ret_cuda->driver, err);
	if (r < 0)
		return r;
	VCUDA_MORE(FIND)
	library = dlopen(file ? file : "libcuda.so.1", RTLD_NOW);
	ret_cuda->calls = (uint64_t(*)(const char *))
		dlsym(library, "vcudaCalls");
	return 0;
}
