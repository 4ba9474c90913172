/* SPDX-License-Identifier: Apache-2.0 */
#include "state/names.h"

#include <assert.h>
#include <string.h>

uint64_t sk_name_hash(const char *name)
{
	uint64_t hash = sk_hash_bytes(sk_hash_seed(), name, strlen(name));

	return hash ? hash : 1;
}

static uint64_t hash_of(const struct sk_local *l)
{
	return l->hash ? l->hash : sk_name_hash(l->item.spec.name);
}

static const char *name_of(const struct sk_state *state, uintptr_t number)
{
	return state->locals[number].item.spec.name;
}

static int64_t find(const struct sk_state *state, const char *name,
		    uint64_t hash)
{
	struct sk_table_walk walk = sk_table_find(&state->names, hash);
	uintptr_t number;

	while (sk_table_next(&walk, &number))
		if (!strcmp(name_of(state, number), name))
			return (int64_t)number;
	return -1;
}

int64_t sk_state_find(const struct sk_state *state, const char *name)
{
	return state->names.count ? find(state, name, sk_name_hash(name)) : -1;
}

int64_t sk_state_find_as(const struct sk_state *state,
			 const struct sk_local *like)
{
	return state->names.count ? find(state, like->item.spec.name,
					 hash_of(like)) : -1;
}

int sk_names_reserve(struct sk_state *state, uint32_t more)
{
	return sk_table_reserve(&state->names,
				(size_t)state->n_locals + more);
}

void sk_names_put(struct sk_state *state, uint32_t number)
{
	int r = sk_table_add(&state->names, hash_of(&state->locals[number]),
			     number);

	assert(r == 0);
	(void)r;
}

void sk_names_take(struct sk_state *state, uint32_t number)
{
	bool was = sk_table_remove(&state->names,
				   hash_of(&state->locals[number]), number);

	assert(was);
	(void)was;
}

void sk_names_clear(struct sk_state *state)
{
	sk_table_free(&state->names);
}
