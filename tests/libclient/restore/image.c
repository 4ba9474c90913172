/* SPDX-License-Identifier: Apache-2.0 */
#include "image.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "bytes/checksum.h"
#include "stub-agent.h"
#include "tensor/box.h"
#include "tensor/dtype.h"

uint64_t salt;

void put_value(char *to, const char *name, int64_t index, unsigned size)
{
	uint64_t v = sk_xxh3(name, strlen(name)) + (uint64_t)index + salt;

	v *= 0x9e3779b97f4a7c15u;
	v ^= v >> 29;
	memcpy(to, &v, size);
}

static int64_t global_index(int ndim, const int64_t *shape,
			    const int64_t *at)
{
	int64_t i = 0;

	for (int d = 0; d < ndim; d++)
		i = i * shape[d] + at[d];
	return i;
}

void each(const struct sk_spec *s, const struct sk_box *box,
	  void (*fn)(void *ctx, int64_t index, const int64_t *in_box),
	  void *ctx)
{
	int64_t n = sk_box_volume(s->ndim, box), at[SK_MAX_DIMS],
		in[SK_MAX_DIMS];

	for (int64_t i = 0; i < n; i++) {
		int64_t rest = i;

		for (int d = s->ndim - 1; d >= 0; d--) {
			in[d] = rest % box->size[d];
			at[d] = in[d] + box->offset[d];
			rest /= box->size[d];
		}
		fn(ctx, global_index(s->ndim, s->shape, at), in);
	}
}

struct filling {
	char *to;
	const char *name;
	unsigned size;
};

static void fill_one(void *ctx, int64_t index, const int64_t *in)
{
	struct filling *f = ctx;

	(void)in;
	put_value(f->to, f->name, index, f->size);
	f->to += f->size;
}

static char own_name[IMAGES_MAX][32];

static const char *value_name(const struct sk_layout *l,
			      const struct sk_item *item)
{
	if (item->kind != SK_ITEM_BLOB_LOCAL)
		return item->spec.name;
	(void)snprintf(own_name[l->rank], sizeof(own_name[0]), "%s@%d",
		       item->spec.name, l->rank);
	return own_name[l->rank];
}

static void fill_entry(const struct sk_layout *l, const struct sk_entry *e,
		       char *data, uint64_t *sums)
{
	const struct sk_item *item = &l->items[e->item];
	struct filling f = {
		.to = data + e->offset,
		.name = value_name(l, item),
		.size = sk_dtype_bits(item->spec.dtype) / 8,
	};

	each(&item->spec, &e->box, fill_one, &f);
	for (uint64_t k = 0; k < e->n_sums; k++) {
		uint64_t from = k * SK_SUM_CHUNK;
		uint64_t n = e->bytes - from;

		n = n < SK_SUM_CHUNK ? n : SK_SUM_CHUNK;
		sums[e->first_sum + k] = sk_xxh3(data + e->offset + from, n);
	}
}

void add_image(struct sk_layout *l, uint64_t run, int64_t step,
	       bool memory, bool disk)
{
	struct sk_stamp stamp = { .run = run, .run_id = agent.run_id,
				  .step = (uint64_t)step };
	struct image *i = &agent.images[agent.n++];
	char *data = calloc(1, l->image_bytes);

	cr_assert(agent.n <= IMAGES_MAX);
	stamp.sums = calloc(l->n_sums + 1, sizeof(*stamp.sums));
	for (uint32_t k = 0; k < l->n_entries; k++)
		fill_entry(l, &l->entries[k], data, stamp.sums);
	sk_layout_stamp(l, &stamp, data);
	*i = (struct image){
		.layout = l, .run = run, .run_id = agent.run_id, .step = step,
		.memory = memory ? memfd_of(data, l->image_bytes) : -1,
		.disk = disk ? memfd_of(data, l->image_bytes) : -1,
		.header = memfd_of(data, l->header_bytes),
		.sums = memfd_of(stamp.sums, l->n_sums * sizeof(uint64_t)),
	};
	free(stamp.sums);
	free(data);
}
