/* SPDX-License-Identifier: Apache-2.0 */
#include "restore/whole.h"

#include <assert.h>
#include <inttypes.h>

#include "base/util.h"
#include "layout/coverage.h"

static bool is_present(const struct sk_restore_image *image)
{
	for (uint32_t place = 0; place < SK_PLACES; place++)
		if (image->places[place].there)
			return true;
	return false;
}

int sk_restore_whole(struct sk_restoring *rs)
{
	_cleanup_free_ struct sk_coverage_image *images = NULL;
	struct sk_err err = { "" };
	size_t n = 0;
	int r;

	assert(rs->apart);
	images = calloc(rs->n_images + 1u, sizeof(*images));
	if (!images)
		return sk_err_set(&rs->err, -ENOMEM, "no memory for %u images",
				  rs->n_images);
	for (uint32_t i = 0; i < rs->n_images; i++)
		if (rs->images[i].layout)
			images[n++] = (struct sk_coverage_image){
				rs->images[i].layout,
				is_present(&rs->images[i]) };
	r = sk_coverage_check(images, n, rs->world, &err);
	if (r >= 0)
		return 0;
	/* Boxes that disagree make no snapshot of this one. */
	r = r == -EINVAL || r == -E2BIG ? -ENODATA : r;
	return sk_err_set(&rs->err, r, "step %" PRId64 " of run %" PRIu64
			  " is not complete on the %" PRId32 " nodes of this "
			  "job: %s", rs->report.step, rs->report.run,
			  rs->n_nodes, err.text);
}
