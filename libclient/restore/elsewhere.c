/* SPDX-License-Identifier: Apache-2.0 */
#include "restore/elsewhere.h"

#include <string.h>

#include "base/array.h"
#include "base/util.h"
#include "restore/agree.h"
#include "restore/by-device.h"
#include "restore/keys.h"
#include "restore/nodes.h"

/* Names of tensors, by their hashes. */
struct names {
	uint64_t *v;
	size_t n, room;
};

static int no_memory(struct sk_restoring *rs, size_t n)
{
	return sk_err_set(&rs->err, -ENOMEM, "no memory for %zu names of "
			  "tensors", n);
}

static int add(struct sk_restoring *rs, struct names *names, uint64_t name)
{
	if (sk_array_fit(names->v, names->room, names->n + 1) < 0)
		return no_memory(rs, names->n);
	names->v[names->n++] = name;
	return 0;
}

/* 0: it is no tensor, or none that there is. */
static uint64_t name_of(const struct sk_restoring *rs, uint32_t local)
{
	const struct sk_restore_key *key;

	if (rs->state->locals[local].item.kind != SK_ITEM_TENSOR)
		return 0;
	key = sk_restore_key_of(rs, local);
	return key ? sk_restore_key_hash(key) : 0;
}

uint64_t sk_restore_lies_as(const struct sk_restoring *rs)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < rs->state->n_locals; i++) {
		uint64_t name = name_of(rs, i);

		if (name)
			sum += sk_restore_mix(
				2 * name + sk_restore_is_by_device(rs, i));
	}
	return sum;
}

/* ---- of which tensors this rank has what ---- */

/* Pieces of a local lie together, and go the same way. */
static int list(struct sk_restoring *rs, bool across, struct names *ret)
{
	uint32_t last = UINT32_MAX;
	int r = 0;

	for (uint32_t i = 0; i < rs->n_pieces && r >= 0; i++) {
		const struct sk_restore_piece *p = &rs->pieces[i];
		uint64_t name;

		if (p->place < SK_PLACE_OTHERS || p->across != across ||
		    p->local == last)
			continue;
		last = p->local;
		name = name_of(rs, last);
		if (name)
			r = add(rs, ret, name);
	}
	return r;
}

/* ---- all that any has elsewhere ---- */

static int by_number(const void *a, const void *b)
{
	const uint64_t *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

/* Each once. */
static void sort(struct names *names)
{
	size_t kept = 0;

	if (names->n)
		qsort(names->v, names->n, sizeof(*names->v), by_number);
	for (size_t i = 0; i < names->n; i++)
		if (!kept || names->v[i] != names->v[kept - 1])
			names->v[kept++] = names->v[i];
	names->n = kept;
}

/* How many the rank with most has. */
static int agree_most(struct sk_restoring *rs, int r, const struct names *mine,
		      uint64_t *ret)
{
	struct sk_restore_word word = { .extra = mine->n }, *words;

	*ret = 0;
	r = sk_restore_agree(rs, r, &word, &words, 0);
	for (int32_t k = 0; r >= 0 && k < rs->state->job.world; k++)
		*ret = words[k].extra > *ret ? words[k].extra : *ret;
	return r < 0 || *ret <= UINT32_MAX ? r :
	       sk_err_set(&rs->err, -EPROTO, "a rank has more tensors than "
			  "there can be");
}

/* Some at a time, for those of a world may be many; who has fewer than the
 * rank with most says 0 for the rest. */
static int gather_names(struct sk_restoring *rs, int r,
			const struct names *mine, struct names *ret)
{
	size_t world = (size_t)rs->state->job.world;
	size_t some = sk_restore_portion(rs, sizeof(*ret->v));
	_cleanup_free_ uint64_t *padded = NULL;
	uint64_t most;

	r = agree_most(rs, r, mine, &most);
	padded = calloc(most + 1, sizeof(*padded));
	if (r >= 0 && !padded)
		r = no_memory(rs, most);
	if (r >= 0 && mine->n)
		memcpy(padded, mine->v, mine->n * sizeof(*padded));
	for (uint64_t at = 0; at < most && r >= 0; at += some) {
		_cleanup_free_ uint64_t *all = NULL;

		some = most - at < some ? most - at : some;
		r = sk_restore_gather(rs, r, padded + at,
				      some * sizeof(*padded), &all);
		for (size_t i = 0; r >= 0 && i < world * some; i++)
			if (all[i])
				r = add(rs, ret, all[i]);
		sort(ret);
	}
	return r;
}

/* ---- and which of them any has on its device ---- */

static bool find(const struct names *names, uint64_t name, size_t *ret)
{
	*ret = sk_count_before(names->n, i, names->v[i] < name);
	return *ret < names->n && names->v[*ret] == name;
}

static void mark(const struct names *mine, const struct names *all,
		 uint8_t *bits)
{
	size_t at;

	for (size_t i = 0; i < mine->n; i++)
		if (find(all, mine->v[i], &at))
			sk_bit_set(bits, at);
}

/* Makes of a rank's @bits, of so many bytes, those of all. */
static int gather_bits(struct sk_restoring *rs, int r, uint8_t *bits,
		       size_t bytes)
{
	size_t world = (size_t)rs->state->job.world;
	size_t some = sk_restore_portion(rs, 1);

	for (size_t at = 0; at < bytes && r >= 0; at += some) {
		_cleanup_free_ uint8_t *all = NULL;

		some = bytes - at < some ? bytes - at : some;
		r = sk_restore_gather(rs, r, bits + at, some, &all);
		for (size_t i = 0; r >= 0 && i < world * some; i++)
			bits[at + i % some] |= all[i];
	}
	return r;
}

static void join(struct sk_restoring *rs, const struct names *all,
		 const uint8_t *bits)
{
	uint32_t last = UINT32_MAX;
	bool here = false;

	for (uint32_t i = 0; i < rs->n_pieces; i++) {
		struct sk_restore_piece *p = &rs->pieces[i];
		size_t at;

		if (p->place < SK_PLACE_OTHERS)
			continue;
		if (p->local != last)
			here = find(all, name_of(rs, p->local), &at) &&
			       sk_bit(bits, at);
		last = p->local;
		p->across |= here;
	}
}

static int settle(struct sk_restoring *rs, int r, const struct names *all)
{
	struct names mine = { 0 };
	size_t bytes = all->n / 8 + 1;
	_cleanup_free_ uint8_t *bits = calloc(bytes, 1);

	if (r >= 0 && !bits)
		r = no_memory(rs, all->n);
	if (r >= 0)
		r = list(rs, true, &mine);
	if (r >= 0)
		mark(&mine, all, bits);
	r = gather_bits(rs, r, bits, bytes);
	if (r >= 0)
		join(rs, all, bits);
	free(mine.v);
	return r;
}

int sk_restore_elsewhere(struct sk_restoring *rs, int r)
{
	struct names mine = { 0 }, all = { 0 };

	if (r >= 0)
		r = list(rs, false, &mine);
	sort(&mine);
	r = gather_names(rs, r, &mine, &all);
	if (r >= 0 && all.n)
		r = settle(rs, r, &all);
	free(mine.v);
	free(all.v);
	return r;
}
