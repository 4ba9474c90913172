/* SPDX-License-Identifier: Apache-2.0 */
/* Names that stand in headers, which are JSON: of tensors, of dimensions. */
#ifndef SK_CACHE_TENSOR_NAME_H
#define SK_CACHE_TENSOR_NAME_H

#include "base/error.h"

/** UTF-8 of 1 to 1,023 bytes without control characters? @what, as "tensor",
 * is for the sentence. NULL is none. Errors: -EINVAL. */
int sk_name_check(const char *name, const char *what, struct sk_err *err);

#endif
