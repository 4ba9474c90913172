/* SPDX-License-Identifier: Apache-2.0 */
#include "disk/earlier.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "disk/stored.h"

int earlier_list(struct earlier *e, const struct sk_cat_snapshot *s)
{
	const struct sk_cat_image *image;

	*e = (struct earlier){
		.images = calloc(s->n_images + 1, sizeof(*e->images)),
		.gone = calloc(s->n_images + 1, sizeof(*e->gone)),
	};
	if (!e->images || !e->gone) {
		earlier_free(e);
		return -ENOMEM;
	}
	sk_link_each(image, &s->images, link) {
		if (image->stored.dir[0] && !image->bad_disk)
			stored_name(image, &e->images[e->n++]);
	}
	return 0;
}

int earlier_look(struct earlier *e, struct sk_store *store,
		 struct sk_err *err)
{
	e->n_gone = sk_store_gone(store, e->images, e->n, e->gone, err);
	return e->n_gone < 0 ? e->n_gone : 0;
}

void earlier_forget(const struct earlier *e, struct sk_cat_snapshot *s)
{
	struct sk_cat_image *image;

	for (size_t i = 0; i < e->n; i++) {
		image = e->gone[i] ?
			sk_cat_image_find(s, e->images[i].rank,
					  SK_IMAGE_PRIMARY) : NULL;
		/* Unless a look at the store knows better by now. */
		if (image && sk_file_id_equal(&image->stored.file,
					      &e->images[i].file) &&
		    image->stored.dir[0])
			sk_cat_stored_remove(image);
	}
}

void earlier_free(struct earlier *e)
{
	free(e->images);
	free(e->gone);
	*e = (struct earlier){ 0 };
}
