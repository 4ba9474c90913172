/* SPDX-License-Identifier: Apache-2.0 */
#include "revive/sealed.h"

#include <stdlib.h>
#include <string.h>

#include "agent.h"
#include "base/util.h"

static int read_layout(const struct agent *a, struct left *e, int kind,
		       const void *header, struct sk_err *err)
{
	const struct table_record *r = &e->record;
	struct sk_layout **ret = &e->layouts[kind];
	int result = sk_recall_get(a->recall, r->job, r->rank,
				   (enum sk_image_kind)kind, header,
				   r->header_bytes[kind],
				   r->image_bytes[kind], ret, err);

	if (result < 0)
		return result;
	if (sk_digest_equal(&(*ret)->digest, &r->digests[kind]) &&
	    (*ret)->header_bytes == r->header_bytes[kind] &&
	    (*ret)->image_bytes == r->image_bytes[kind] &&
	    (*ret)->image_bytes <= r->kind_bytes[kind])
		return 0;
	return sk_err_set(err, -EBADMSG, "its header is of another layout");
}

static int read_stamp(struct left *e, int kind, const void *header,
		      struct sk_err *err)
{
	const struct table_record *r = &e->record;
	const struct sk_layout *l = e->layouts[kind];
	struct sk_stamp stamp = { 0 };
	int result;

	stamp.sums = calloc((size_t)l->n_sums + 1, sizeof(*stamp.sums));
	if (!stamp.sums)
		return sk_err_set(err, -ENOMEM, "no memory for a header");
	e->sums[kind] = stamp.sums;
	result = sk_layout_read_stamp(l, header, &stamp, err);
	if (result < 0)
		return result;
	sk_cat_hash_sums(l, stamp.sums, e->content[kind]);
	if (stamp.run == r->run && stamp.run_id == r->run_id &&
	    stamp.step == (uint64_t)r->step &&
	    memcmp(e->content[kind], r->content[kind].bytes,
		   sizeof(e->content[kind])) == 0)
		return 0;
	return sk_err_set(err, -EBADMSG, "its stamp is not the one that was "
			  "sealed");
}

static int read_image(const struct agent *a, struct left *e, int kind,
		      struct sk_err *err)
{
	const struct sk_os *os = a->os;
	uint64_t bytes = e->record.header_bytes[kind];
	_cleanup_free_ void *header = malloc(bytes + 1);
	int r;

	if (!header)
		return sk_err_set(err, -ENOMEM, "no memory for a header");
	if (os->pread(os, e->fds[kind], header, bytes, 0) != (ssize_t)bytes)
		return sk_err_set(err, -EIO, "its header cannot be read");
	r = read_layout(a, e, kind, header, err);
	return r < 0 ? r : read_stamp(e, kind, header, err);
}

/* ---- what is sealed on a device ---- */

static int read_template(const struct agent *a, struct left *e, int kind,
			 uint64_t at, struct sk_err *err)
{
	const struct table_record *r = &e->record;
	uint64_t bytes = r->header_bytes[kind];
	_cleanup_free_ void *header = NULL;
	int result;

	if (bytes > SK_HEADER_MAX + 2ull * SK_PAGE)
		return sk_err_set(err, -EBADMSG, "it is not what its slot is "
				  "to hold");
	header = malloc(bytes + 1);
	if (!header)
		return sk_err_set(err, -ENOMEM, "no memory for a header");
	if (a->os->pread(a->os, e->fds[1], header, bytes, (off_t)at) !=
	    (ssize_t)bytes)
		return sk_err_set(err, -EIO, "what it holds cannot be read");
	result = sk_layout_parse(header, bytes, r->image_bytes[kind],
				 &e->layouts[kind], err);
	if (result < 0)
		return result;
	return sk_digest_equal(&e->layouts[kind]->digest, &r->digests[kind]) ?
	       0 : sk_err_set(err, -EBADMSG, "it is of another layout");
}

static int read_templates(const struct agent *a, struct left *e,
			  struct sk_err *err)
{
	const struct table_record *r = &e->record;
	uint64_t at = 0;
	int result = 0;

	for (int kind = 0; kind < 2 && result == 0; kind++) {
		if (r->header_bytes[kind])
			result = read_template(a, e, kind, at, err);
		at += r->header_bytes[kind];
	}
	return result;
}

/* ---- either ---- */

static bool stands_alone(const struct left *e)
{
	return left_is_device(e) && !left_is_copy(e) && e->record.step >= 0;
}

uint64_t sealed_bytes(const struct left *e)
{
	const struct table_record *r = &e->record;

	if (!r->serial || (r->use != TABLE_SEALED && !stands_alone(e)))
		return 0;
	/* Of none as well it is to be seen that it is none. */
	return r->header_bytes[0] + r->header_bytes[1] + 1;
}

int sealed_read(const struct agent *a, struct left *e, struct sk_err *err)
{
	int r = 0;

	if (!sealed_bytes(e))
		return 0;
	if (left_is_device(e))
		return read_templates(a, e, err);
	for (int kind = 0; kind < 2 && r == 0; kind++) {
		if (e->record.kind_bytes[kind])
			r = read_image(a, e, kind, err);
	}
	return r;
}

/* ---- the slots of what is sealed on a device ---- */

/* Its slot, in which nothing has been sealed yet. */
static struct left *stood_for(struct left *first, uint32_t n,
			       const struct left *device)
{
	const struct table_record *r = &device->record;

	for (uint32_t i = 0; i < n; i++) {
		struct left *e = &first[i];

		if (r->stands_for && e->record.serial == r->stands_for &&
		    e->record.use == TABLE_FILLING &&
		    e->record.step == r->step)
			return e;
	}
	return NULL;
}

/* The slot gets layouts, which it had no header to tell by. */
static int match(struct left *device, struct left *slot, struct sk_err *err)
{
	const struct table_record *r = &device->record, *of = &slot->record;

	if (device->why)
		return sk_err_set(err, -EBADMSG, "%s", device->why);
	for (int kind = 0; kind < 2; kind++) {
		if (!of->kind_bytes[kind] != !r->header_bytes[kind] ||
		    r->image_bytes[kind] > of->kind_bytes[kind])
			return sk_err_set(err, -EBADMSG, "it is not what its "
					  "slot is to hold");
		slot->layouts[kind] = sk_take_ptr(device->layouts[kind]);
	}
	slot->device = device;
	return 0;
}

/* It was sealed there just when the agent was killed. */
static bool is_over(const struct left *first, uint32_t n,
		    const struct left *device)
{
	for (uint32_t i = 0; i < n; i++)
		if (first[i].record.serial == device->record.stands_for &&
		    first[i].record.use == TABLE_SEALED &&
		    first[i].record.step == device->record.step)
			return true;
	return false;
}

/* Only what stands for a slot is of any use, or is a copy of what one holds:
 * for all else, the process that might want it has it mapped. */
void sealed_match(struct reviving *v, struct left *first, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		struct left *e = &first[i], *slot;
		struct sk_err err = { "the slot that it stood for did not" };

		if (!e->record.serial || !left_is_device(e) || left_is_copy(e))
			continue;
		slot = stood_for(first, n, e);
		if (e->record.step < 0 || is_over(first, n, e))
			left_forget(v, e);
		else if (!slot || match(e, slot, &err) < 0)
			left_lose(v, e, err.text);
	}
}
