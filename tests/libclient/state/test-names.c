/* SPDX-License-Identifier: Apache-2.0 */
/* Names that come and go, against a list that is searched. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "base/util.h"
#include "state/names.h"
#include "support/random.h"

#define NAMES 300

static uint64_t seed = 9;

static uint32_t pick(uint32_t n)
{
	return (uint32_t)draw(&seed, n);
}

static int64_t search(const struct sk_state *state, const char *name)
{
	for (uint32_t i = 0; i < state->n_locals; i++)
		if (!strcmp(state->locals[i].item.spec.name, name))
			return i;
	return -1;
}

static void add(struct sk_state *state, const char *name)
{
	cr_assert_eq(sk_names_reserve(state, 1), 0);
	state->locals[state->n_locals].item.spec.name = name;
	sk_names_put(state, state->n_locals++);
}

/* As describing forgets one: the last takes its place. */
static void drop(struct sk_state *state, uint32_t at)
{
	uint32_t last = --state->n_locals;

	sk_names_take(state, at);
	if (at == last)
		return;
	sk_names_take(state, last);
	state->locals[at] = state->locals[last];
	sk_names_put(state, at);
}

Test(names, are_found_whatever_came_and_went, .timeout = 300)
{
	static struct sk_local locals[NAMES];
	static char names[NAMES][8];
	struct sk_state state = { .locals = locals, .room_locals = NAMES };

	for (uint32_t i = 0; i < NAMES; i++)
		(void)snprintf(names[i], sizeof(names[i]), "t%u", i);
	for (int round = 0; round < 20000; round++) {
		const char *name = names[pick(NAMES)];
		int64_t at = sk_state_find(&state, name);

		cr_assert_eq(at, search(&state, name));
		if (at < 0)
			add(&state, name);
		else
			drop(&state, (uint32_t)at);
		if (!pick(4000)) {
			state.n_locals = 0;
			sk_names_clear(&state);
		}
	}
	sk_names_clear(&state);
	cr_assert_eq(sk_state_find(&state, names[0]), -1);
}
