/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whole pages of this process alone, for what a device or the kernel reads and
 * writes behind its back: no child of a fork gets them. Else older kernels give
 * the parent another page as soon as it writes, and the device goes on with the
 * one that it was told of; pages of the heap cannot be kept from children, for
 * they are somebody else's later.
 */
#ifndef SK_CACHE_BASE_PAGES_H
#define SK_CACHE_BASE_PAGES_H

#include "base/os.h"

/** The system's page, in bytes: SK_PAGE, or a multiple of it, as 64 KiB on many
 * ARM systems with GPUs. What is mapped, unmapped and advised begins with one.
 * Any thread. */
size_t sk_page_bytes(void);

/** @bytes, 1 or more, of zeros, that begin with a page; NULL: there is no
 * memory. Any thread. */
void *sk_pages_new(const struct sk_os *os, size_t bytes);

/** Of so many bytes; NULL is fine. Returns NULL. */
void *sk_pages_free(const struct sk_os *os, void *pages, size_t bytes);

#endif
