/* SPDX-License-Identifier: Apache-2.0 */
#include "disk/earlier.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "disk/stored.h"

int earlier_list(struct earlier *e, const struct sk_cat_image *last)
{
	const struct sk_cat_snapshot *s = last->snapshot;
	const struct sk_cat_image *image;
	struct sk_stored *own;

	*e = (struct earlier){
		.images = calloc(s->n_images + 1, sizeof(*e->images)),
		.gone = calloc(s->n_images + 1, sizeof(*e->gone)),
	};
	if (!e->images || !e->gone) {
		earlier_free(e);
		return -ENOMEM;
	}
	sk_link_each(image, &s->images, link) {
		if (image != last && image->stored.dir[0] && !image->bad_disk)
			stored_name(image, &e->images[e->n++]);
	}
	own = &e->images[e->n++];
	stored_name(last, own);
	(void)snprintf(own->dir, sizeof(own->dir), "step-%012" PRId64,
		       s->step);
	return 0;
}

int earlier_look(struct earlier *e, const struct sk_file_id *file,
		 struct sk_store *store, struct sk_err *err)
{
	const struct sk_stored *own;
	int r;

	if (!e->n)
		return 0;
	e->images[e->n - 1].file = *file;
	own = &e->images[e->n - 1];
	r = sk_store_gone(store, e->images, e->n, e->gone, err);
	if (r < 0)
		return r == -ESTALE ? -EIO : r;
	if (e->gone[e->n - 1])
		return sk_err_set(err, -EAGAIN, "%s/%s/%s went while rank %"
				  PRId32 " was written", sk_store_path(store),
				  own->job, own->dir, own->rank);
	return 0;
}

unsigned earlier_forget(const struct earlier *e, struct sk_cat_snapshot *s)
{
	struct sk_cat_image *image;
	unsigned n = 0;

	for (size_t i = 0; i < e->n; i++) {
		if (!e->gone[i])
			continue;
		n++;
		image = sk_cat_image_find(s, e->images[i].rank,
					  SK_IMAGE_PRIMARY);
		/* Unless a look at the store knows better by now. */
		if (image && image->stored.dir[0] &&
		    sk_file_id_equal(&image->stored.file, &e->images[i].file))
			sk_cat_stored_remove(image);
	}
	return n;
}

void earlier_free(struct earlier *e)
{
	free(e->images);
	free(e->gone);
	*e = (struct earlier){ 0 };
}
