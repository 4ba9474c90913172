/* SPDX-License-Identifier: Apache-2.0 */
#include "trainer.h"

#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

bool trainer_is_told(void)
{
	const char *said = getenv("VCUDA_AS_HARDWARE");

	return !said || !*said;
}

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
	ret_cuda->race = (void (*)(int))dlsym(library, "vcudaRace");
	if (!trainer_is_told())
		return 0;
	ret_cuda->calls = (uint64_t(*)(const char *))
		dlsym(library, "vcudaCalls");
	ret_cuda->fail = (void (*)(const char *, uint64_t, unsigned))
		dlsym(library, "vcudaFail");
	ret_cuda->count = (uint64_t(*)(const char *))
		dlsym(library, "vcudaCount");
	return 0;
}

static void must(sk_cu_result result, const char *what)
{
	if (result == SK_CU_SUCCESS)
		return;
	fprintf(stderr, "%s: %u\n", what, result);
	exit(1);
}

#define MUST(call) must(call, #call)

int trainer_cuda_devices(void)
{
	struct trainer_cuda cuda;
	struct sk_err err = { "" };
	int n;

	if (trainer_cuda_open(&cuda, &err) < 0) {
		fprintf(stderr, "%s\n", err.text);
		exit(1);
	}
	MUST(cuda.driver.cuInit(0));
	MUST(cuda.driver.cuDeviceGetCount(&n));
	return n;
}

void trainer_cuda_begin(struct trainer_cuda *ret_cuda, int device)
{
	struct sk_err err = { "" };
	sk_cu_context context;
	sk_cu_device id;

	if (trainer_cuda_open(ret_cuda, &err) < 0) {
		fprintf(stderr, "%s\n", err.text);
		exit(1);
	}
	MUST(ret_cuda->driver.cuInit(0));
	MUST(ret_cuda->driver.cuDeviceGet(&id, device));
	MUST(ret_cuda->driver.cuDevicePrimaryCtxRetain(&context, id));
	MUST(ret_cuda->cuCtxSetCurrent(context));
}

sk_cu_ptr trainer_cuda_alloc(const struct trainer_cuda *cuda, size_t bytes)
{
	sk_cu_ptr ptr;

	MUST(cuda->driver.cuMemAlloc(&ptr, bytes));
	return ptr;
}

void trainer_cuda_put(const struct trainer_cuda *cuda, sk_cu_ptr to,
		      const void *from, size_t bytes)
{
	MUST(cuda->driver.cuCtxSynchronize());
	MUST(cuda->driver.cuMemcpyHtoDAsync(to, from, bytes, NULL));
	MUST(cuda->driver.cuCtxSynchronize());
}

void trainer_cuda_get(const struct trainer_cuda *cuda, void *to,
		      sk_cu_ptr from, size_t bytes)
{
	MUST(cuda->driver.cuCtxSynchronize());
	MUST(cuda->driver.cuMemcpyDtoHAsync(to, from, bytes, NULL));
	MUST(cuda->driver.cuCtxSynchronize());
}

/* ---- gates ---- */

void trainer_gate_init(struct trainer_gate *gate)
{
	*gate = (struct trainer_gate){ .open = false };
	(void)pthread_mutex_init(&gate->lock, NULL);
	(void)pthread_cond_init(&gate->changed, NULL);
}

static void wait_open(void *data)
{
	struct trainer_gate *gate = data;

	(void)pthread_mutex_lock(&gate->lock);
	gate->held++;
	while (!gate->open)
		(void)pthread_cond_wait(&gate->changed, &gate->lock);
	gate->held--;
	(void)pthread_mutex_unlock(&gate->lock);
}

void trainer_gate_hold(const struct trainer_cuda *cuda,
		       struct trainer_gate *gate, sk_cu_stream stream)
{
	MUST(cuda->cuLaunchHostFunc(stream, wait_open, gate));
}

void trainer_gate_open(struct trainer_gate *gate)
{
	(void)pthread_mutex_lock(&gate->lock);
	gate->open = true;
	(void)pthread_cond_broadcast(&gate->changed);
	(void)pthread_mutex_unlock(&gate->lock);
}

pid_t trainer_fork(void)
{
	pid_t parent = getpid(), child = fork();

	if (child < 0)
		MUST(SK_CU_OUT_OF_MEMORY);
	if (child)
		return child;
	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)	/* it has ended before that */
		_exit(1);
	for (;;)
		pause();
}

void trainer_reap(pid_t child)
{
	(void)kill(child, SIGKILL);
	(void)waitpid(child, NULL, 0);
}
