/* SPDX-License-Identifier: Apache-2.0 */
/* Whether a library has what a table names. */
#ifndef SK_TESTS_SIM_EXPORTS_H
#define SK_TESTS_SIM_EXPORTS_H

#include <stddef.h>

/** How many of @n @names the library at @path does not export, each said on
 * stderr; 1 where it cannot be opened. */
int exports_missing(const char *path, const char *const *names, size_t n);

#endif
