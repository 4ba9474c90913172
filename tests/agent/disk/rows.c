/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/disk/rows.h"

#include <criterion/criterion.h>

#include "tensor/mesh.h"

struct sk_cat_layout *row_of(struct sk_catalogue *cat, int rank, int world)
{
	struct sk_item item = {
		.spec = { .name = "w", .dtype = SK_F32, .ndim = 1,
			  .shape = { 8 * world },
			  .placements = { SK_SHARD(0) } } };
	struct sk_layout *l = NULL;
	struct sk_mesh *mesh = NULL;

	cr_assert_eq(sk_mesh_new(1, (int64_t[]){ world }, NULL, NULL, &mesh,
				 NULL), 0);
	item.spec.mesh = mesh;
	cr_assert_eq(sk_layout_new("job", rank, world, SK_IMAGE_PRIMARY,
				   &item, 1, &l, NULL), 0);
	sk_mesh_unref(mesh);
	return sk_cat_layout_take(cat, l);
}
