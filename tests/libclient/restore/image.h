/* SPDX-License-Identifier: Apache-2.0 */
/* Images whose values are a function of the name and the global index. */
#ifndef SK_TESTS_IMAGE_H
#define SK_TESTS_IMAGE_H

#include <stdbool.h>
#include <stdint.h>

#include "layout/layout.h"

#define RANKS_MAX 4

/** Other values for another step. */
extern uint64_t salt;

/** The value of one element; @size is that of its type. */
void put_value(char *to, const char *name, int64_t index, unsigned size);
/** Calls back for each element of a box, in row-major order. */
void each(const struct sk_spec *s, const struct sk_box *box,
	  void (*fn)(void *ctx, int64_t index, const int64_t *in_box),
	  void *ctx);
/** Fills one and gives it to the agent, the layout as well. */
void add_image(struct sk_layout *l, uint64_t run, int64_t step, bool memory,
	       bool disk);

#endif
