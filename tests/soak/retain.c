/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A job trains and flushes, readers restore what it has, from memory, from disk
 * and cold, the agent reads all that is kept, and is killed or taken over from;
 * and all the while an operator says what is to stay, evicts, pins and flushes.
 * A restore that was begun ends with the right bytes, or all its ranks are told
 * the same; what is complete is there; and at the end the limits hold, and
 * nothing is left. In some trials ranks and readers are on two nodes.
 */
#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "soak/operator.h"
#include "support/await.h"

#define WORLD_MOST 3
#define READERS 2
#define SLOTS 4
#define ENDS 6		/* of agents, in a trial that has any */
#define TURNS 40	/* that readers take at least */
#define RESTORE_MS 30000
#define KEEP "2"
#define FDS_MORE 4	/* an agent that has taken over may have some more */

struct outcome {
	int r;
	int64_t step;
	uint64_t run;
	char why[200];
};

struct shared {
	struct operating o;
	pthread_barrier_t train, read;
	atomic_bool go[2], over;	/* by step: the ranks' own word */
	atomic_bool goes, last_failed;
	_Atomic(int64_t) least, least_durable;	/* of a turn of the readers */
	_Atomic(int64_t) last;		/* the last one, which is durable */
	atomic_int sealed[2];		/* by step: ranks that have, apart */
	atomic_uint kills, turns;
	atomic_ullong restores, none, lost;
	struct outcome outcomes[READERS];
};

struct life {
	struct shared *shared;
	uint64_t seed;
};

/* Ranks of two nodes meet by a file, and anew each time: a comm that failed is
 * of no more use. */
static int restore(struct rank *rank, bool apart, const char *name,
		   int64_t step, uint32_t flags, struct sk_report *report)
{
	/* One may have been told the last word that another has not. */
	struct sk_restore_options opts = { .flags = flags,
					   .timeout_ms = RESTORE_MS };
	struct sk_comm comm;
	char at[128];
	int r;

	(void)snprintf(at, sizeof(at), "%s/meeting-%s", rank->scene->dir, name);
	if (apart)
		CHECK(!sk_comm_meet(rank->sk, &(struct sk_meeting){
			.at = at, .rank = rank->rank, .world = rank->world },
			&comm), "%s", sk_error());
	r = sk_restore(rank->state, step, apart ? &comm : NULL, &opts, report);
	if (apart)
		sk_comm_meet_free(&comm);
	return r;
}

/* ---- ranks ---- */

static bool is_no_agent(int r)
{
	return r == -ECONNRESET || r == -EBUSY || r == -ETIMEDOUT;
}

static bool take(struct rank *rank, struct shared *t, int64_t step,
		 bool flush, uint32_t wait_ms)
{
	struct sk_snapshot_options o = {
		.wait_ms = wait_ms, .flags = flush ? SK_SNAPSHOT_FLUSH :
						     SK_SNAPSHOT_NO_FLUSH };
	int r;

	rank_write(rank, step);
	r = sk_snapshot(rank->state, step, &o);
	if (r == 0)
		r = sk_fence(rank->state);
	CHECK(r == 0 || is_no_agent(r), "snapshot: %d: %s", r, sk_error());
	atomic_fetch_add(&t->lost, r < 0);
	return r == 0;
}

static void raise_to(_Atomic(int64_t) *at, int64_t step)
{
	int64_t old = atomic_load(at);

	while (old < step && !atomic_compare_exchange_weak(at, &old, step))
		;
}

static void train_step(struct rank *rank, struct shared *t, int64_t step)
{
	if (!take(rank, t, step, step % 2 == 0, 200) ||
	    sk_wait(rank->state, step, t->o.apart ? SK_SEALED : SK_COMPLETE,
		    200) < 0)
		return;
	if (t->o.apart) {
		atomic_fetch_add(&t->sealed[step % 2], 1);
		return;
	}
	raise_to(&t->o.complete, step);
	if (sk_wait(rank->state, step - step % 2, SK_DURABLE, 1) == 0)
		raise_to(&t->o.durable, step - step % 2);
}

