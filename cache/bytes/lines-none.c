/* SPDX-License-Identifier: Apache-2.0 */
#include "bytes/lines.h"

const struct sk_lines *sk_lines_at(unsigned i)
{
	(void)i;
	return NULL;
}
