/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Of a job's steps the newest are known, however many the disk has: what that
 * spares who asks for the newest one by cachectl, what an agent of several that
 * serve the job knows, and what watch makes of it. And what cachectl has open
 * of a snapshot of many ranks.
 *
 * argv: shardkeepd, cachectl.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "agent/whole.h"

#define JOB "kept"
#define FEW 70
#define MANY 280
#define KNOWN SK_LIST_KNOWN_MOST
#define SECOND UINT64_C(1000000000)

#define RANKS 40
#define TRIES 4		/* what goes on beside it is not its cost */

static const char *cachectl;
static struct rlimit descriptors;	/* of cachectl; 0: as we have them */

/* ---- a job that keeps all ---- */

static void begin(struct whole *w, struct rank *r, int32_t world)
{
	struct timespec now;

	whole_init(w);
	/* What is written is an hour old, and so known by its times. */
	clock_gettime(CLOCK_REALTIME, &now);
	sk_fault_os_clock(w->fault, 1, ((uint64_t)now.tv_sec + 3600) * SECOND);
	whole_start(w);
	CHECK(w->serves, "%s", whole_log(w));
	CHECK_STATUS(rank_open(r, &w->rig, &(struct rank_options){
		.job = JOB, .world = world, .rows = 1,
		.keep_last = UINT32_MAX }), 0, &r->msg);
}

static void end(struct whole *w, struct rank *r)
{
	rank_close(r);
	CHECK(kill(w->rig.agent, SIGTERM) == 0, "kill");
	CHECK(whole_wait(w) == 0, "%s", whole_log(w));
	whole_remove(w);
}

/* To disk, as far as this agent has it. */
static void take(struct rank *r, int64_t step)
{
	rank_snapshot(r, step);
	CHECK_STATUS(rank_wait(r, step, r->world > 1 ? 4 : 3, WAIT_MS), 0,
		     &r->msg);
}

static double known(struct whole *w, int sock, uint64_t later_ns)
{
	sk_fault_os_advance(w->fault, later_ns);
	return stat_value(sock, "shardkeep_snapshots");
}

/* The newest are known, and what somebody listed a minute ago no more. */
static void await_few(struct whole *w, int sock)
{
	AWAIT(known(w, sock, 60 * SECOND) <= KNOWN, "%g are known",
	      known(w, sock, 0));
}

/* ---- at one of several agents ---- */

struct visits {
	double least, most;
};

/* What a restart looks at beside so many steps of which the other ranks' parts
 * are elsewhere. Asking costs as much, and that is known within some. */
static struct visits visits_of_a_restart(int steps)
{
	struct rank_options o = { .job = JOB, .world = 2, .rows = 1 };
	struct rig_since since;
	struct rank r;
	struct whole w;
	struct visits visits = { 0 };
	double seen;
	int sock;

	begin(&w, &r, 2);
	sock = rig_connect(&w.rig);
	for (int step = 1; step <= steps; step++)
		take(&r, step);
	await_few(&w, sock);
	for (int i = 1; i <= TRIES; i++) {
		rank_close(&r);
		AWAIT(rig_is_quiet(sock), "it is not quiet");
		since = rig_since(sock);
		CHECK_STATUS(rank_open(&r, &w.rig, &o), 0, &r.msg);
		take(&r, steps + i);
		AWAIT(rig_is_quiet(sock), "it is not quiet");
		seen = rig_visits(sock, since);
		if (i == 1 || seen < visits.least)
			visits.least = seen;
		if (seen > visits.most)
			visits.most = seen;
		await_few(&w, sock);
	}
	CHECK(snapshot_flags(sock, JOB, 1) & SK_SNAP_DISK, "step 1 is lost");
	close(sock);
	end(&w, &r);
	return visits;
}

static void test_a_part_is_left_to_the_disk(void)
{
	double few = visits_of_a_restart(FEW).most;
	double many = visits_of_a_restart(MANY).least;

	/* What is known may be looked at a few times more, as the machine has
	 * it; what is not, never. */
	CHECK(few > 0 && many <= few + 10 * KNOWN,
	      "%g visits with %d steps, %g with %d", few, FEW, many, MANY);
}

