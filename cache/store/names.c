/* SPDX-License-Identifier: Apache-2.0 */
/* Store, the names: written and read back in one place, strictly. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "bytes/checksum.h"
#include "store/private.h"

#define STEP "step-"
#define STEP_DIGITS 12
#define RUN ".run-"
#define RANK "rank-"
#define OF "-of-"
#define RANK_DIGITS 5
#define SUFFIX ".safetensors"
#define TEMPORARY ".tmp"
#define DELETED ".deleted-"
#define ALIVE ".agent-"
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

static bool skip_hex(const char **at, uint64_t *ret_value)
{
	const char *from = *at;

	if (!skip_random(at))
		return false;
	*ret_value = strtoull(from, NULL, 16);
	return true;
}

/* The checksum is of what stands before it. */
void sk_run_text_format(char buf[SK_RUN_TEXT_MAX],
			const struct sk_store_run *run)
{
	int n = snprintf(buf, SK_RUN_TEXT_MAX, "%" PRIu64 " %0*" PRIx64,
			 run->number, RANDOM_DIGITS, run->id);

	(void)snprintf(buf + n, SK_RUN_TEXT_MAX - (size_t)n, " %016" PRIx64,
		       sk_xxh3(buf, (size_t)n));
}

bool sk_run_text_parse(const char *text, struct sk_store_run *ret_run)
{
	struct sk_store_run run;
	char again[SK_RUN_TEXT_MAX];
	const char *at = text;

	if (!skip_number(&at, 1, SK_RUN_MAX, &run.number) || !run.number ||
	    !skip(&at, " ") || !skip_hex(&at, &run.id) || !run.id)
		return false;
	sk_run_text_format(again, &run);
	if (strcmp(text, again) != 0)
		return false;
	*ret_run = run;
	return true;
}

static bool skip_step(const char **at, struct sk_step_name *step)
{
	uint64_t i;

	if (!skip(at, STEP) ||
	    !skip_number(at, STEP_DIGITS, INT64_MAX, &step->step))
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

/* Ours, which says that we live before anything bears it, and then one number
 * after another. */
static void format_id(struct sk_store *store, char id[RANDOM_DIGITS + 1])
{
	sk_store_live(store);
	(void)snprintf(id, RANDOM_DIGITS + 1, "%08" PRIx32 "%08x",
		       store->instance, atomic_fetch_add(&store->names, 1));
}

void sk_temporary_name(struct sk_store *store, const char *name,
		       char buf[SK_STORE_NAME_MAX])
{
	char id[RANDOM_DIGITS + 1];

	format_id(store, id);
	(void)snprintf(buf, SK_STORE_NAME_MAX, ".%s.%s" TEMPORARY, name, id);
}

void sk_deleted_name(struct sk_store *store, const char *name, uint64_t inode,
		     char buf[SK_STORE_NAME_MAX])
{
	char id[RANDOM_DIGITS + 1];

	format_id(store, id);
	(void)snprintf(buf, SK_STORE_NAME_MAX, DELETED "%s-%0*" PRIx64 "-%s",
		       id, RANDOM_DIGITS, inode, name);
}

static bool skip_id(const char **at, uint32_t *ret_instance)
{
	uint64_t id;

	if (!skip_hex(at, &id))
		return false;
	*ret_instance = (uint32_t)(id >> 32);
	return true;
}

/* What comes behind DELETED. */
static bool skip_deleted(const char *at, struct sk_leftover *left)
{
	struct sk_step_name step;

	if (!skip_id(&at, &left->instance) || !skip(&at, "-") ||
	    !skip_hex(&at, &left->inode) || !skip(&at, "-"))
		return false;
	left->of = at;
	return sk_step_name_parse(at, &step);
}

bool sk_leftover_name(const char *name, struct sk_leftover *ret_left)
{
	struct sk_step_name step;
	const char *at = name;
	int32_t rank, world;

	*ret_left = (struct sk_leftover){ 0 };
	if (skip(&at, DELETED))
		return skip_deleted(at, ret_left);
	if (!skip(&at, "."))
		return false;
	/* What is written under a temporary name, here or by dir.c. */
	if (!skip(&at, SK_RUN_FILE) && !skip(&at, SK_OWNER_FILE) &&
	    !skip(&at, SK_PINNED_FILE) && !skip(&at, SK_RETAIN_FILE) &&
	    !skip(&at, SK_AGREED_FILE) &&
	    !skip(&at, SK_INDEX_TEMPORARY) &&
	    !skip_image(&at, &rank, &world) && !skip_step(&at, &step))
		return false;
	return skip(&at, ".") && skip_id(&at, &ret_left->instance) &&
	       skip(&at, TEMPORARY) && !*at;
}

void sk_alive_name_format(char buf[SK_STORE_NAME_MAX], uint32_t instance)
{
	(void)snprintf(buf, SK_STORE_NAME_MAX, ALIVE "%08" PRIx32, instance);
}

bool sk_alive_name_parse(const char *name, uint32_t *ret_instance)
{
	char again[SK_STORE_NAME_MAX];
	const char *at = name;

	if (!skip(&at, ALIVE))
		return false;
	*ret_instance = (uint32_t)strtoul(at, NULL, 16);
	sk_alive_name_format(again, *ret_instance);
	return strcmp(name, again) == 0;
}

void sk_restoring_name(struct sk_store *store, const char *job,
		       char buf[SK_RESTORING_NAME_MAX])
{
	char id[RANDOM_DIGITS + 1];

	format_id(store, id);
	(void)snprintf(buf, SK_RESTORING_NAME_MAX, "%s-%s", id, job);
}

bool sk_restoring_name_parse(const char *name, uint32_t *ret_instance,
			     const char **ret_job)
{
	const char *at = name;

	if (!skip_id(&at, ret_instance) || !skip(&at, "-"))
		return false;
	*ret_job = at;
	return sk_job_check(at, NULL) == 0;
}
