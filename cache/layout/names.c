/* SPDX-License-Identifier: Apache-2.0 */
/* What things are called: jobs, kinds, digests, and entries in a header. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "layout/private.h"

int sk_job_check(const char *job, struct sk_err *err)
{
	size_t n = strnlen(job, SK_JOB_MAX + 1);

	if (!n || n > SK_JOB_MAX || job[0] == '.')
		return sk_err_set(err, -EINVAL, "\"%.40s\" is not a job name: "
				  "1 to %d characters, not starting with a "
				  "dot", job, SK_JOB_MAX);
	for (size_t i = 0; i < n; i++)
		if (!strchr("abcdefghijklmnopqrstuvwxyz"
			    "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-",
			    job[i]))
			return sk_err_set(err, -EINVAL, "job name \"%.40s\" "
					  "has a character other than letters, "
					  "digits, dot, underscore and hyphen",
					  job);
	return 0;
}

const char *sk_item_kind_name(enum sk_item_kind kind)
{
	static const char *const names[] = {
		[SK_ITEM_TENSOR] = "tensor",
		[SK_ITEM_BLOB] = "blob",
		[SK_ITEM_BLOB_LOCAL] = "local",
	};

	return names[kind];
}

bool sk_digest_equal(const struct sk_digest *a, const struct sk_digest *b)
{
	return memcmp(a->bytes, b->bytes, sizeof(a->bytes)) == 0;
}

char *sk_digest_format(const struct sk_digest *d, char buf[33])
{
	for (int i = 0; i < 16; i++)
		(void)snprintf(buf + 2 * i, 3, "%02x", d->bytes[i]);
	return buf;
}

/* Most keys are names: without printf, for there are thousands. */
static void copy_name(char *buf, const char *name, size_t size)
{
	size_t n = strnlen(name, size - 1);

	assert(size);
	memcpy(buf, name, n);
	buf[n] = 0;
}

char *sk_layout_key(const struct sk_layout *l, const struct sk_entry *e,
		    char *buf, size_t size)
{
	const struct sk_item *item = sk_item_of(l, e);
	const char *name = item->spec.name;

	if (item->kind == SK_ITEM_BLOB)
		(void)snprintf(buf, size, "shardkeep.blob.%s", name);
	else if (item->kind == SK_ITEM_BLOB_LOCAL)
		(void)snprintf(buf, size, "shardkeep.local.%d.%s", l->rank,
			       name);
	else if (e->box_index)
		(void)snprintf(buf, size, "shardkeep.box.%u.%s",
			       e->box_index, name);
	else
		copy_name(buf, name, size);
	return buf;
}
