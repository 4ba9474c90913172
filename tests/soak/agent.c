/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A job trains while its agent is killed at random instants, again and again:
 * in snapshots, flushes, evictions and restores, and while it takes up what
 * outlived the one before, or hands over to another. Whatever a rank was told
 * to be complete is there ever after, byte for byte, and whoever comes is
 * served again soon.
 */
#include "soak/soak.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>

#include "support/agent.h"

#define WORLD_MOST 3
#define KILLS 25
#define READERS 1

struct shared {
	pthread_barrier_t meet;
	_Atomic(int64_t) complete;	/* newest that a rank was told; -1 */
	int begun;			/* an eventfd: one was */
	atomic_bool over;
	atomic_bool go[2];		/* by step: the ranks' own word of it */
	atomic_ullong restores, lost;	/* restores; what failed of all */
};

struct life {
	struct shared *shared;
	uint64_t seed;
};

/* ---- ranks ---- */

/* No agent is a reason to lose a step, and no slot; nothing else is. */
static void check_lost(struct shared *t, const char *what, int r)
{
	CHECK(r == -ECONNRESET || r == -EBUSY || r == -ETIMEDOUT, "%s: %d: %s",
	      what, r, sk_error());
	atomic_fetch_add(&t->lost, 1);
}

static void train_step(struct rank *rank, struct shared *t, int64_t step)
{
	struct sk_snapshot_options o = {
		.wait_ms = 500, .flags = step % 4 ? SK_SNAPSHOT_NO_FLUSH :
						    SK_SNAPSHOT_FLUSH };
	int64_t old = atomic_load(&t->complete);
	int r;

	rank_write(rank, step);
	r = sk_snapshot(rank->state, step, &o);
	if (r == 0)
		r = sk_fence(rank->state);
	if (r < 0) {
		check_lost(t, "snapshot", r);
		return;
	}
	if (sk_wait(rank->state, step, SK_COMPLETE, 100) < 0)
		return;
	if (old < 0)
		CHECK(!eventfd_write(t->begun, 1));
	while (old < step &&
	       !atomic_compare_exchange_weak(&t->complete, &old, step))
		;
}

/* All take the same step, or none could become complete. */
static void train(struct rank *rank)
{
	const struct life *life = rank->arg;
	struct shared *t = life->shared;

	model_describe(rank, life->seed, 0);
	for (int64_t step = 0;; step++) {
		if (!rank->rank)
			atomic_store(&t->go[step % 2], !atomic_load(&t->over));
		(void)pthread_barrier_wait(&t->meet);
		if (!atomic_load(&t->go[step % 2]))
			return;
		train_step(rank, t, step);
	}
}

/* What was complete when it began is there, or something newer. */
static int read_once(struct rank *rank, struct shared *t)
{
	int64_t least = atomic_load(&t->complete);
	struct sk_report report = { .step = -1 };
	int r = rank_restore(rank, SK_LATEST, 0, &report);

	if (r == -ENOENT) {
		CHECK(least < 0, "step %lld was complete, and is not there: "
		      "%s", (long long)least, sk_error());
		return r;
	}
	if (r < 0) {
		check_lost(t, "restore", r);
		return r;
	}
	CHECK(report.run == 1 && report.step >= least, "step %lld of run %llu "
	      "came back, step %lld was complete", (long long)report.step,
	      (unsigned long long)report.run, (long long)least);
	CHECK(!rank_wrong(rank, report.step, -1), "wrong bytes of step %lld",
	      (long long)report.step);
	atomic_fetch_add(&t->restores, 1);
	return 0;
}

static void read_on(struct rank *rank)
{
	const struct life *life = rank->arg;

	model_describe(rank, life->seed, 1);
	while (!atomic_load(&life->shared->over))
		(void)read_once(rank, life->shared);
}

static void read_at_last(struct rank *rank)
{
	const struct life *life = rank->arg;

	model_describe(rank, life->seed, 2);
	CHECK(read_once(rank, life->shared) == 0, "%s", sk_error());
}

/* ---- the killer ---- */

static void kill_agents(struct scene *scene, const struct shared *t,
			struct dice *dice, struct tally *tally)
{
	pid_t pid = serving(scene, tally);
	eventfd_t some;

	/* Ranks that do not know of each other yet begin runs apart. */
	CHECK(!eventfd_read(t->begun, &some));
	for (int i = 0; i < KILLS; i++) {
		(void)usleep((useconds_t)dice_below(dice, 150000));
		if (dice_below(dice, 6))
			serving_kill(scene, pid, dice, tally);
		else
			serving_hand_over(scene, pid, dice, tally);
		CHECK(!waitpid(scene->agent, NULL, WNOHANG), "the keeper ended");
		pid = serving(scene, tally);
	}
}

static struct shared *share(int world)
{
	struct shared *t = mmap(NULL, sizeof(*t), PROT_READ | PROT_WRITE,
				MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pthread_barrierattr_t attr;

	CHECK(t != MAP_FAILED);
	atomic_store(&t->complete, -1);
	t->begun = eventfd(0, EFD_CLOEXEC);
	CHECK(t->begun >= 0);
	CHECK(!pthread_barrierattr_init(&attr));
	CHECK(!pthread_barrierattr_setpshared(&attr, PTHREAD_PROCESS_SHARED));
	CHECK(!pthread_barrier_init(&t->meet, &attr, (unsigned)world));
	return t;
}

void trial_agent(struct scene *scene, uint64_t seed, struct tally *tally)
{
	struct dice dice = dice_of(seed);
	int world = 1 + (int)dice_below(&dice, WORLD_MOST);
	struct life life = { .shared = share(world), .seed = seed };
	struct scene readers;
	pid_t ranks[WORLD_MOST], reader[READERS];
	char job[40];

	serving_keep(scene);
	readers = *scene;
	readers.job_flags = SK_JOB_READER;
	(void)snprintf(job, sizeof(job), "agent-%llu",
		       (unsigned long long)seed);
	scene_ranks_start(scene, job, world, train, &life, ranks);
	scene_ranks_start(&readers, job, READERS, read_on, &life, reader);
	kill_agents(scene, life.shared, &dice, tally);
	atomic_store(&life.shared->over, true);
	scene_ranks_end(job, world, ranks);
	scene_ranks_end(job, READERS, reader);
	CHECK(atomic_load(&life.shared->complete) >= 0, "nothing was complete");
	scene_ranks(&readers, job, 1, read_at_last, &life);
	tally->lives++;
	tally->restores += atomic_load(&life.shared->restores);
	tally->steps += (uint64_t)atomic_load(&life.shared->complete);
	tally->lost += atomic_load(&life.shared->lost);
	close(life.shared->begun);
	CHECK(!munmap(life.shared, sizeof(*life.shared)));
}
