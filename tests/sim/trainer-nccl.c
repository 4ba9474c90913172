/* SPDX-License-Identifier: Apache-2.0 */
#include "trainer-nccl.h"

#include <dlfcn.h>
#include <stdlib.h>

#include "trainer.h"

int trainer_nccl_open(struct trainer_nccl *ret, struct sk_err *err)
{
	const char *file = getenv("SHARDKEEP_LIBNCCL");
	void *library;
	int r;

	*ret = (struct trainer_nccl){ 0 };
	r = sk_nccl_open(sk_os_linux(), NULL, &ret->lib, err);
	if (r < 0)
		return r;
	if (!trainer_is_told())
		return 0;
	library = dlopen(file ? file : "libnccl.so.2", RTLD_NOW);
	ret->calls = (uint64_t (*)(const char *))
		dlsym(library, "vncclCalls");
	ret->fail = (void (*)(const char *, uint64_t, unsigned))
		dlsym(library, "vncclFail");
	ret->wreck = (void (*)(unsigned))dlsym(library, "vncclBreak");
	ret->count = (uint64_t (*)(const char *))
		dlsym(library, "vncclCount");
	ret->come_back = (void (*)(void))dlsym(library, "vncclComeBack");
	return 0;
}

sk_nccl_config trainer_nccl_config(void)
{
	return (sk_nccl_config){
		.size = sizeof(sk_nccl_config), .magic = SK_NCCL_MAGIC,
		.version = SK_NCCL_CONFIG_VERSION, .blocking = 0,
		.cga_cluster_size = SK_NCCL_UNDEF, .min_ctas = SK_NCCL_UNDEF,
		.max_ctas = SK_NCCL_UNDEF, .split_share = 0,
		.traffic_class = SK_NCCL_UNDEF };
}
