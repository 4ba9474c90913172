/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DLPack's table of functions by which a framework shows its tensors to C, as
 * far as it is used here: without an object made and without its headers. The
 * ABI of DLPack 1.3 (dmlc/dlpack, include/dlpack/dlpack.h), which a framework
 * of the same major version keeps; the capsule is called
 * "dlpack_exchange_api" and hangs on the tensor's type as
 * __dlpack_c_exchange_api__.
 */
#ifndef SK_PYTHON_DLPACK_H
#define SK_PYTHON_DLPACK_H

#include <stdint.h>

#define DLPACK_MAJOR 1
#define DLPACK_API_NAME "dlpack_exchange_api"
#define DLPACK_CPU 1		/* types of devices */
#define DLPACK_CUDA 2

struct dlpack_tensor {
	void *data;
	struct { int32_t type, id; } device;
	int32_t ndim;
	struct { uint8_t code, bits; uint16_t lanes; } dtype;
	int64_t *shape;		/* elements; the producer's */
	int64_t *strides;	/* in elements; the producer's */
	uint64_t byte_offset;
};

struct dlpack_api {
	struct { uint32_t major, minor; } version;
	struct dlpack_api *older;	/* NULL: none */
	int (*allocate)(void);		/* those that are not used here */
	int (*managed_from)(void);
	int (*managed_to)(void);
	/** A look at the tensor that @object is: valid until control goes back
	 * to Python. 0, or -1 with an exception; may be NULL. */
	int (*look)(void *object, struct dlpack_tensor *ret);
	int (*current_stream)(void);
};

#endif
