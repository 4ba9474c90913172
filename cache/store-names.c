/* SPDX-License-Identifier: Apache-2.0 */
/* Store, the names: written and read back in one place, strictly. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "store-private.h"

#define STEP "step-"
#define STEP_DIGITS 12
#define RUN ".run-"
#define RANK "rank-"
#define OF "-of-"
#define RANK_DIGITS 5
#define SUFFIX ".safetensors"
#define TEMPORARY ".tmp"
#define DELETED ".deleted-"
#define RANDOM_DIGITS 16

/* Goes past @word where it stands. */
static bool skip(const char **at, const char *word)
{
	size_t n = strlen(word);

	if (strncmp(*at, word, n) != 0)
		return false;
	*at += n;
	return true;
}

/*
 * Goes past a decimal number of at least @digits digits, with no more zeros
 * before it than that: each number has one spelling.
 */
static bool skip_number(const char **at, int digits, uint64_t max,
			uint64_t *ret_value)
{
	const char *from = *at;
	uint64_t value = 0;
	ptrdiff_t n;

	for (; **at >= '0' && **at <= '9'; (*at)++)
		if (!sk_mul_u64(value, 10, &value) ||
		    !sk_add_u64(value, (uint64_t)(**at - '0'), &value))
			return false;
	n = *at - from;
	if (n < digits || (n > digits && *from == '0') || value > max)
		return false;
	*ret_value = value;
	return true;
}

static bool skip_random(const char **at)
{
	for (int i = 0; i < RANDOM_DIGITS; i++, (*at)++)
		if (!**at || !strchr("0123456789abcdef", **at))
			return false;
	return true;
}

bool sk_decimal_parse(const char *text, uint64_t *ret_value)
{
	uint64_t value;

	if (!skip_number(&text, 1, UINT64_MAX, &value) || *text)
		return false;
	*ret_value = value;
	return true;
}

static bool skip_step(const char **at, struct sk_step_name *step)
{
	uint64_t i;

	if (!skip(at, STEP) ||
	    !skip_number(at, STEP_DIGITS, UINT64_MAX, &step->step))
		return false;
	step->displaced = skip(at, RUN);
	if (!step->displaced)
		return true;
	if (!skip_number(at, 1, UINT64_MAX, &step->run))
		return false;
	return !skip(at, "-") || skip_number(at, 1, UINT32_MAX, &i);
}

bool sk_step_name_parse(const char *name, struct sk_step_name *ret_name)
{
	struct sk_step_name step = { 0 };

	if (!skip_step(&name, &step) || *name)
		return false;
	*ret_name = step;
	return true;
}

void sk_step_name_format(char buf[SK_STORE_NAME_MAX], uint64_t step)
{
	(void)snprintf(buf, SK_STORE_NAME_MAX, STEP "%0*" PRIu64, STEP_DIGITS,
		       step);
}

void sk_step_name_displaced(char buf[SK_STORE_NAME_MAX], uint64_t step,
			    uint64_t run, unsigned i)
{
	int n = snprintf(buf, SK_STORE_NAME_MAX, STEP "%0*" PRIu64 RUN "%"
			 PRIu64, STEP_DIGITS, step, run);

	if (i > 1)
		(void)snprintf(buf + n, SK_STORE_NAME_MAX - (size_t)n, "-%u",
			       i);
}

static bool skip_image(const char **at, int32_t *ret_rank, int32_t *ret_world)
{
	uint64_t rank, world;

	if (!skip(at, RANK) || !skip_number(at, RANK_DIGITS, INT32_MAX, &rank))
		return false;
	if (!skip(at, OF) || !skip_number(at, RANK_DIGITS, INT32_MAX, &world))
		return false;
	if (!skip(at, SUFFIX) || rank >= world)
		return false;
	*ret_rank = (int32_t)rank;
	*ret_world = (int32_t)world;
	return true;
}

bool sk_image_name_parse(const char *name, int32_t *ret_rank,
			 int32_t *ret_world)
{
	int32_t rank, world;

	if (!skip_image(&name, &rank, &world) || *name)
		return false;
	*ret_rank = rank;
	*ret_world = world;
	return true;
}

void sk_image_name_format(char buf[SK_STORE_NAME_MAX], int32_t rank,
			  int32_t world)
{
	(void)snprintf(buf, SK_STORE_NAME_MAX, RANK "%0*" PRId32 OF "%0*"
		       PRId32 SUFFIX, RANK_DIGITS, rank, RANK_DIGITS, world);
}

static int draw(const struct sk_os *os, uint64_t *ret_value,
		struct sk_err *err)
{
	int r = os->random(os, ret_value, sizeof(*ret_value));

	if (r < 0)
		return sk_err_errno(err, r, "cannot draw a temporary name");
	return 0;
}

int sk_temporary_name(const struct sk_os *os, const char *name,
		      char buf[SK_STORE_NAME_MAX], struct sk_err *err)
{
	uint64_t value;
	int r = draw(os, &value, err);

	if (r < 0)
		return r;
	(void)snprintf(buf, SK_STORE_NAME_MAX, ".%s.%0*" PRIx64 TEMPORARY,
		       name, RANDOM_DIGITS, value);
	return 0;
}

int sk_deleted_name(const struct sk_os *os, char buf[SK_STORE_NAME_MAX],
		    struct sk_err *err)
{
	uint64_t value;
	int r = draw(os, &value, err);

	if (r < 0)
		return r;
	(void)snprintf(buf, SK_STORE_NAME_MAX, DELETED "%0*" PRIx64,
		       RANDOM_DIGITS, value);
	return 0;
}

bool sk_leftover_name(const char *name)
{
	struct sk_step_name step;
	const char *at = name;
	int32_t rank, world;

	if (skip(&at, DELETED))
		return skip_random(&at) && !*at;
	if (!skip(&at, "."))
		return false;
	/* What is written under a temporary name, here or by store-dir.c. */
	if (!skip(&at, SK_RUN_FILE) && !skip(&at, SK_OWNER_FILE) &&
	    !skip_image(&at, &rank, &world) && !skip_step(&at, &step))
		return false;
	return skip(&at, ".") && skip_random(&at) && skip(&at, TEMPORARY) &&
	       !*at;
}