/* ---- who asks for the newest ---- */

static pid_t run(const struct whole *w, const char *command, const char *more,
		 int *ret_out)
{
	int out[2];
	pid_t pid;

	CHECK(pipe2(out, O_CLOEXEC) == 0, "pipe");
	pid = fork();
	CHECK(pid >= 0, "fork");
	if (!pid) {
		(void)dup2(out[1], STDOUT_FILENO);
		if (descriptors.rlim_max)
			(void)setrlimit(RLIMIT_NOFILE, &descriptors);
		execl(cachectl, cachectl, "--socket", w->rig.socket, command,
		      JOB, more, (char *)NULL);
		_exit(127);
	}
	close(out[1]);
	*ret_out = out[0];
	return pid;
}

static const struct {
	const char *command, *more;
} of_newest[] = {
	{ "show", NULL }, { "show", "w" }, { "pin", NULL }, { "unpin", NULL },
	{ "flush", NULL }, { "retain", NULL },
};

#define N_OF_NEWEST (sizeof(of_newest) / sizeof(*of_newest))

static void run_one(const struct whole *w, size_t i)
{
	char text[4096];
	int out, status;
	pid_t pid = run(w, of_newest[i].command, of_newest[i].more, &out);

	while (read(out, text, sizeof(text)) > 0)
		;
	close(out);
	CHECK(waitpid(pid, &status, 0) == pid && status == 0, "%s: %d",
	      of_newest[i].command, status);
}

/* How many files the agent opens for each, at the least. */
static void count_opens(int steps, uint64_t opens[N_OF_NEWEST])
{
	struct rank r;
	struct whole w;
	int sock;

	begin(&w, &r, 1);
	sock = rig_connect(&w.rig);
	for (int step = 1; step <= steps; step++)
		take(&r, step);
	await_few(&w, sock);
	/* The first look of all is at what was written since the start. */
	run_one(&w, 0);
	await_few(&w, sock);
	for (size_t k = 0; k < TRIES * N_OF_NEWEST; k++) {
		size_t i = k % N_OF_NEWEST;
		uint64_t at = sk_fault_os_calls(w.fault, SK_FAULT_OPENAT), n;

		run_one(&w, i);
		n = sk_fault_os_calls(w.fault, SK_FAULT_OPENAT) - at;
		opens[i] = k == i || n < opens[i] ? n : opens[i];
	}
	CHECK(stat_value(sock, "shardkeep_snapshots") <= KNOWN,
	      "all are known");
	close(sock);
	end(&w, &r);
}

static void test_the_newest_is_asked_for_alone(void)
{
	uint64_t few[N_OF_NEWEST], many[N_OF_NEWEST];

	count_opens(FEW, few);
	count_opens(MANY, many);
	/* Beside it the newest may be looked into; each of all others would be
	 * two opens more, and its images' two. */
	for (size_t i = 0; i < N_OF_NEWEST; i++)
		CHECK(many[i] <= few[i] + 2 * KNOWN, "%s: %" PRIu64
		      " opens with %d steps, %" PRIu64 " with %d",
		      of_newest[i].command, few[i], FEW, many[i], MANY);
}

/* ---- who watches ---- */

struct watch {
	int out;
	pid_t pid;
	char text[65536];
	size_t n;
};

/* Until it has told that. */
static void await_line(struct watch *w, const char *line)
{
	while (!strstr(w->text, line)) {
		ssize_t n = read(w->out, w->text + w->n,
				 sizeof(w->text) - 1 - w->n);

		CHECK(n > 0, "it ends without \"%s\": %s", line, w->text);
		w->n += (size_t)n;
	}
}

/* Events of that kind. */
static unsigned told(const struct watch *w, const char *event)
{
	const char *at = w->text;
	unsigned n = 0;

	while ((at = strstr(at, event))) {
		at += strlen(event);
		n++;
	}
	return n;
}

static void list_all(const struct whole *w)
{
	int sock = rig_connect(&w->rig);
	size_t n;

	free(list_snapshots(sock, JOB, &n));
	close(sock);
}

