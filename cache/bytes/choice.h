/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which of the kernels is the fastest on this CPU. It is measured, because
 * neither a vendor's name nor what vectors there are tells: see
 * sk_copy_measure() in bytes/copy.h. Private to the room.
 */
#ifndef SK_CACHE_BYTES_CHOICE_H
#define SK_CACHE_BYTES_CHOICE_H

#include <stdint.h>

/** Which of @n ways that took @ns is to be taken: the first, unless another
 * is faster by more than a tenth, which is no chance. Pure. */
unsigned sk_choose(const uint64_t *ns, unsigned n);

#endif