/* One that all have, in both places; who lost the agent comes back first. */
static void take_last(struct rank *rank, struct shared *t, int64_t step)
{
	for (int i = 0;; i++, step++) {
		CHECK(i < 20, "nothing becomes durable: %s", sk_error());
		atomic_store(&t->last_failed, false);
		(void)pthread_barrier_wait(&t->train);
		if (!take(rank, t, step, true, 60000) ||
		    sk_wait(rank->state, step, SK_DURABLE, 60000) < 0)
			atomic_store(&t->last_failed, true);
		(void)pthread_barrier_wait(&t->train);
		if (!atomic_load(&t->last_failed))
			break;
		(void)pthread_barrier_wait(&t->train);
	}
	atomic_store(&t->last, step);
}

/* No agent can tell what is complete on both nodes. */
static void note_sealed(struct rank *rank, struct shared *t, int64_t step)
{
	if (step >= 0 &&
	    atomic_load(&t->sealed[step % 2]) == rank->world)
		raise_to(&t->o.complete, step);
	atomic_store(&t->sealed[(step + 2) % 2], 0);
}

/* All take the same step, or none could become complete. */
static void train(struct rank *rank)
{
	const struct life *life = rank->arg;
	struct shared *t = life->shared;
	int64_t step = 0;

	model_describe(rank, life->seed, 0);
	/* By which they go on in one run. */
	if (t->o.apart)
		CHECK(restore(rank, true, "trainers", SK_LATEST, 0, NULL) ==
		      -ENOENT, "%s", sk_error());
	for (;; step++) {
		if (!rank->rank)
			atomic_store(&t->go[step % 2], !atomic_load(&t->over));
		(void)pthread_barrier_wait(&t->train);
		if (!rank->rank && t->o.apart)
			note_sealed(rank, t, step - 1);
		if (!atomic_load(&t->go[step % 2]))
			break;
		train_step(rank, t, step);
	}
	if (!t->o.apart)
		take_last(rank, t, step);
}

/* ---- readers ---- */

static int forget(const char *path, const struct stat *st, int type,
		  struct FTW *ftw)
{
	int fd = type == FTW_F ? open(path, O_RDONLY | O_CLOEXEC) : -1;

	(void)st;
	(void)ftw;
	if (fd >= 0) {
		(void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
		close(fd);
	}
	return 0;
}

/* What all of them do in that turn. */
struct turn {
	int64_t step;
	uint32_t flags;
	bool cold;
};

static struct turn turn_of(const struct life *life, unsigned i)
{
	static const uint32_t flags[] = { 0, 0, SK_RESTORE_MEMORY_ONLY,
					  SK_RESTORE_DISK_ONLY };
	struct dice dice = dice_of(life->seed + 31 * (uint64_t)i + 7);
	int64_t least = atomic_load(&life->shared->least);
	struct turn t = { .step = SK_LATEST,
			  .flags = flags[dice_below(&dice, 4)] };

