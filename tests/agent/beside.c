/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who comes, goes, asks or writes beside jobs that nobody does anything with:
 * what the agent looks at for that is counted, with few of them and with many.
 */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/whole.h"

#define FEW 10
#define MANY 200
#define ROUNDS 8
#define TRIES 3
#define NEVER UINT32_MAX
#define SECOND UINT64_C(1000000000)
#define LARGE 8193	/* rows: two pieces of each slot to fault in */

/* ---- the agent, and the idle ---- */

static void begin(struct whole *w)
{
	whole_init(w);
	w->options.memory = 1u << 30;
	whole_start(w);
	CHECK(w->serves, "it did not start: %s", whole_log(w));
}

/* It was told to stop, and waits for the disk, which is there again. */
static void end(struct whole *w)
{
	sk_fault_os_forget(w->fault);
	CHECK(whole_wait(w) == 0, "exit status: %s", whole_log(w));
	whole_remove(w);
}

static void join(struct whole *w, struct rank *r,
		 const struct rank_options *o)
{
	CHECK_STATUS(rank_open(r, &w->rig, o), 0, &r->msg);
}

static void join_one(struct whole *w, struct rank *r, const char *job)
{
	join(w, r, &(struct rank_options){ .job = job, .world = 1, .rows = 1,
					   .flush_every = NEVER });
}

/* Each has something in memory, and on disk, for its rank has left. */
static void make_idle(struct whole *w, int n)
{
	char name[16];
	struct rank r;

	for (int i = 0; i < n; i++) {
		(void)snprintf(name, sizeof(name), "idle-%d", i);
		join_one(w, &r, name);
		rank_snapshot(&r, 1);
		CHECK_STATUS(rank_unregister(&r), 0, &r.msg);
		rank_close(&r);
	}
}

/* ---- what is done beside them ---- */

struct scene {
	struct whole w;
	int sock;		/* who asks what it took */
	struct rank keeps;	/* writes all, of which one stays */
	struct rank trains;
	struct rank last;	/* what it writes fails */
	int64_t step;
	bool stops;
};

static void connect_and_go(struct scene *s)
{
	close(rig_connect(&s->w.rig));
}

static void come_and_leave(struct scene *s)
{
	struct rank r;

	join_one(&s->w, &r, "leaves");
	CHECK_STATUS(rank_unregister(&r), 0, &r.msg);
	rank_close(&r);
}

/* Its process may still write, until it has ended. */
static void come_and_die(struct scene *s)
{
	double deaths = stat_value(s->sock, "shardkeep_rank_deaths_total");
	pid_t pid = fork();
	struct rank r;
	int status;

	CHECK(pid >= 0, "fork");
	if (!pid) {
		join_one(&s->w, &r, "dies");
		rank_snapshot(&r, 1);
		_exit(0);
	}
	CHECK(waitpid(pid, &status, 0) == pid && status == 0, "it fails");
	AWAIT(stat_value(s->sock, "shardkeep_rank_deaths_total") > deaths,
	      "it lives");
}

static void ask_for_one(struct scene *s)
{
	CHECK(snapshot_flags(s->sock, "idle-1", 1) & SK_SNAP_COMPLETE,
	      "it is not there");
}

static void ask_for_none(struct scene *s)
{
	CHECK(!snapshot_flags(s->sock, "none", 1), "it is there");
}

/* What is free goes with the rank: they are others each time. */
static void fault_in(struct scene *s)
{
	struct rank r;

	join(&s->w, &r, &(struct rank_options){
		.job = "large", .world = 1, .rows = LARGE, .slots = 2,
		.flush_every = NEVER });
	CHECK_STATUS(rank_unregister(&r), 0, &r.msg);
	rank_close(&r);
}

static void write_and_retire(struct scene *s)
{
	double before = stat_value(s->sock, "shardkeep_steps_retired_total");
	struct rank *r = &s->keeps;

	rank_snapshot(r, ++s->step);
	CHECK_STATUS(rank_wait(r, s->step, 3, WAIT_MS), 0, &r->msg);
	/* Of two one goes, and the thread that deletes rests after it. */
	AWAIT(stat_value(s->sock, "shardkeep_steps_retired_total") > before,
	      "nothing is deleted");
	sk_fault_os_advance(s->w.fault, SECOND);
}

static void let_time_pass(struct scene *s)
{
	sk_fault_os_advance(s->w.fault, SECOND + 1);
	rank_snapshot(&s->trains, ++s->step);
}

static double errors(const struct scene *s)
{
	return stat_value(s->sock, "shardkeep_flush_errors_total");
}

/* It is tried again when the agent is told to stop, and then waits for a time
 * that does not come. Nothing else is being written. */
static void begin_to_stop(struct scene *s)
{
	struct rank *r = &s->last;
	double before;

	AWAIT(stat_value(s->sock, "shardkeep_snapshots_to_flush") == 0,
	      "some wait for the disk");
	join(&s->w, r, &(struct rank_options){ .job = "last", .world = 1,
					       .rows = 1 });
	rank_snapshot(r, 1);
	CHECK_STATUS(rank_wait(r, 1, 3, WAIT_MS), 0, &r->msg);
	before = errors(s);
	sk_fault_os_fail(s->w.fault, SK_FAULT_MKDIRAT, 1, SK_FAULT_ALWAYS,
			 EIO);
	rank_snapshot(r, 2);
	AWAIT(errors(s) >= before + 1, "it does not fail");
	CHECK(kill(s->w.rig.agent, SIGTERM) == 0, "kill");
	AWAIT(errors(s) >= before + 2, "it is not tried again");
	s->stops = true;
}

