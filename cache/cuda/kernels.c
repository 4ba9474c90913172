/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda/kernels.h"

#include <assert.h>

#include "cuda/gather.h"

static const char *const names[SK_CUDA_KERNELS] = {
	[SK_CUDA_KERNEL_PARTS] = "sk_parts",
	[SK_CUDA_KERNEL_LANES] = "sk_lanes",
	[SK_CUDA_KERNEL_MERGE] = "sk_merge",
	[SK_CUDA_KERNEL_COPIES] = "sk_copies",
	[SK_CUDA_KERNEL_BOX] = "sk_box",
};

struct sk_cuda_kernels {
	pthread_mutex_t lock;	/* of all that follows, until it is loaded */
	bool tried, loaded;
	int result;		/* of loading them */
	struct sk_again again;	/* where there was no room */
	struct sk_err err;
	sk_cu_module module;
	sk_cu_function functions[SK_CUDA_KERNELS];
};

int sk_cuda_kernels_new(struct sk_cuda_device *device, struct sk_err *err)
{
	assert(!device->kernels);
	device->kernels = calloc(1, sizeof(*device->kernels));
	if (!device->kernels)
		return sk_err_set(err, -ENOMEM, "out of memory");
	(void)pthread_mutex_init(&device->kernels->lock, NULL);
	return 0;
}

void sk_cuda_kernels_free(struct sk_cuda_device *device)
{
	struct sk_cuda_kernels *k = device->kernels;
	struct sk_cuda_scope scope;

	if (k->module && sk_cuda_enter(device, &scope, NULL) >= 0) {
		(void)device->driver->cuModuleUnload(k->module);
		sk_cuda_leave(&scope);
	}
	(void)pthread_mutex_destroy(&k->lock);
	free(k);
	device->kernels = NULL;
}

/* ---- loading ---- */

static int cannot(const struct sk_cuda_device *device, sk_cu_result result,
		  const char *what, struct sk_err *err)
{
	if (result == SK_CU_SUCCESS)
		return 0;
	(void)sk_cuda_driver_failed(device->driver, result, what, err);
	return result == SK_CU_OUT_OF_MEMORY ? -ENOMEM : -ENODEV;
}

/* Drivers from 12.4 on may put off what a kernel takes until its first launch,
 * which then waits for the whole context; older ones have it with its handle.
 */
static int find(const struct sk_cuda_device *device, int kernel,
		struct sk_err *err)
{
	const struct sk_cuda_driver *driver = device->driver;
	struct sk_cuda_kernels *k = device->kernels;
	int r = cannot(device,
		       driver->cuModuleGetFunction(&k->functions[kernel],
						   k->module, names[kernel]),
		       "cuModuleGetFunction", err);

	if (r < 0 || !driver->cuFuncLoad)
		return r;
	return cannot(device, driver->cuFuncLoad(k->functions[kernel]),
		      "cuFuncLoad", err);
}

/* Within the device's context. */
static int load(const struct sk_cuda_device *device, struct sk_err *err)
{
	const struct sk_cuda_driver *driver = device->driver;
	struct sk_cuda_kernels *k = device->kernels;
	int r = 0;

	/* There may have been room for it, and for no more. */
	if (!k->module)
		r = cannot(device, driver->cuModuleLoadData(
				   &k->module, sk_cuda_kernels_text),
			   "cuModuleLoadData", err);
	if (r < 0) {
		k->module = NULL;
		return r;
	}
	for (int i = 0; i < SK_CUDA_KERNELS && r >= 0; i++)
		r = find(device, i, err);
	return r;
}

static int try(const struct sk_cuda_device *device, struct sk_err *err)
{
	const struct sk_cuda_driver *driver = device->driver;
	struct sk_cuda_scope scope;
	int r;

	if (!driver->cuModuleLoadData || !driver->cuModuleUnload ||
	    !driver->cuModuleGetFunction || !driver->cuLaunchKernel)
		return sk_err_set(err, -ENODEV, "this CUDA driver has no "
				  "function to load a kernel with");
	r = sk_cuda_enter(device, &scope, err);
	if (r < 0)
		return -ENODEV;
	r = load(device, err);
	sk_cuda_leave(&scope);
	return r;
}

int sk_cuda_kernels_load(const struct sk_cuda_device *device,
			 struct sk_err *err)
{
	struct sk_cuda_kernels *k = device->kernels;
	const struct sk_os *os = device->os;
	int r;

	(void)pthread_mutex_lock(&k->lock);
	if (k->result == -ENOMEM && sk_again_is_due(&k->again,
						    os->now_ns(os)))
		k->tried = false;
	if (!k->tried)
		k->result = try(device, &k->err);
	if (!k->tried && k->result == -ENOMEM)
		sk_again_refused(&k->again, os->now_ns(os));
	k->tried = true;
	r = k->result;
	__atomic_store_n(&k->loaded, r >= 0, __ATOMIC_RELEASE);
	if (r < 0 && err)
		*err = k->err;
	(void)pthread_mutex_unlock(&k->lock);
	return r;
}

bool sk_cuda_kernels_are_loaded(const struct sk_cuda_device *device)
{
	return __atomic_load_n(&device->kernels->loaded, __ATOMIC_ACQUIRE);
}

int sk_cuda_kernels_load_now(const struct sk_cuda_device *device,
			     struct sk_err *err)
{
	struct sk_cuda_kernels *k = device->kernels;

	(void)pthread_mutex_lock(&k->lock);
	if (k->result == -ENOMEM)
		k->tried = false;
	(void)pthread_mutex_unlock(&k->lock);
	return sk_cuda_kernels_load(device, err);
}

void sk_cuda_warm(struct sk_cuda_lane *lane)
{
	(void)sk_cuda_kernels_load_now(lane->device, NULL);
	(void)sk_cuda_can_gather(lane);
}

/* ---- launching ---- */

int sk_cuda_kernels_launch_within(const struct sk_cuda_lane *lane,
				  enum sk_cuda_kernel kernel, unsigned blocks,
				  unsigned threads, void **params,
				  struct sk_err *err)
{
	const struct sk_cuda_device *device = lane->device;
	sk_cu_result result = device->driver->cuLaunchKernel(
		device->kernels->functions[kernel], blocks, 1, 1, threads, 1,
		1, 0, lane->stream, params, NULL);

	return result == SK_CU_SUCCESS ? 0 :
	       sk_cuda_driver_failed(device->driver, result, "cuLaunchKernel",
				     err);
}

int sk_cuda_kernels_launch(const struct sk_cuda_lane *lane,
			   enum sk_cuda_kernel kernel, unsigned blocks,
			   unsigned threads, void **params,
			   struct sk_err *err)
{
	struct sk_cuda_scope scope;
	int r = sk_cuda_enter(lane->device, &scope, err);

	if (r < 0)
		return r;
	r = sk_cuda_kernels_launch_within(lane, kernel, blocks, threads,
					  params, err);
	sk_cuda_leave(&scope);
	return r;
}