	t.cold = t.flags == SK_RESTORE_DISK_ONLY && dice_below(&dice, 2);
	if (!dice_below(&dice, 4) && least > 8)
		t.step = least - (int64_t)dice_below(&dice, 8);
	return t;
}

static void check_restored(struct rank *rank, const struct turn *turn,
			   const struct sk_report *report, int64_t least)
{
	CHECK(report->run == 1, "run %llu", (unsigned long long)report->run);
	CHECK(turn->step == SK_LATEST ? report->step >= least :
					report->step == turn->step,
	      "step %lld came back; %lld was asked for by %#x, %lld was "
	      "complete", (long long)report->step, (long long)turn->step,
	      turn->flags, (long long)least);
	if (rank_wrong(rank, report->step, -1)) {
		rank_tell_wrong(rank, report->step, -1);
		CHECK(false, "wrong bytes of step %lld, of %llu by %#x",
		      (long long)report->step, (long long)turn->step,
		      turn->flags);
	}
}

static void check_error(struct shared *t, const struct turn *turn, int r,
			int64_t least, bool disturbed)
{
	CHECK(sk_error()[0], "%d without a sentence", r);
	/* Ranks list so many times and no more: a machine that is busy may let
	 * each list grow old. That is said, and no first run. */
	if (r == -EIO && turn->step == SK_LATEST &&
	    strstr(sk_error(), " times")) {
		atomic_fetch_add(&t->none, 1);
		return;
	}
	if (r != -ENOENT) {
		CHECK(disturbed && is_no_agent(r), "step %lld by %#x: %d: %s",
		      (long long)turn->step, turn->flags, r, sk_error());
		return;
	}
	atomic_fetch_add(&t->none, 1);
	CHECK(turn->step != SK_LATEST || least < 0, "step %lld was complete, "
	      "and is not there by %#x: %s", (long long)least, turn->flags,
	      sk_error());
}

/* An agent that ends may have told one of them more than another. */
static void check_alike(const struct shared *t)
{
	const struct outcome *a = &t->outcomes[0];

	for (int i = 1; i < READERS; i++) {
		const struct outcome *b = &t->outcomes[i];

		CHECK(a->r == b->r && a->step == b->step && a->run == b->run,
		      "rank 0 has %d, step %lld (%s), rank %d %d, step %lld "
		      "(%s)", a->r, (long long)a->step, a->why, i, b->r,
		      (long long)b->step, b->why);
	}
}

static void read_turn(struct rank *rank, struct shared *t, unsigned i)
{
	const struct life *life = rank->arg;
	int64_t least;
	unsigned kills = atomic_load(&t->o.kills);
	struct turn turn = turn_of(life, i);
	struct sk_report report = { .step = -1 };
	struct outcome *o = &t->outcomes[rank->rank];
	bool disturbed;
	char name[16];

	least = turn.flags == SK_RESTORE_DISK_ONLY ?
		atomic_load(&t->least_durable) : atomic_load(&t->least);
	/* Each node's agent lets go by what it knows alone: of what does not
	 * stand still two of them may have an older one in common, or none. */
	if (t->o.apart)
		least = -1;
	if (turn.cold && !rank->rank)
		(void)nftw(rank->scene->store, forget, 16, FTW_PHYS);
	(void)snprintf(name, sizeof(name), "%u", i);
	*o = (struct outcome){ .r = restore(rank, t->o.apart, name, turn.step,
					    turn.flags, &report) };
	(void)snprintf(o->why, sizeof(o->why), "%s", o->r ? sk_error() : "");
	disturbed = kills % 2 || kills != atomic_load(&t->o.kills);
	if (o->r == 0) {
		o->step = report.step;
		o->run = report.run;
		check_restored(rank, &turn, &report, least);
		atomic_fetch_add(&t->restores, 1);
	} else {
		check_error(t, &turn, o->r, least, disturbed);
	}
	atomic_fetch_or(&t->kills, disturbed);
	(void)pthread_barrier_wait(&t->read);
	if (!rank->rank && !atomic_load(&t->kills))
		check_alike(t);
}

/* In step; the word of whether there is another turn is one for all. */
static void read_on(struct rank *rank)
{
	const struct life *life = rank->arg;
	struct shared *t = life->shared;

	model_describe(rank, life->seed, 1);
	for (unsigned i = 0;; i++) {
		(void)pthread_barrier_wait(&t->read);
		if (!rank->rank) {
			atomic_store(&t->kills, 0);
			atomic_store(&t->turns, i);
			atomic_store(&t->least, atomic_load(&t->o.complete));
			atomic_store(&t->least_durable,
				     atomic_load(&t->o.durable));
			atomic_store(&t->goes, !atomic_load(&t->over));
		}
		(void)pthread_barrier_wait(&t->read);
		if (!atomic_load(&t->goes))
			return;
		read_turn(rank, t, i);
	}
}

static void read_last(struct rank *rank)
{
	const struct life *life = rank->arg;
	int64_t last = atomic_load(&life->shared->last);
	struct sk_report report = { .step = -1 };

	model_describe(rank, life->seed, 2);
	CHECK(!rank_restore(rank, SK_LATEST, SK_RESTORE_DISK_ONLY, &report),
	      "%s", sk_error());
	CHECK(report.step == last && !rank_wrong(rank, last, -1), "step %lld",
	      (long long)report.step);
}

/* ---- the trial ---- */

static void barrier_init(pthread_barrier_t *b, int n)
{
	pthread_barrierattr_t attr;

	CHECK(!pthread_barrierattr_init(&attr));
	CHECK(!pthread_barrierattr_setpshared(&attr, PTHREAD_PROCESS_SHARED));
	CHECK(!pthread_barrier_init(b, &attr, (unsigned)n));
}

static struct shared *share(int world)
{
	struct shared *t = mmap(NULL, sizeof(*t), PROT_READ | PROT_WRITE,
				MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	CHECK(t != MAP_FAILED);
	atomic_store(&t->o.complete, -1);
	atomic_store(&t->o.durable, -1);
	barrier_init(&t->train, world);
	barrier_init(&t->read, READERS);
	return t;
}

static pid_t start_operator(struct scene *scene, const char *job,
			    struct shared *t, uint64_t seed)
{
	pid_t pid;

