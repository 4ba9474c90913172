/* SPDX-License-Identifier: Apache-2.0 */
/* Items by name, entries by name and offset: two tables of indices. */
#include <assert.h>
#include <string.h>

#include "base/table.h"
#include "base/util.h"
#include "layout/private.h"

/* Names come from clients and files: they are not to choose where they lie. */
static uint64_t hash_item(enum sk_item_kind kind, const char *name)
{
	return sk_hash_bytes(sk_hash_seed() + (uint64_t)kind, name,
			     strlen(name));
}

static uint64_t hash_entry(const struct sk_item *item, const int64_t *offset)
{
	return sk_hash_bytes(hash_item(item->kind, item->spec.name), offset,
			     (size_t)item->spec.ndim * sizeof(*offset));
}

int sk_layout_index_items(struct sk_layout *l, struct sk_err *err)
{
	struct sk_table *items = &l->priv->items;

	if (sk_table_reserve(items, l->n_items) < 0)
		return sk_err_set(err, -ENOMEM, "out of memory for a layout");
	for (uint32_t i = 0; i < l->n_items; i++) {
		const struct sk_item *item = &l->items[i];

		if (sk_layout_item(l, item->kind, item->spec.name))
			return sk_err_set(err, -EINVAL, "two %ss are named "
					  "\"%s\"",
					  sk_item_kind_name(item->kind),
					  item->spec.name);
		/* There is room: this cannot fail. */
		(void)sk_table_add(items, hash_item(item->kind,
						    item->spec.name), i);
	}
	return 0;
}

int sk_layout_index_entries(struct sk_layout *l, struct sk_err *err)
{
	struct sk_table *entries = &l->priv->entries;

	if (sk_table_reserve(entries, l->n_entries) < 0)
		return sk_err_set(err, -ENOMEM, "out of memory for a layout");
	for (uint32_t i = 0; i < l->n_entries; i++) {
		const struct sk_entry *e = &l->entries[i];

		assert(e->item < l->n_items);
		(void)sk_table_add(entries, hash_entry(sk_item_of(l, e),
						       e->box.offset), i);
	}
	return 0;
}

const struct sk_entry *sk_layout_entry(const struct sk_layout *l,
				       uint32_t index)
{
	size_t at = sk_count_before(l->n_entries, i,
				    l->entries[i].index < index);

	return at < l->n_entries && l->entries[at].index == index ?
	       &l->entries[at] : NULL;
}

const struct sk_item *sk_layout_item(const struct sk_layout *l,
				     enum sk_item_kind kind, const char *name)
{
	const struct sk_layout *of = l->priv->base ? l->priv->base : l;
	struct sk_table_walk walk = sk_table_find(&of->priv->items,
						  hash_item(kind, name));
	uintptr_t at;

	while (sk_table_next(&walk, &at)) {
		const struct sk_item *item = &l->items[at];

		if (item->kind == kind && !strcmp(item->spec.name, name))
			return item;
	}
	return NULL;
}

const struct sk_entry *sk_layout_find(const struct sk_layout *l,
				      enum sk_item_kind kind,
				      const char *name, const int64_t *offset)
{
	const struct sk_item *item = sk_layout_item(l, kind, name);
	struct sk_table_walk walk;
	uintptr_t at;

	if (!item)
		return NULL;
	walk = sk_table_find(&l->priv->entries, hash_entry(item, offset));
	while (sk_table_next(&walk, &at)) {
		const struct sk_entry *e = &l->entries[at];

		if (sk_item_of(l, e) == item &&
		    !memcmp(e->box.offset, offset,
			    (size_t)item->spec.ndim * sizeof(*offset)))
			return e;
	}
	return NULL;
}
