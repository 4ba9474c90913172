/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A job lives several times; each life ends by SIGKILL at a random instant:
 * of all ranks, of one before the others, or of the agent. The next life, on
 * another mesh, must get back the newest snapshot that anybody was told to be
 * complete (durable, where the agent's memory is gone), and no wrong byte.
 */
#include "soak/soak.h"

#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/wait.h>

#define LIVES 5
#define WORLD_MOST 4
#define STEPS_A_LIFE 10000
#define VALUES_A_STEP 64	/* lives that a step's values tell apart */

/* What ranks were told, in memory that outlives them. */
struct told {
	_Atomic(uint64_t) run;		/* 0: not known */
	_Atomic(int64_t) complete, durable;	/* -1: none */
};

struct truth {
	struct told lives[LIVES];
	atomic_int present;		/* ranks this life began with */
	int arrived;			/* an eventfd: one more is present */
	atomic_bool disturbed;		/* somebody was killed in this life */
	atomic_ullong restores;
};

struct life {
	struct truth *truth;
	uint64_t seed;
	int number;
};

static void raise_to(_Atomic(int64_t) *at, int64_t step)
{
	int64_t old = atomic_load(at);

	while (old < step && !atomic_compare_exchange_weak(at, &old, step))
		;
}

/* The newest life in which a rank saw a snapshot complete; -1: none. */
static int newest_told(const struct truth *t, int before)
{
	for (int i = before - 1; i >= 0; i--) {
		if (atomic_load(&t->lives[i].complete) >= 0)
			return i;
	}
	return -1;
}

static int life_of_run(const struct truth *t, uint64_t run, int before)
{
	/* A number that died with the agent's memory may come again. */
	for (int i = before - 1; i >= 0; i--) {
		if (atomic_load(&t->lives[i].run) == run)
			return i;
	}
	return -1;
}

static int64_t value_of(int64_t step, int life)
{
	return step * VALUES_A_STEP + life;
}

static void check_restored(struct rank *rank, const struct life *life,
			   const struct sk_report *report)
{
	int told = newest_told(life->truth, life->number);
	int from = life_of_run(life->truth, report->run, life->number);
	int64_t least = told < 0 ? -1 :
			atomic_load(&life->truth->lives[told].complete);
	int owner = rank->rank < report->world ? rank->rank : -1;

	CHECK(from >= 0, "seed %llu: run %llu is nobody's",
	      (unsigned long long)life->seed, (unsigned long long)report->run);
	CHECK(from > told || (from == told && report->step >= least),
	      "seed %llu, life %d: step %lld of life %d came back, step %lld "
	      "of life %d was complete", (unsigned long long)life->seed,
	      life->number, (long long)report->step, from, (long long)least,
	      told);
	CHECK(!rank_wrong(rank, value_of(report->step, from), owner),
	      "seed %llu, life %d: wrong bytes of step %lld, life %d",
	      (unsigned long long)life->seed, life->number,
	      (long long)report->step, from);
	atomic_fetch_add(&life->truth->restores, 1);
}

/* Where to go on; negative: this life has come to its end. */
static int64_t come_back(struct rank *rank, const struct life *life)
{
	struct sk_report report = { .step = -1 };
	int r = rank_restore(rank, SK_LATEST, 0, &report);

	if (r == 0) {
		check_restored(rank, life, &report);
		return report.step + 1;
	}
	if (atomic_load(&life->truth->disturbed))
		return -1;
	CHECK(r == -ENOENT && newest_told(life->truth, life->number) < 0,
	      "seed %llu, life %d: %d: %s", (unsigned long long)life->seed,
	      life->number, r, sk_error());
	return 0;
}

static void note_progress(struct rank *rank, struct told *told, int64_t step)
{
	struct sk_status status;

	if (sk_wait(rank->state, step, SK_COMPLETE, 20) < 0)
		return;
	CHECK(!sk_status(rank->state, &status));
	atomic_store(&told->run, status.run);
	raise_to(&told->complete, step);
	if (sk_wait(rank->state, step, SK_DURABLE, 1) == 0)
		raise_to(&told->durable, step);
}

/* Trains until it is killed, whatever becomes of its snapshots. */
static void train(struct rank *rank)
{
	const struct life *life = rank->arg;
	struct told *told = &life->truth->lives[life->number];
	struct sk_status status;
	int64_t step;

	atomic_fetch_add(&life->truth->present, 1);
	CHECK(!eventfd_write(life->truth->arrived, 1));
	model_describe(rank, life->seed, (uint64_t)life->number);
	step = come_back(rank, life);
	for (int i = 0; step >= 0 && i < STEPS_A_LIFE; i++, step++) {
		struct sk_snapshot_options o = {
			.wait_ms = 50,
			.flags = step % 3 ? SK_SNAPSHOT_NO_FLUSH :
					    SK_SNAPSHOT_FLUSH };

		rank_write(rank, value_of(step, life->number));
		if (sk_snapshot(rank->state, step, &o) == 0 &&
		    sk_status(rank->state, &status) == 0)
			atomic_store(&told->run, status.run);
		(void)sk_fence(rank->state);
		note_progress(rank, told, step);
	}
	for (;;)
		pause();
}

/* Only what is on disk is left of every life. */
static void memory_is_gone(struct truth *t)
{
	for (int i = 0; i < LIVES; i++)
		atomic_store(&t->lives[i].complete,
			     atomic_load(&t->lives[i].durable));
}

static void end_life(struct scene *scene, struct truth *t, pid_t *pids,
		     int world, struct dice *dice, struct tally *tally)
{
	struct pollfd p = { .fd = t->arrived, .events = POLLIN };
	bool agent = !dice_below(dice, 3);
	eventfd_t some;
	int first = (int)dice_below(dice, (uint64_t)world);

	/* Whom nobody serves from the start has nothing to lose. */
	while (atomic_load(&t->present) < world) {
		for (int i = 0; i < world; i++)
			CHECK(!waitpid(pids[i], NULL, WNOHANG),
			      "rank %d ended by itself", i);
		if (poll(&p, 1, 100) > 0)
			(void)eventfd_read(t->arrived, &some);
	}
	/* When it is killed is what is tried. */
	(void)usleep((useconds_t)dice_below(dice, 300000));
	atomic_store(&t->disturbed, true);
	if (agent) {
		scene_stop_agent(scene, SIGKILL);
		tally->agent_kills++;
		(void)usleep((useconds_t)dice_below(dice, 20000));
	} else if (dice_below(dice, 2)) {
		(void)kill(pids[first], SIGKILL);
		(void)usleep((useconds_t)dice_below(dice, 50000));
	}
	for (int i = 0; i < world; i++) {
		int status;

		(void)kill(pids[i], SIGKILL);
		CHECK(waitpid(pids[i], &status, 0) == pids[i]);
		CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL,
		      "rank %d ended by itself with %#x", i, status);
		tally->kills++;
	}
	if (agent) {
		memory_is_gone(t);
		scene_start_agent(scene);
	}
}

