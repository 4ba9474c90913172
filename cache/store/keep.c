/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Store, what is to stay: a step that is pinned has a file ".pinned", whatever
 * is in it, and what is said of a job stands in ".retain" in its directory:
 *
 *   {"version":1,"from":"job","keep_last":3,"keep_every":0,"keep_age_s":0,
 *    "keep_bytes":0}
 *
 * in one line. What a later version would add is refused, not left out.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "store/private.h"

#define TEXT_MAX 512
#define VERSION 1

/* ---- pins ---- */

int sk_step_pinned(const struct sk_store *store, int fd)
{
	struct stat st;
	int r = store->os->fstatat(store->os, fd, SK_PINNED_FILE,
				   AT_SYMLINK_NOFOLLOW, &st);

	return r == 0 ? 1 : r == -ENOENT ? 0 : r;
}

static int unpin(struct sk_store *store, int fd)
{
	int r = store->os->unlinkat(store->os, fd, SK_PINNED_FILE, 0);

	return r < 0 && r != -ENOENT ? r : sk_dir_sync(store->os, fd);
}

static int write_pin(struct sk_store *store, int job_fd, int fd,
		     const char *dir, struct sk_err *err)
{
	int r = sk_dir_write_text(store, fd, SK_PINNED_FILE, "pinned\n", err);
	if (r < 0)
		return sk_err_prefix(err, r, "\"%s\" is not pinned", dir);
	/* Whoever deletes it has looked before, or looks again. */
	r = sk_dir_is(store->os, job_fd, dir, fd);
	if (r == 0)
		return sk_err_set(err, -ENOENT, "\"%s\" went while it was "
				  "being pinned", dir);
	return r < 0 ? sk_err_errno(err, r, "cannot tell whether \"%s\" is "
				    "still there", dir) : 0;
}

static int pin_open(struct sk_store *store, int job_fd, int fd,
		    const char *dir, bool pinned, struct sk_err *err)
{
	int r, before;

	if (!pinned) {
		r = unpin(store, fd);
		return r < 0 ? sk_err_errno(err, r, "cannot unpin \"%s\"",
					    dir) : 0;
	}
	before = sk_step_pinned(store, fd);
	r = write_pin(store, job_fd, fd, dir, err);
	/* What is refused is not there for the next look to find. */
	if (r < 0 && before == 0)
		(void)unpin(store, fd);
	return r;
}

int sk_store_pin(struct sk_store *store, const char *job, const char *dir,
		 const struct sk_store_run *run, bool pinned,
		 struct sk_err *err)
{
	struct sk_step_name step;
	int job_fd, fd, r;

	if (!sk_step_name_parse(dir, &step))
		return sk_err_set(err, -EINVAL, "\"%s\" is not the name of a "
				  "step directory", dir);
	job_fd = sk_store_job_dir(store, job, err);
	if (job_fd < 0)
		return job_fd;
	r = fd = sk_step_open_of(store, job_fd, dir, run, err);
	if (fd >= 0) {
		r = pin_open(store, job_fd, fd, dir, pinned, err);
		store->os->close(store->os, fd);
	}
	store->os->close(store->os, job_fd);
	return r < 0 ? sk_err_prefix(err, r, "job \"%s\"", job) : 0;
}

/* ---- retention ---- */

static const char *const from_names[] = {
	[SK_RETENTION_NONE] = "nobody",
	[SK_RETENTION_DEFAULT] = "default",
	[SK_RETENTION_AGENT] = "agent",
	[SK_RETENTION_JOB] = "job",
	[SK_RETENTION_OPERATOR] = "operator",
};

const char *sk_retention_from_name(enum sk_retention_from from)
{
	return from_names[from];
}

static bool parse_from(const json_t *value, enum sk_retention_from *ret)
{
	const char *text = json_string_value(value);

	for (int i = SK_RETENTION_DEFAULT; text &&
	     i <= SK_RETENTION_OPERATOR; i++) {
		if (strcmp(text, from_names[i]) != 0)
			continue;
		*ret = (enum sk_retention_from)i;
		return true;
	}
	return false;
}

static bool parse_number(const json_t *object, const char *key, uint64_t most,
			 uint64_t *ret)
{
	const json_t *value = json_object_get(object, key);
	json_int_t number = json_integer_value(value);

	if (!json_is_integer(value) || number < 0 || (uint64_t)number > most)
		return false;
	*ret = (uint64_t)number;
	return true;
}

