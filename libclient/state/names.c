/* SPDX-License-Identifier: Apache-2.0 */
#include "state/names.h"

#include <assert.h>
#include <string.h>

static uint64_t hash_name(const char *name)
{
	return sk_hash_bytes(sk_hash_seed(), name, strlen(name));
}

static const char *name_of(const struct sk_state *state, uintptr_t number)
{
	return state->locals[number].item.spec.name;
}

int64_t sk_state_find(const struct sk_state *state, const char *name)
{
	struct sk_table_walk walk;
	uintptr_t number;

	if (!state->names.count)
		return -1;
	walk = sk_table_find(&state->names, hash_name(name));
	while (sk_table_next(&walk, &number))
		if (!strcmp(name_of(state, number), name))
			return (int64_t)number;
	return -1;
}

int sk_names_reserve(struct sk_state *state, uint32_t more)
{
	return sk_table_reserve(&state->names,
				(size_t)state->n_locals + more);
}

void sk_names_put(struct sk_state *state, uint32_t number)
{
	int r = sk_table_add(&state->names, hash_name(name_of(state, number)),
			     number);

	assert(r == 0);
	(void)r;
}

void sk_names_take(struct sk_state *state, uint32_t number)
{
	bool was = sk_table_remove(&state->names,
				   hash_name(name_of(state, number)), number);

	assert(was);
	(void)was;
}

void sk_names_clear(struct sk_state *state)
{
	sk_table_free(&state->names);
}
