/* SPDX-License-Identifier: Apache-2.0 */
/* Names that stand in headers, which are JSON: of tensors, of dimensions. */
#ifndef SK_CACHE_TENSOR_NAME_H
#define SK_CACHE_TENSOR_NAME_H

#include "base/error.h"

/** UTF-8 of 1 to 1,023 bytes without control characters? @what, as "tensor",
 * is for the sentence. NULL is none. Errors: -EINVAL. Of what is stored, or
 * has to be the same as that: U+0080 to U+009F are no control characters, for
 * older builds let them stand in names. */
int sk_name_check(const char *name, const char *what, struct sk_err *err);
/** The same of what a caller says, who has no use for any of them. */
int sk_name_check_said(const char *name, const char *what, struct sk_err *err);

#endif