/* What is known no more was not deleted, and what somebody lists is not new;
 * what is deleted is. */
static void test_what_is_left_is_no_event(void)
{
	struct watch watch = { 0 };
	struct sk_msg msg;
	struct rank r;
	struct whole w;
	int sock;

	begin(&w, &r, 1);
	sock = rig_connect(&w.rig);
	for (int step = 1; step <= 2 * FEW; step++)
		take(&r, step);
	await_few(&w, sock);
	watch.pid = run(&w, "watch", NULL, &watch.out);
	AWAIT(known(&w, sock, 0) == 2 * FEW, "it does not look");
	for (int step = 2 * FEW + 1; !told(&watch, "durable"); step++) {
		char line[64];

		take(&r, step);
		(void)snprintf(line, sizeof(line), "/%d ", step);
		await_line(&watch, line);
	}
	await_few(&w, sock);
	take(&r, 900);
	await_line(&watch, "/900 durable");
	list_all(&w);
	take(&r, 901);
	await_line(&watch, "/901 durable");
	await_few(&w, sock);
	take(&r, 902);
	await_line(&watch, "/902 durable");
	CHECK(told(&watch, "deleted") == 0, "%s", watch.text);
	CHECK(told(&watch, "/5 ") == 0, "%s", watch.text);
	CHECK_STATUS(manage(sock, SK_MSG_EVICT, JOB, 2 * FEW, SK_EVICT_DISK,
			    &msg), 0, &msg);
	await_line(&watch, "deleted");
	CHECK(kill(watch.pid, SIGTERM) == 0 &&
	      waitpid(watch.pid, NULL, 0) == watch.pid, "watch");
	close(watch.out);
	close(sock);
	end(&w, &r);
}

/* ---- a snapshot of many ranks ---- */

static int status_of(const struct whole *w, const char *command,
		     const char *more)
{
	char text[4096];
	int out, status;
	pid_t pid = run(w, command, more, &out);

	while (read(out, text, sizeof(text)) > 0)
		;
	close(out);
	CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status), "wait");
	return WEXITSTATUS(status);
}

/* Fewer descriptors than ranks do; export takes as many as it may. */
static void test_many_ranks_take_few_descriptors(void)
{
	static struct rank ranks[RANKS];
	char path[160];
	struct whole w;

	whole_init(&w);
	whole_start(&w);
	for (int i = 0; i < RANKS; i++)
		CHECK_STATUS(rank_open(&ranks[i], &w.rig,
				       &(struct rank_options){
			.job = JOB, .rank = i, .world = RANKS, .rows = 1,
			.flush_every = UINT32_MAX }), 0, &ranks[i].msg);
	for (int i = 0; i < RANKS; i++)
		rank_snapshot(&ranks[i], 1);
	CHECK_STATUS(rank_wait(&ranks[0], 1, 2, WAIT_MS), 0, &ranks[0].msg);
	(void)snprintf(path, sizeof(path), "%s/whole.safetensors", w.rig.dir);
	descriptors = (struct rlimit){ RANKS - 10, RANKS - 10 };
	CHECK(status_of(&w, "show", NULL) == 0, "show");
	CHECK(status_of(&w, "show", "w") == 0, "show of a tensor");
	CHECK(status_of(&w, "verify", NULL) == 0, "verify");
	descriptors.rlim_max = 3 * RANKS;
	CHECK(status_of(&w, "export", path) == 0, "export");
	descriptors = (struct rlimit){ 0 };
	for (int i = 0; i < RANKS; i++)
		rank_close(&ranks[i]);
	CHECK(kill(w.rig.agent, SIGTERM) == 0, "kill");
	CHECK(whole_wait(&w) == 0, "%s", whole_log(&w));
	whole_remove(&w);
}

int main(int argc, char **argv)
{
	CHECK(argc == 3, "usage: %s shardkeepd cachectl", argv[0]);
	cachectl = argv[2];
	test_many_ranks_take_few_descriptors();
	test_a_part_is_left_to_the_disk();
	test_the_newest_is_asked_for_alone();
	test_what_is_left_is_no_event();
	return 0;
}
