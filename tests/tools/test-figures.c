/* SPDX-License-Identifier: Apache-2.0 */
/* Figures are real numbers, and what is shown of some whole ones. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdint.h>

#include "figures.h"

Test(figures, whole_numbers_end_where_those_of_the_table_do)
{
	cr_assert_eq(figure_whole(0), 0);
	cr_assert_eq(figure_whole(-1.5), -1);
	cr_assert_eq(figure_whole(12e9), INT64_C(12000000000));
	/* The last step that there can be is none of these, rounded. */
	cr_assert_eq(figure_whole((double)INT64_MAX), INT64_MAX);
	cr_assert_eq(figure_whole(INFINITY), INT64_MAX);
	cr_assert_eq(figure_whole(-INFINITY), INT64_MIN);
	cr_assert_eq(figure_whole(NAN), 0);
}
