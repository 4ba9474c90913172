/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who describes anew what it had, as a trainer does for each restore, stays
 * registered as it is, with the slots that it has mapped. What could not be
 * registered is not taken for it. Argument: path of shardkeepd.
 */
#include "libclient/restore/common.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "fault-os.h"
#include "restore/room.h"

#define W ((int64_t)3 << 20)

struct life {
	struct sk_fault_os os;
	struct sk *sk;
	struct sk_state *state;
	char *w, *other, *more;
};

static void describe(struct life *l, const char *name, char *data,
		     int64_t bytes)
{
	CHECK(!sk_state_tensor(l->state, &(struct sk_tensor){ .name = name,
		.dtype = SK_U8, .ndim = 1, .shape = { bytes },
		.data = data }), "%s", sk_error());
}

static void begin(struct life *l, const struct scene *scene, const char *job)
{
	*l = (struct life){ .w = rank_memory(W, 1),
			    .other = rank_memory(W, 2),
			    .more = rank_memory(64, 3) };
	sk_fault_os_init(&l->os, sk_os_linux());
	CHECK(!sk_open_on(&l->os.os, &(struct sk_options){
		.socket = scene->socket, .threads = 1 }, &l->sk), "%s",
	      sk_error());
	CHECK(!sk_state_create(l->sk, &(struct sk_job){ .name = job,
		.world = 1, .flush_every = SK_FLUSH_NEVER }, &l->state), "%s",
	      sk_error());
	describe(l, "w", l->w, W);
	CHECK(!sk_state_blob(l->state, "rng", l->more, 64));
}

