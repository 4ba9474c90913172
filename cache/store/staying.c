/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Store, what the ranks of several agents say that stays of a job: ".agreed" in
 * its directory,
 *
 *   {"version":1,"run":2,"run_id":"00000000000000a7","steps":[40,50],
 *    "before":[[1,"00000000000000a6",30]]}
 *
 * in one line. What a later version would add is refused, not left out.
 */
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/private.h"

#define TEXT_MAX 1024
#define VERSION 1

static bool parse_id(const json_t *value, uint64_t *ret)
{
	const char *text = json_string_value(value);
	char *end;

	if (!text || strlen(text) != 16 ||
	    strspn(text, "0123456789abcdef") != 16)
		return false;
	*ret = strtoull(text, &end, 16);
	return true;
}

static bool parse_run(const json_t *value, uint64_t *ret)
{
	if (!json_is_integer(value) || json_integer_value(value) < 0)
		return false;
	*ret = (uint64_t)json_integer_value(value);
	return true;
}

static bool parse_step(const json_t *value, int64_t *ret)
{
	if (!json_is_integer(value) || json_integer_value(value) < -1)
		return false;
	*ret = json_integer_value(value);
	return true;
}

static bool parse_before(const json_t *list, struct sk_staying *ret)
{
	size_t n = json_array_size(list);

	if (!json_is_array(list) || n > SK_STAY_MOST)
		return false;
	for (size_t i = 0; i < n; i++) {
		const json_t *one = json_array_get(list, i);
		struct sk_stay *s = &ret->before[i];

		if (json_array_size(one) != 3 ||
		    !parse_run(json_array_get(one, 0), &s->run) ||
		    !parse_id(json_array_get(one, 1), &s->run_id) ||
		    !parse_step(json_array_get(one, 2), &s->step))
			return false;
	}
	ret->n_before = (uint32_t)n;
	return true;
}

static bool parse(const json_t *root, struct sk_staying *ret)
{
	const json_t *steps = json_object_get(root, "steps");

	return json_integer_value(json_object_get(root, "version")) ==
		       VERSION &&
	       json_object_size(root) == 5 &&
	       parse_run(json_object_get(root, "run"), &ret->run) &&
	       parse_id(json_object_get(root, "run_id"), &ret->run_id) &&
	       json_array_size(steps) == 2 &&
	       parse_step(json_array_get(steps, 0), &ret->steps[0]) &&
	       parse_step(json_array_get(steps, 1), &ret->steps[1]) &&
	       parse_before(json_object_get(root, "before"), ret);
}

int sk_store_staying(struct sk_store *store, const char *job,
		     struct sk_staying *ret, struct sk_err *err)
{
	struct sk_staying found = { 0 };
	char text[TEXT_MAX];
	json_t *root;
	bool good;
	int r;

	*ret = found;
	r = sk_store_job_text(store, job, SK_AGREED_FILE, text, sizeof(text),
			      err);
	if (r)
		return r < 0 ? r : 0;
	root = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
	good = root && parse(root, &found);
	json_decref(root);
	if (!good)
		return sk_err_set(err, -EBADMSG, "%s/%s/%s makes no sense, so "
				  "nothing of job \"%s\" is deleted; remove it",
				  store->path, job, SK_AGREED_FILE, job);
	*ret = found;
	return 0;
}

int sk_store_set_staying(struct sk_store *store, const char *job,
			 const struct sk_staying *st, struct sk_err *err)
{
	char text[TEXT_MAX];
	int fd, n, r;

	n = snprintf(text, sizeof(text), "{\"version\":%d,\"run\":%" PRIu64
		     ",\"run_id\":\"%016" PRIx64 "\",\"steps\":[%" PRId64
		     ",%" PRId64 "],\"before\":[", VERSION, st->run,
		     st->run_id, st->steps[0], st->steps[1]);
	for (uint32_t i = 0; i < st->n_before; i++)
		n += snprintf(text + n, sizeof(text) - (size_t)n, "%s[%" PRIu64
			      ",\"%016" PRIx64 "\",%" PRId64 "]",
			      i ? "," : "", st->before[i].run,
			      st->before[i].run_id, st->before[i].step);
	(void)snprintf(text + n, sizeof(text) - (size_t)n, "]}\n");
	fd = sk_store_job_dir(store, job, err);
	if (fd < 0)
		return fd;
	r = sk_dir_write_text(store, fd, SK_AGREED_FILE, text, err);
	store->os->close(store->os, fd);
	return r < 0 ? sk_err_prefix(err, r, "what ranks of job \"%s\" agree "
				     "on", job) : 0;
}