void trial_kill(struct scene *scene, uint64_t seed, struct tally *tally)
{
	struct truth *t = mmap(NULL, sizeof(*t), PROT_READ | PROT_WRITE,
			       MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	struct dice dice = dice_of(seed);
	char job[40];

	CHECK(t != MAP_FAILED);
	t->arrived = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	CHECK(t->arrived >= 0);
	for (int i = 0; i < LIVES; i++) {
		atomic_store(&t->lives[i].complete, -1);
		atomic_store(&t->lives[i].durable, -1);
	}
	(void)snprintf(job, sizeof(job), "kill-%llu",
		       (unsigned long long)seed);
	for (int i = 0; i < LIVES; i++) {
		int world = 1 + (int)dice_below(&dice, WORLD_MOST);
		struct life life = { .truth = t, .seed = seed, .number = i };
		pid_t pids[WORLD_MOST];

		/* Each life as it likes, with what others left. */
		scene->job_flags = dice_below(&dice, 3) ? 0 :
				   SK_JOB_NO_REPLICAS;
		atomic_store(&t->disturbed, false);
		atomic_store(&t->present, 0);
		scene_ranks_start(scene, job, world, train, &life, pids);
		end_life(scene, t, pids, world, &dice, tally);
		tally->lives++;
	}
	scene->job_flags = 0;
	tally->restores += atomic_load(&t->restores);
	close(t->arrived);
	CHECK(!munmap(t, sizeof(*t)));
}