static void end(struct life *l)
{
	sk_state_free(l->state);
	sk_close(l->sk);
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

static bool is_full_of(const char *memory, char byte)
{
	return memory[0] == byte && !memcmp(memory, memory + 1, W - 1);
}

/* ---- as it was ---- */

static void stays(struct scene *scene)
{
	const struct sk_slot_map *slots;
	struct life l;
	uint64_t id;

	begin(&l, scene, "stays");
	save(&l, 1);
	id = l.state->id;
	slots = l.state->slots;
	CHECK(!sk_state_clear(l.state), "%s", sk_error());
	describe(&l, "w", l.other, W);
	CHECK(!sk_state_blob(l.state, "rng", l.more, 64));
	restore(&l, 1);
	CHECK(is_full_of(l.other, 1));
	CHECK(l.state->id == id && l.state->slots == slots);
	/* Where it lies now is what is copied. */
	memset(l.w, 7, W);
	memset(l.other, 8, W);
	save(&l, 2);
	CHECK(l.state->id == id && l.state->slots == slots);
	memset(l.other, 9, W);
	restore(&l, 2);
	CHECK(is_full_of(l.other, 8) && is_full_of(l.w, 7));
	end(&l);
}

/* In another order it is another layout. */
static void turned(struct scene *scene)
{
	struct life l;

	begin(&l, scene, "turned");
	save(&l, 1);
	CHECK(!sk_state_clear(l.state), "%s", sk_error());
	CHECK(!sk_state_blob(l.state, "rng", l.more, 64));
	describe(&l, "w", l.other, W);
	restore(&l, 1);
	CHECK(is_full_of(l.other, 1) && l.more[5] == 3);
	memset(l.other, 8, W);
	memset(l.more, 6, 64);
	save(&l, 2);
	memset(l.other, 0, W);
	memset(l.more, 0, 64);
	restore(&l, 2);
	CHECK(is_full_of(l.other, 8) && l.more[5] == 6);
	end(&l);
}

/* The agent hears of what another state has restored for this one, which has
 * all that it needs. */
static void begins_with(struct scene *scene)
{
	struct life l;

	begin(&l, scene, "begins-with");
	save(&l, 1);
	sk_restore_begin_with(l.state, &(struct sk_begun){
		.run = l.state->run, .run_id = l.state->run_id, .step = 1 });
	CHECK(!l.state->begun.by_id);
	sk_restore_room(l.state);
	CHECK(l.state->begun.by_id == l.state->run_id);
	save(&l, 2);
	restore(&l, 2);
	end(&l);
}

/* Who has no slots yet gets them by what it is registered with: nothing is laid
 * out once more. */
static void begins_with_nothing(struct scene *scene)
{
	struct sk_begun begun;
	struct life l;

	begin(&l, scene, "begins-with");
	CHECK(!sk_restore_first(l.state, SK_LATEST, NULL, NULL, NULL), "%s",
	      sk_error());
	CHECK(!l.state->n_slots && !l.state->changed);
	begun = sk_restore_begun(l.state);
	sk_restore_begin_with(l.state, &begun);
	CHECK(!l.state->changed && !l.state->begun.by_id);
	sk_restore_room(l.state);
	CHECK(l.state->n_slots && l.state->begun.by_id == l.state->run_id);
	save(&l, 3);
	restore(&l, 3);
	end(&l);
}

/* ---- what was not registered ---- */

/* Whatever call fails while more is registered: what comes next begins anew.
 * Returns whether one did. */
static bool fails(struct scene *scene, unsigned long nth)
{
	char job[32];
	uint64_t hits;
	struct life l;

	(void)snprintf(job, sizeof(job), "fails-%lu", nth);
	begin(&l, scene, job);
	save(&l, 1);
	describe(&l, "more", l.other, W);
	sk_fault_os_forget(&l.os);
	sk_fault_os_fail(&l.os, SK_FAULT_MMAP, nth, 1, ENOMEM);
	(void)sk_prepare(l.state, 60000);
	hits = sk_fault_os_hits(&l.os);
	sk_fault_os_forget(&l.os);
	CHECK(!sk_restore(l.state, SK_LATEST, NULL,
			  &(struct sk_restore_options){
				  .flags = SK_RESTORE_PARTIAL }, NULL),
	      "%s", sk_error());
	save(&l, 2);
	memset(l.w, 0, W);
	memset(l.other, 0, W);
	restore(&l, 2);
	CHECK(is_full_of(l.w, 1) && is_full_of(l.other, 2));
	end(&l);
	return hits;
}

/* The same while slots are added to what a restore has registered; what is
 * described stays, or is so anew. */
static bool fails_behind(struct scene *scene, unsigned long nth, bool anew)
{
	uint64_t hits;
	struct life l;

	begin(&l, scene, "stays");
	sk_fault_os_fail(&l.os, SK_FAULT_MMAP, nth, 1, ENOMEM);
	(void)sk_restore(l.state, SK_LATEST, NULL, NULL, NULL);
	hits = sk_fault_os_hits(&l.os);
	sk_fault_os_forget(&l.os);
	CHECK(!anew || !sk_state_clear(l.state), "%s", sk_error());
	describe(&l, "w", l.other, W);
	CHECK(!sk_state_blob(l.state, "rng", l.more, 64));
	CHECK(!anew || !sk_restore(l.state, SK_LATEST, NULL, NULL, NULL),
	      "%s", sk_error());
	memset(l.other, (int)nth, W);
	save(&l, 100);
	memset(l.other, 0, W);
	restore(&l, 100);
	CHECK(is_full_of(l.other, (char)nth));
	end(&l);
	return hits;
}

int main(int argc, char **argv)
{
	struct scene scene;
	unsigned long n = 1;

	scene_open(&scene, argc, argv);
	stays(&scene);
	turned(&scene);
	begins_with(&scene);
	begins_with_nothing(&scene);
	while (fails(&scene, n))
		n++;
	CHECK(n > 2, "only %lu calls failed", n - 1);
	for (n = 1; fails_behind(&scene, n, true); n++)
		;
	CHECK(n > 3, "only %lu calls failed", n - 1);
	for (n = 1; fails_behind(&scene, n, false); n++)
		;
	scene_close(&scene);
	return 0;
}
