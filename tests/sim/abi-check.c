/* SPDX-License-Identifier: Apache-2.0 */
/* What the simulation declares beside the product, against the toolkit. */
#include "more.h"

#include <cuda.h>
#include <cudaTypedefs.h>

_Static_assert(VCU_CAPTURE_INVALIDATED ==
	       (int)CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "901");

_Static_assert(VCU_NOT_PERMITTED == (int)CUDA_ERROR_NOT_PERMITTED, "800");
#if CUDA_VERSION >= 12030
_Static_assert(VCU_DEVICE_FABRIC_SUPPORTED ==
	       (int)CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED, "128");
_Static_assert(VCU_HANDLE_FABRIC == (int)CU_MEM_HANDLE_TYPE_FABRIC, "8");
#endif

#define SAME_FUNCTION(function, exported, version, need, params)	\
	_Static_assert(__builtin_types_compatible_p(			\
		PFN_##function##_v##version,				\
		sk_cu_result(*) params), #function);
VCUDA_MORE(SAME_FUNCTION)