	fflush(NULL);
	pid = fork();
	CHECK(pid >= 0);
	if (pid)
		return pid;
	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	operate(scene, job, &t->o, seed);
	exit(0);
}

/* Whoever waits for them is told when a process has failed. */
static void check_living(int n, const pid_t *pids)
{
	for (int i = 0; i < n; i++) {
		siginfo_t info = { .si_pid = 0 };

		CHECK(!waitid(P_PID, (id_t)pids[i], &info,
			      WEXITED | WNOHANG | WNOWAIT));
		CHECK(!info.si_pid, "process %d ended", (int)pids[i]);
	}
}

static void end_agent(struct scene *scene, struct shared *t,
		      struct dice *dice, struct tally *tally)
{
	pid_t pid = serving(scene, tally);

	atomic_fetch_add(&t->o.kills, 1);
	if (dice_below(dice, 3))
		serving_kill(scene, pid, dice, tally);
	else
		serving_hand_over(scene, pid, dice, tally);
	(void)serving(scene, tally);
	atomic_fetch_add(&t->o.kills, 1);
}

static int fds_of(pid_t pid)
{
	char path[64];
	int n = 0;
	DIR *dir;

	(void)snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
	dir = opendir(path);
	CHECK(dir);
	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

/* As many as were said, or fewer where that was said before. */
static void await_steps(const struct scene *scene, const char *job, int most)
{
	const uint64_t until = await_until();

	while (operator_steps(scene, job) > most && !await_late(until))
		;
	if (operator_steps(scene, job) > most)
		operator_show(scene, job);
	CHECK(operator_steps(scene, job) <= most, "%d steps stay, not %d",
	      operator_steps(scene, job), most);
}

/* The limits hold, for what was said last; the newest stays in any case. */
static void check_limits(struct scene *scene, const char *job,
			 const struct life *life)
{
	CHECK(!operator_run(scene, "retain", job, "--last", KEEP, NULL));
	await_steps(scene, job, 2);
	scene_ranks(scene, job, 1, read_last, life);
	CHECK(!operator_run(scene, "retain", job, "--bytes", "1K", NULL));
	await_steps(scene, job, 1);
	scene_ranks(scene, job, 1, read_last, life);
}

/* Nobody holds anything any more. */
static void check_level(struct scene *scene, int fds, struct tally *tally)
{
	operator_evict_all(scene);
	AWAIT(operator_figure(scene, "shardkeep_memory_used_bytes") == 0,
	      "%.0f bytes are held", operator_figure(scene,
				     "shardkeep_memory_used_bytes"));
	AWAIT(fds_of(serving(scene, tally)) <= fds + FDS_MORE, "%d "
	      "descriptors, and %d at the start",
	      fds_of(serving(scene, tally)), fds);
	CHECK(operator_figure(scene, "shardkeep_scrub_bad_checksums_total") ==
	      0 && operator_figure(scene, "shardkeep_bad_checksums_total") ==
	      0, "something was found damaged");
}

static void disturb(struct scene *scene, struct shared *t, struct dice *dice,
		    int n, const pid_t *pids, struct tally *tally)
{
	int ends = dice_below(dice, 2) ? ENDS : 0;

	while (ends || atomic_load(&t->turns) < TURNS) {
		/* When it is ended is what is tried. */
		(void)usleep((useconds_t)(1000 + dice_below(dice, 200000)));
		check_living(n, pids);
		/* Ranks that do not know of each other yet begin runs apart. */
		if (ends && atomic_load(&t->o.complete) >= 0 && ends--)
			end_agent(scene, t, dice, tally);
	}
}

static void run_trial(struct scene *scene, const char *job, int world,
		      struct life *life, struct dice *dice,
		      struct tally *tally)
{
	pid_t pids[WORLD_MOST + READERS + 1];
	struct scene readers = *scene;
	int n = world + READERS, status;

	readers.job_flags = SK_JOB_READER;
	readers.slots = 0;
	if (!life->shared->o.apart)
		scene->n_nodes = readers.n_nodes = 0;
	scene_ranks_start(scene, job, world, train, life, pids);
	scene_ranks_start(&readers, job, READERS, read_on, life,
			  pids + world);
	pids[n] = start_operator(scene, job, life->shared, life->seed);
	disturb(scene, life->shared, dice, n + 1, pids, tally);
	atomic_store(&life->shared->o.over, true);
	CHECK(waitpid(pids[n], &status, 0) == pids[n] && !status, "the "
	      "operator failed");
	atomic_store(&life->shared->over, true);
	scene_ranks_end(job, READERS, pids + world);
	scene_ranks_end(job, world, pids);
}

/* A second one beside the scene, which is the first. */
static void add_node(struct scene *scene)
{
	static struct scene nodes[2];

	if (scene->nodes)
		return;
	scene_add_nodes(scene, nodes, 2, true);
	/* The scene has it, whoever takes over. */
	nodes[0].agent = -1;
}

void trial_retain(struct scene *scene, uint64_t seed, struct tally *tally)
{
	struct dice dice = dice_of(seed);
	bool apart = !dice_below(&dice, 3);
	int world = apart ? 2 : 1 + (int)dice_below(&dice, WORLD_MOST), fds;
	struct life life = { .shared = share(world), .seed = seed };
	struct shared *t = life.shared;
	char job[40];

	scene->scrub_rate = "1G";
	scene->slots = SLOTS;
	t->o.apart = apart;
	serving_keep(scene);
	if (apart)
		add_node(scene);
	scene->n_nodes = scene->nodes ? 2 : 0;
	fds = fds_of(serving(scene, tally));
	(void)snprintf(job, sizeof(job), "retain-%llu",
		       (unsigned long long)seed);
	run_trial(scene, job, world, &life, &dice, tally);
	if (!apart)
		check_limits(scene, job, &life);
	scene->n_nodes = scene->nodes ? 2 : 0;
	check_level(scene, fds, tally);
	CHECK(atomic_load(&t->restores), "nothing was ever restored");
	tally->lives++;
	tally->restores += atomic_load(&t->restores);
	tally->none += atomic_load(&t->none);
	tally->steps += (uint64_t)atomic_load(&t->last);
	tally->lost += atomic_load(&t->lost);
	tally->commands += atomic_load(&t->o.commands);
	tally->refused += atomic_load(&t->o.refused);
	CHECK(!munmap(t, sizeof(*t)));
}
