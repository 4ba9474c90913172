/* SPDX-License-Identifier: Apache-2.0 */
#include "inspect/layouts.h"

#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>

#include "base/util.h"
#include "conn/list.h"

static int read_header(const struct sk_layouts *ls,
		       const struct sk_wire_part *part,
		       const struct sk_opened_image *o,
		       struct sk_layout **ret, struct sk_err *err)
{
	const struct sk_os *os = ls->sk->os;
	void *map;
	int r = os->mmap(os, NULL, o->header_bytes, PROT_READ, MAP_SHARED,
			 o->header, 0, &map);

	if (r < 0)
		return sk_err_errno(err, r, "cannot map an image's header");
	r = sk_recall_get(ls->sk->recall, ls->id.job, part->rank,
			  (enum sk_image_kind)part->kind, map, o->header_bytes,
			  o->image_bytes, ret, err);
	(void)os->munmap(os, map, o->header_bytes);
	return r;
}

static int open_layout(const struct sk_layouts *ls,
		       const struct sk_wire_part *part,
		       struct sk_layout **ret, struct sk_err *err)
{
	const struct sk_os *os = ls->sk->os;
	struct sk_opened_image o;
	int r = sk_image_open(ls->conn, part->image,
			      (enum sk_place)part->place, sk_until(ls->sk),
			      &o, err);

	if (r < 0)
		return r;
	r = read_header(ls, part, &o, ret, err);
	(void)os->close(os, o.data);
	(void)os->close(os, o.header);
	return r;
}

/* Of one that describes the same, or NULL. */
static struct sk_layout *described(const struct sk_layouts *ls,
				   const struct sk_wire_part *part)
{
	struct sk_table_walk walk = sk_table_find(&ls->described,
						  part->description);
	uintptr_t at;

	while (sk_table_next(&walk, &at)) {
		struct sk_layout *l = (struct sk_layout *)at;

		if (l->description == part->description)
			return l;
	}
	return NULL;
}

/* By arithmetic from one that is known, if that gives it; *ret is kept. */
static int derive_layout(const struct sk_layouts *ls,
			 const struct sk_wire_part *part,
			 struct sk_layout **ret, struct sk_err *err)
{
	struct sk_layout *l;
	int r = sk_recall_find(ls->sk->recall, described(ls, part),
			       part->rank, (enum sk_image_kind)part->kind,
			       &part->digest, &l);

	if (r == -ENOMEM)
		return sk_err_set(err, r, "no memory for the layout of rank "
				  "%" PRId32, part->rank);
	if (r < 0)
		return r;
	if (l->rank != part->rank || l->kind != part->kind ||
	    l->world != ls->id.world ||
	    l->description != part->description) {
		sk_layout_free(l);
		return -ENOENT;
	}
	*ret = l;
	return 0;
}

/* Others follow from it. */
static int keep(struct sk_layouts *ls, struct sk_layout *l, struct sk_err *err)
{
	if (sk_table_add(&ls->described, l->description, (uintptr_t)l) < 0)
		return sk_err_set(err, -ENOMEM, "out of memory");
	(void)sk_layout_ref(l);
	return 0;
}

int sk_layouts_get(struct sk_layouts *ls, const struct sk_wire_part *part,
		   struct sk_layout **ret, struct sk_err *err)
{
	_cleanup_layout_ struct sk_layout *l = NULL;
	int r = derive_layout(ls, part, &l, err);

	if (r == -ENOENT)
		r = open_layout(ls, part, &l, err);
	if (r >= 0 && !described(ls, part))
		r = keep(ls, l, err);
	if (r < 0)
		return r;
	*ret = sk_take_ptr(l);
	return 0;
}

void sk_layouts_forget(struct sk_layouts *ls)
{
	const struct sk_table *t = &ls->described;

	for (size_t i = 0; t->slots && i <= t->mask; i++) {
		uintptr_t value = t->slots[i].value;

		if (value)
			sk_layout_free((struct sk_layout *)(value - 1));
	}
	sk_table_free(&ls->described);
}
