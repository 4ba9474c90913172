/* SPDX-License-Identifier: Apache-2.0 */
/* Layouts of ranks that have a row of one tensor each. */
#ifndef SK_TESTS_AGENT_DISK_ROWS_H
#define SK_TESTS_AGENT_DISK_ROWS_H

#include "catalogue/catalogue.h"

/** The primary image of @rank of @world in job "job", as the catalogue keeps
 * it: "w", 8 elements of F32 a rank. */
struct sk_cat_layout *row_of(struct sk_catalogue *cat, int rank, int world);

#endif
