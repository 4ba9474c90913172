/* SPDX-License-Identifier: Apache-2.0 */
#include "restore/whole.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>

#include "base/util.h"
#include "layout/agreement.h"
#include "layout/coverage.h"
#include "restore/images.h"
#include "restore/open.h"

static bool is_present(const struct sk_restore_image *image)
{
	for (uint32_t place = 0; place < SK_PLACES; place++)
		if (image->places[place].there)
			return true;
	return false;
}

/* Ranks of several nodes told each other what arithmetic does not give. */
static int know_all(struct sk_restoring *rs)
{
	int r = 0;

	for (uint32_t i = 0; i < rs->n_images; i++) {
		r = rs->apart ? sk_restore_derive(rs, i) :
				sk_restore_know(rs, i);
		if (r < 0 && r != -ENOENT)
			return r;
	}
	return 0;
}

static int no_memory(struct sk_restoring *rs)
{
	return sk_err_set(&rs->err, -ENOMEM, "no memory for %u images",
			  rs->n_images);
}

int sk_restore_not_whole(struct sk_restoring *rs, int r,
			 const struct sk_err *why)
{
	const char *where = rs->local ? "on this node" : "any more";
	char nodes[48];

	if (rs->flags & (SK_RESTORE_MEMORY_ONLY | SK_RESTORE_DISK_ONLY))
		where = sk_restore_where(rs->flags & SK_RESTORE_DISK_ONLY);
	(void)snprintf(nodes, sizeof(nodes), "on the %" PRId32
		       " nodes of this job", rs->n_nodes);
	return sk_err_set(&rs->err, r, "step %" PRId64 " of run %" PRIu64
			  " is not complete %s: %s", rs->report.step,
			  rs->report.run, rs->apart ? nodes : where,
			  why->text);
}

/* Of several nodes, most often: by what ranks describe, whatever its length. */
static int is_whole(struct sk_restoring *rs, bool *ret_covered)
{
	_cleanup_free_ struct sk_coverage_like *like = NULL;
	struct sk_err err = { "" };
	int r;

	like = calloc(rs->n_images + 1u, sizeof(*like));
	if (!like)
		return no_memory(rs);
	for (uint32_t i = 0; i < rs->n_images; i++) {
		const struct sk_restore_image *image = &rs->images[i];

		like[i] = (struct sk_coverage_like){
			sk_restore_described(rs, image->description),
			image->rank, (enum sk_image_kind)image->kind,
			is_present(image) };
		assert(like[i].like);
	}
	r = sk_coverage_follows(like, rs->n_images, rs->world, ret_covered,
				&err);
	return r < 0 ? sk_restore_not_whole(rs, r, &err) : 0;
}

/* Ranks without a primary image, whatever is wrong with it; images are by
 * rank. */
static void count_lost(struct sk_restoring *rs)
{
	int32_t next = 0;

	rs->n_lost = 0;
	for (uint32_t i = 0; i <= rs->n_images; i++) {
		int32_t rank = i < rs->n_images ? rs->images[i].rank :
						  rs->world;

		if (i < rs->n_images &&
		    rs->images[i].kind != SK_IMAGE_PRIMARY)
			continue;
		if (rank > next && !rs->n_lost)
			rs->first_lost = next;
		rs->n_lost += rank > next ? rank - next : 0;
		next = rank + 1;
	}
}

/* What is asked for may be there all the same, for what ranks hold in common
 * other nodes have as well: the plan tells. */
static int check(struct sk_restoring *rs,
		 const struct sk_coverage_image *images, size_t n,
		 struct sk_err *err)
{
	return rs->n_lost ? sk_coverage_agree(images, n, err) :
			    sk_coverage_check(images, n, rs->world, err);
}

static int look_at_all(struct sk_restoring *rs)
{
	_cleanup_free_ struct sk_coverage_image *images = NULL;
	struct sk_err err = { "" };
	size_t n = 0;
	int r;

	r = know_all(rs);
	if (r < 0)
		return r;
	images = calloc(rs->n_images + 1u, sizeof(*images));
	if (!images)
		return no_memory(rs);
	for (uint32_t i = 0; i < rs->n_images; i++)
		if (rs->images[i].layout)
			images[n++] = (struct sk_coverage_image){
				rs->images[i].layout,
				is_present(&rs->images[i]) };
	r = check(rs, images, n, &err);
	if (r >= 0)
		return 0;
	/* Boxes that disagree make no snapshot of this one. */
	r = r == -EINVAL || r == -E2BIG ? -ENODATA : r;
	return sk_restore_not_whole(rs, r, &err);
}

int sk_restore_whole(struct sk_restoring *rs)
{
	bool covered = false;
	int r;

	/* Who names some of it relies on the snapshot being one. */
	if ((rs->apart || rs->local) && !rs->names)
		count_lost(rs);
	r = rs->follow && !rs->n_lost ? is_whole(rs, &covered) : 0;
	return r < 0 || covered ? r : look_at_all(rs);
}
