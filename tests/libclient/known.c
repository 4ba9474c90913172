/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the agent has of a rank it is not told again: who comes back to what it
 * had saved registers by digests, twice, and hands no layout over. Counted by
 * the memory that a layout would be handed over in. Argument: path of
 * shardkeepd.
 */
#include "libclient/restore/common.h"

#include <signal.h>

#include "conn/client.h"
#include "fault-os.h"

struct life {
	struct sk_fault_os os;
	struct sk *sk;
	struct sk_state *state;
	char w[4096], more[64];
};

static void describe(struct life *l, const char *name, char *data,
		     int64_t bytes)
{
	CHECK(!sk_state_tensor(l->state, &(struct sk_tensor){ .name = name,
		.dtype = SK_U8, .ndim = 1, .shape = { bytes },
		.data = data }), "%s", sk_error());
}

static void begin(struct life *l, const struct scene *scene)
{
	*l = (struct life){ .sk = NULL };
	sk_fault_os_init(&l->os, sk_os_linux());
	CHECK(!sk_open_on(&l->os.os, &(struct sk_options){
		.socket = scene->socket, .threads = 1 }, &l->sk), "%s",
	      sk_error());
	CHECK(!sk_state_create(l->sk, &(struct sk_job){ .name = "known",
		.world = 1 }, &l->state), "%s", sk_error());
	describe(l, "w", l->w, sizeof(l->w));
}

static void save(struct life *l, int64_t step)
{
	CHECK(!sk_snapshot(l->state, step, NULL), "%s", sk_error());
	CHECK(!sk_wait(l->state, step, SK_COMPLETE, 60000), "%s", sk_error());
}

static void restore(struct life *l, int64_t step)
{
	struct sk_report got;

	CHECK(!sk_restore(l->state, SK_LATEST, NULL, NULL, &got), "%s",
	      sk_error());
	CHECK(got.step == step, "step %d", (int)got.step);
}

static uint64_t handed_over(const struct life *l)
{
	return sk_fault_os_calls(&l->os, SK_FAULT_MEMFD_CREATE);
}

static void end(struct life *l)
{
	sk_state_free(l->state);
	sk_close(l->sk);
}

int main(int argc, char **argv)
{
	struct scene scene;
	struct life l;

	scene_open(&scene, argc, argv);
	begin(&l, &scene);
	save(&l, 1);
	CHECK(handed_over(&l) == 1, "%d times", (int)handed_over(&l));
	end(&l);

	begin(&l, &scene);
	restore(&l, 1);
	save(&l, 2);
	CHECK(handed_over(&l) == 0, "%d times", (int)handed_over(&l));
	/* And what is new to it, it is told once. */
	describe(&l, "more", l.more, sizeof(l.more));
	save(&l, 3);
	save(&l, 4);
	CHECK(handed_over(&l) == 1, "%d times", (int)handed_over(&l));
	end(&l);

	/* An agent that has seen nothing of it. */
	scene_stop_agent(&scene, SIGTERM);
	scene_start_agent(&scene);
	begin(&l, &scene);
	describe(&l, "more", l.more, sizeof(l.more));
	restore(&l, 4);
	save(&l, 5);
	CHECK(handed_over(&l) <= 1, "%d times", (int)handed_over(&l));
	end(&l);
	scene_close(&scene);
	return 0;
}