static bool parse(const json_t *root, enum sk_retention_from *ret_from,
		  struct sk_retention *ret)
{
	uint64_t version, last, every, age, bytes;

	if (!parse_number(root, "version", VERSION, &version) ||
	    version != VERSION || json_object_size(root) != 6 ||
	    !parse_number(root, "keep_last", UINT32_MAX, &last) ||
	    !parse_number(root, "keep_every", UINT32_MAX, &every) ||
	    !parse_number(root, "keep_age_s", INT64_MAX, &age) ||
	    !parse_number(root, "keep_bytes", INT64_MAX, &bytes) ||
	    !parse_from(json_object_get(root, "from"), ret_from))
		return false;
	*ret = (struct sk_retention){
		.keep_last = (uint32_t)last, .keep_every = (uint32_t)every,
		.keep_age_s = age, .keep_bytes = bytes,
	};
	return true;
}

int sk_store_job_text(struct sk_store *store, const char *job,
		      const char *name, char *text, size_t room,
		      struct sk_err *err)
{
	int fd = sk_store_job_dir(store, job, err), r;

	if (fd < 0)
		return sk_is_gone(fd) ? 1 : fd;
	r = sk_dir_read_text(store->os, fd, name, text, room);
	store->os->close(store->os, fd);
	if (r < 0 && r != -ENOENT && r != -EBADMSG)
		return sk_err_errno(err, r, "cannot read %s/%s/%s",
				    store->path, job, name);
	if (r == -EBADMSG)
		*text = 0;	/* as any other that makes no sense */
	return r == -ENOENT;
}

int sk_store_retention(struct sk_store *store, const char *job,
		       enum sk_retention_from *ret_from,
		       struct sk_retention *ret, struct sk_err *err)
{
	char text[TEXT_MAX];
	json_t *root;
	bool good;
	int r;

	*ret_from = SK_RETENTION_NONE;
	r = sk_store_job_text(store, job, SK_RETAIN_FILE, text, sizeof(text),
			      err);
	if (r)
		return r < 0 ? r : 0;
	root = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
	good = root && parse(root, ret_from, ret);
	json_decref(root);
	if (!good)
		return sk_err_set(err, -EBADMSG, "%s/%s/%s makes no sense, so "
				  "nothing of job \"%s\" is deleted; \"cachectl "
				  "retain %s\" with what is to stay writes it "
				  "anew", store->path, job, SK_RETAIN_FILE,
				  job, job);
	return 0;
}

static int remove_retention(struct sk_store *store, int fd, struct sk_err *err)
{
	int r = store->os->unlinkat(store->os, fd, SK_RETAIN_FILE, 0);

	if (r == 0 || r == -ENOENT)
		r = sk_dir_sync(store->os, fd);
	return r < 0 ? sk_err_errno(err, r, "cannot remove \"%s\"",
				    SK_RETAIN_FILE) : 0;
}

int sk_store_set_retention(struct sk_store *store, const char *job,
			   enum sk_retention_from from,
			   const struct sk_retention *r, struct sk_err *err)
{
	char text[TEXT_MAX];
	int fd, result;

	fd = sk_store_job_dir(store, job, err);
	if (fd < 0)
		return fd;
	(void)snprintf(text, sizeof(text), "{\"version\":%d,\"from\":\"%s\","
		       "\"keep_last\":%" PRIu32 ",\"keep_every\":%" PRIu32
		       ",\"keep_age_s\":%" PRIu64 ",\"keep_bytes\":%" PRIu64
		       "}\n", VERSION, from_names[from], r->keep_last,
		       r->keep_every, r->keep_age_s, r->keep_bytes);
	result = from == SK_RETENTION_NONE ?
		 remove_retention(store, fd, err) :
		 sk_dir_write_text(store, fd, SK_RETAIN_FILE, text, err);
	store->os->close(store->os, fd);
	if (result == -EISDIR)
		return sk_err_set(err, result, "%s/%s/%s is a directory: "
				  "remove it first", store->path, job,
				  SK_RETAIN_FILE);
	return result < 0 ? sk_err_prefix(err, result, "what is to stay of job "
					  "\"%s\"", job) : 0;
}
