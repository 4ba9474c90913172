/* SPDX-License-Identifier: Apache-2.0 */
/* Which vectors this CPU has, for tables of kernels. Private to the room. */
#ifndef SK_CACHE_BYTES_ISA_X86_H
#define SK_CACHE_BYTES_ISA_X86_H

/** Of AVX-512, AVX2 and what all have, in this order: the first. */
static inline unsigned sk_isa_first(void)
{
	if (__builtin_cpu_supports("avx512f"))
		return 0;
	return __builtin_cpu_supports("avx2") ? 1 : 2;
}

#endif
