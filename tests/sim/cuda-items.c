/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>

#include "items.h"
#include "trainer.h"

int cuda_items_main(const struct item *items, size_t n, bool sharing)
{
	struct trainer_cuda t;
	struct sk_err err = { "" };

	if (trainer_cuda_open(&t, &err) < 0) {
		fprintf(stderr, "%s\n", err.text);
		return getenv("SHARDKEEP_LIBCUDA") ? 1 : 77;
	}
	if (sharing && !t.driver.cuMemCreate)
		return 77;
	return items_run(items, n, t.calls != NULL) != 0;
}
