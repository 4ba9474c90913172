/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a restore read is free when it returns: the next snapshot has its slot,
 * without a wait. Argument: path of shardkeepd.
 */
#include "libclient/restore/common.h"

#define BYTES 5000
#define ROUNDS 200

static void take(struct sk_state *state, int64_t step)
{
	CHECK(!sk_snapshot(state, step, NULL), "step %d: %s", (int)step,
	      sk_error());
	CHECK(!sk_wait(state, step, SK_COMPLETE, 60000), "%s", sk_error());
}

/* Of two slots it reads the older one, which is the next to be filled. */
static void goes_back(struct sk *sk)
{
	struct sk_state *state;
	char *w = rank_memory(BYTES, 1);

	CHECK(!sk_state_create(sk, &(struct sk_job){ .name = "back",
		.world = 1, .flush_every = SK_FLUSH_NEVER }, &state), "%s",
	      sk_error());
	CHECK(!sk_state_tensor(state, &(struct sk_tensor){ .name = "w",
		.dtype = SK_U8, .ndim = 1, .shape = { BYTES }, .data = w }));
	take(state, 1);
	take(state, 2);
	for (int64_t step = 3; step < 3 + ROUNDS; step++) {
		CHECK(!sk_restore(state, step - 2, NULL, NULL, NULL), "%s",
		      sk_error());
		take(state, step);
	}
	sk_state_free(state);
}

int main(int argc, char **argv)
{
	struct scene scene;
	struct sk *sk;

	scene_open(&scene, argc, argv);
	CHECK(!sk_open(&(struct sk_options){ .socket = scene.socket }, &sk),
	      "%s", sk_error());
	goes_back(sk);
	sk_close(sk);
	scene_close(&scene);
	return 0;
}
