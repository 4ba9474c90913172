/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of this room share. */
#ifndef SK_CACHE_CUDA_PRIVATE_H
#define SK_CACHE_CUDA_PRIVATE_H

#include <pthread.h>

#include "cuda/cuda.h"
#include "cuda/driver.h"

/** Most devices of a node that a process can use. */
#define SK_CUDA_DEVICES_MAX 64

struct sk_cuda_device {
	const struct sk_cuda_driver *driver;
	int ordinal;
	sk_cu_device id;
	sk_cu_context context;	/* the primary one, retained */
};

struct sk_cuda {
	const struct sk_os *os;
	pthread_mutex_t lock;	/* of all that follows */
	bool ready;		/* the driver is open, and initialized */
	struct sk_cuda_driver driver;
	struct sk_cuda_device *devices[SK_CUDA_DEVICES_MAX];
};

struct sk_cuda_lock {
	const struct sk_cuda_device *device;
	char *map;
	uint64_t bytes, piece;
};

struct sk_cuda_lane {
	const struct sk_cuda_device *device;
	sk_cu_stream stream;
	sk_cu_event follow;	/* on the trainer's stream */
	pthread_mutex_t lock;	/* of that event */
};

/** The calling thread, while it uses a device. */
struct sk_cuda_scope {
	const struct sk_cuda_driver *driver;
	sk_cu_enum mode;	/* of capturing, which it had before */
};

/**
 * Makes the device's context the calling thread's current one, until
 * sk_cuda_leave(); none of our calls is then part of, or harms, what another
 * stream captures. Errors: as sk_cuda_driver_failed().
 */
int sk_cuda_enter(const struct sk_cuda_device *device,
		  struct sk_cuda_scope *ret_scope, struct sk_err *err);
/** The thread has the context again that it had. */
void sk_cuda_leave(const struct sk_cuda_scope *scope);

#endif