/* Each has it ask whether it may end. */
static void pin_while_it_stops(struct scene *s)
{
	struct sk_msg msg;

	if (!s->stops)
		begin_to_stop(s);
	CHECK_STATUS(manage(s->sock, SK_MSG_PIN, "idle-1", 1, 0, &msg), 0,
		     &msg);
	CHECK_STATUS(manage(s->sock, SK_MSG_UNPIN, "idle-1", 1, 0, &msg), 0,
		     &msg);
}

static const struct deed {
	const char *what;
	void (*run)(struct scene *s);
} deeds[] = {
	{ "connecting and going", connect_and_go },
	{ "a rank that comes and leaves", come_and_leave },
	{ "a rank that comes and dies", come_and_die },
	{ "asking for one job", ask_for_one },
	{ "asking for one that nobody knows", ask_for_none },
	{ "faulting slots in", fault_in },
	{ "writing, and retiring what was written", write_and_retire },
	{ "a snapshot each second", let_time_pass },
	{ "pinning while it waits for the disk to end", pin_while_it_stops },
};

#define DEEDS (sizeof(deeds) / sizeof(*deeds))

/* ---- what it costs ---- */

/* Beside the deeds: of each job, once; and asking for figures, which is not
 * counted where they are asked for. */
#define LISTED DEEDS
#define ASKED (DEEDS + 1)
#define COUNTS (DEEDS + 2)

static double visits_to_list(struct scene *s)
{
	struct rig_since since = rig_since(s->sock);
	size_t n;

	free(list_snapshots(s->sock, "", &n));
	CHECK(n, "there are none");
	return rig_visits(s->sock, since) / (double)n;
}

static double visits_once(struct scene *s, const struct deed *deed)
{
	struct rig_since since;

	AWAIT(rig_is_quiet(s->sock), "something goes on");
	since = rig_since(s->sock);
	for (int i = 0; i < ROUNDS; i++)
		deed->run(s);
	AWAIT(rig_is_quiet(s->sock), "something goes on");
	return rig_visits(s->sock, since);
}

/* The least of some: threads that end meanwhile, as those that write for an
 * agent that stops, have it look once at all that they may concern. */
static double visits_of(struct scene *s, const struct deed *deed)
{
	double least;

	deed->run(s);	/* the first time is another matter */
	least = visits_once(s, deed);
	for (int i = 1; i < TRIES; i++) {
		double now = visits_once(s, deed);

		least = now < least ? now : least;
	}
	return least;
}

static void count(int idle, double ret[COUNTS])
{
	struct scene s = { 0 };

	begin(&s.w);
	s.sock = rig_connect(&s.w.rig);
	make_idle(&s.w, idle);
	AWAIT(stat_value(s.sock, "shardkeep_snapshots_durable_total") == idle,
	      "the others are not written");
	join(&s.w, &s.keeps, &(struct rank_options){
		.job = "keeps", .world = 1, .rows = 1, .keep_last = 1 });
	join_one(&s.w, &s.trains, "trains");
	rank_snapshot(&s.keeps, ++s.step);
	CHECK_STATUS(rank_wait(&s.keeps, s.step, 3, WAIT_MS), 0,
		     &s.keeps.msg);
	/* The index has all that was written. */
	sk_fault_os_advance(s.w.fault, 60 * SECOND);
	ret[LISTED] = visits_to_list(&s);
	AWAIT(rig_is_quiet(s.sock), "something goes on");
	ret[ASKED] = rig_visits_to_ask(s.sock);
	for (size_t i = 0; i < DEEDS; i++)
		ret[i] = visits_of(&s, &deeds[i]);
	rank_close(&s.keeps);
	rank_close(&s.trains);
	rank_close(&s.last);
	close(s.sock);
	end(&s.w);
}

/* Requests and replies may meet in one turn, or not. But not each of the others
 * is looked at with every second deed. */
int main(void)
{
	double few[COUNTS], many[COUNTS];
	bool all = true;

	count(FEW, few);
	count(MANY, many);
	for (size_t i = 0; i < DEEDS; i++) {
		if (many[i] < few[i] + (MANY - FEW) * ROUNDS / 2)
			continue;
		fprintf(stderr, "%s: %g visits beside %d jobs, %g beside %d\n",
			deeds[i].what, few[i], FEW, many[i], MANY);
		all = false;
	}
	CHECK(all, "%d times each", ROUNDS);
	CHECK(many[LISTED] < 2 * few[LISTED], "a list of all: %g visits a job "
	      "where they are few, %g where many", few[LISTED], many[LISTED]);
	CHECK(many[ASKED] < few[ASKED] + (MANY - FEW) / 2, "asking for figures: "
	      "%g visits beside %d jobs, %g beside %d", few[ASKED], FEW,
	      many[ASKED], MANY);
	return 0;
}
