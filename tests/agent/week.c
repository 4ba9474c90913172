/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A week of a job on a clock that the test moves: a snapshot each second, a
 * flush each minute, the last few kept. Whatever the agent takes does not grow
 * with the time that it has served.
 *
 * argv[1]: how many seconds (a week).
 */
#include <dirent.h>
#include <errno.h>
#include <ftw.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "agent/whole.h"

#define SECOND UINT64_C(1000000000)
#define LONG_MS 3600000u
#define PART_S 600		/* after which it is looked at */
#define KEEP 4
/* Those of the store, the index and the job; a step's directory, image, run;
 * one more that is being written, and one that is being deleted. */
#define FILES_MOST (7 + (KEEP + 2) * 3)
/* Of memory, over all but the first part. What sanitizers keep of what was
 * freed, and note of what was touched, is theirs. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define GROWTH_MOST_KIB (256 << 10)
#else
#define GROWTH_MOST_KIB 1024
#endif
#define VISITS_NOISE 200	/* how turns fall differs from run to run */

/* What it takes at one time. */
struct taken {
	int fds, files;
	long memory_kib;
	double visits;		/* of the longest turn */
	double cpu_ms;		/* so far */
};

static int count_entries(const struct whole *w, const char *what)
{
	char path[64];
	int n = 0;
	DIR *dir;

	(void)snprintf(path, sizeof(path), "/proc/%d/%s",
		       (int)w->rig.agent, what);
	dir = opendir(path);
	CHECK(dir, "%s: %s", path, strerror(errno));
	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

static int n_files;

static int count_file(const char *path, const struct stat *st, int type,
		      struct FTW *ftw)
{
	(void)path;
	(void)st;
	(void)type;
	(void)ftw;
	n_files++;
	return 0;
}

static int count_files(const struct whole *w)
{
	n_files = 0;
	/* What is being deleted may go while it is counted. */
	(void)nftw(w->rig.store, count_file, 8, FTW_PHYS);
	return n_files;
}

static long field_of(const struct whole *w, const char *file,
		     const char *format)
{
	char path[64], line[512];
	long value = -1;
	FILE *f;

	(void)snprintf(path, sizeof(path), "/proc/%d/%s",
		       (int)w->rig.agent, file);
	f = fopen(path, "re");
	CHECK(f, "%s: %s", path, strerror(errno));
	while (value < 0 && fgets(line, sizeof(line), f))
		(void)sscanf(line, format, &value);
	fclose(f);
	return value;
}

static double cpu_ms(const struct whole *w)
{
	long ns = field_of(w, "schedstat", "%ld");

	return (double)ns / 1e6;	/* of its one thread that serves */
}

static struct taken look(const struct whole *w, int sock)
{
	return (struct taken){
		.fds = count_entries(w, "fd"), .files = count_files(w),
		/* Slots are shared memory: they do not count. */
		.memory_kib = field_of(w, "status", "RssAnon: %ld"),
		.visits = stat_value(sock, "shardkeep_longest_turn_visits"),
		.cpu_ms = cpu_ms(w),
	};
}

/* The disk is not as fast as this clock: while what is asked is waited for,
 * time goes on, and what the agent measures of the disk is too long. */
static void pass_until_answered(struct whole *w, struct rank *r)
{
	struct pollfd p = { .fd = r->sock, .events = POLLIN };

	while (poll(&p, 1, 1) == 0)
		sk_fault_os_advance(w->fault, SECOND / 10);
	CHECK_STATUS(rig_reply(r->sock, &r->msg, NULL, NULL), 0, &r->msg);
}

static void await_slot(struct whole *w, struct rank *r)
{
	struct sk_msg msg = { .type = SK_MSG_SLOT_WAIT, .body.slot_wait = {
		.id = { .run = r->run, .run_id = r->run_id, .step = -1,
			.rank = r->rank }, .timeout_ms = LONG_MS } };

	strcpy(msg.body.slot_wait.id.job, r->job);
	rig_send(r->sock, &msg);
	pass_until_answered(w, r);
}

static void snapshot(struct whole *w, struct rank *r, int64_t step)
{
	int slot = rank_slot(r, step, 0);

	while (slot == -EBUSY) {
		await_slot(w, r);
		slot = rank_slot(r, step, 0);
	}
	CHECK(slot >= 0, "step %lld: %s", (long long)step, rig_why(&r->msg));
	rank_fill(r, slot, step);
	CHECK_STATUS(rank_seal(r, slot, step), 0, &r->msg);
}

/* What need not stay goes a while later, at a bounded rate. */
static bool has_gone(struct whole *w, int sock)
{
	sk_fault_os_advance(w->fault, SECOND);
	(void)stat_value(sock, "shardkeep_clients");
	return count_files(w) <= FILES_MOST;
}

static void let_pass(struct whole *w, struct rank *r, int sock, int64_t from)
{
	for (int64_t s = 0; s < PART_S; s++) {
		snapshot(w, r, from + s);
		sk_fault_os_advance(w->fault, SECOND);
	}
	/* What is due is done before it is counted. */
	rank_send_wait(r, from + PART_S - 1, 3, LONG_MS);
	pass_until_answered(w, r);
	AWAIT(has_gone(w, sock), "%d files", n_files);
}

static void tell(const struct taken *now, int64_t seconds)
{
	printf("%7lld s: %d descriptors, %d files, %ld KiB, %g visits in a "
	       "turn, %.0f ms of CPU\n",
	       (long long)seconds, now->fds, now->files, now->memory_kib,
	       now->visits, now->cpu_ms);
	fflush(stdout);
}

static void check(const struct taken *first, const struct taken *now)
{
	/* Some are open while files are written, looked at and deleted. */
	CHECK(now->fds <= first->fds + 8, "%d descriptors, %d before",
	      now->fds, first->fds);
	CHECK(now->memory_kib <= first->memory_kib + GROWTH_MOST_KIB,
	      "%ld KiB, %ld before", now->memory_kib, first->memory_kib);
	/* It is the most that any had so far. */
	CHECK(now->visits <= 3 * first->visits + VISITS_NOISE,
	      "%g visits in a turn, %g before", now->visits, first->visits);
}

int main(int argc, char **argv)
{
	int64_t seconds = argc > 1 ? atoll(argv[1]) : 7 * 86400;
	struct taken first = { 0 }, now;
	struct whole w;
	struct rank r;
	int sock;

	whole_init(&w);
	w.options.flush_interval_s = 60;
	w.options.retention.keep_last = KEEP;
	w.options.retention_said = true;
	whole_start(&w);
	sock = rig_connect(&w.rig);
	CHECK_STATUS(rank_open(&r, &w.rig, &(struct rank_options){
		.job = "week", .world = 1, .rows = 1, .slots = 3,
		.by_cadence = true }), 0, &r.msg);
	for (int64_t at = 0; at < seconds; at += PART_S) {
		let_pass(&w, &r, sock, at);
		now = look(&w, sock);
		if (at == 0)
			first = now;
		if (at % 3600 == 0)
			tell(&now, at + PART_S);
		check(&first, &now);
	}
	rank_close(&r);
	close(sock);
	CHECK(rig_stop(&w.rig) == 0, "exit status: %s", whole_log(&w));
	whole_remove(&w);
	return 0;
}
