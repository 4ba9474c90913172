/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A job of two nodes, of which this is one, goes on from a step that is not the
 * last of this node: from then on that is what stays, here in memory and on
 * disk, and what is newer is nobody's loss.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/rig.h"

#define LAST 3		/* of the first life */
#define BEGUN 2		/* what the second one restored */

static struct rank_options options(const char *job)
{
	return (struct rank_options){ .job = job, .world = 2, .slots = 3,
				      .flush_every = UINT32_MAX };
}

/* Its first life; and the end of it, which the agent has noticed. */
static void live(struct rank *r, const struct rig *rig, const char *job)
{
	const struct rank_options o = options(job);
	struct sk_msg msg;
	int sock;

	CHECK_STATUS(rank_open(r, rig, &o), 0, &r->msg);
	for (int64_t step = 1; step <= LAST; step++)
		rank_snapshot(r, step);
	rank_close(r);
	sock = rig_connect(rig);
	CHECK_STATUS(manage(sock, SK_MSG_EVICT, job, LAST, 0, &msg), -EBUSY,
		     &msg);
	close(sock);
}

static void begin(struct rank *r, const struct rig *rig, const struct rank *of,
		  int64_t step, bool newest)
{
	struct rank_options o = options(of->job);

	o.slots = 2;
	o.of = of;
	o.begun = step;
	o.newest = newest;
	CHECK_STATUS(rank_open(r, rig, &o), 0, &r->msg);
	CHECK(r->run > of->run, "run %llu", (unsigned long long)r->run);
}

static bool is_here(int sock, const char *job, int64_t step)
{
	return snapshot_flags(sock, job, step) & SK_SNAP_MEMORY;
}

static void check_kept(int sock, const char *job, int64_t step,
		       const char *why)
{
	struct sk_msg msg;

	CHECK_STATUS(manage(sock, SK_MSG_EVICT, job, step, 0, &msg), -EBUSY,
		     &msg);
	CHECK(strstr(rig_why(&msg), why) && strstr(rig_why(&msg), "--force"),
	      "%s", rig_why(&msg));
}

static void check_goes(int sock, const char *job, int64_t step)
{
	struct sk_msg msg;

	CHECK_STATUS(manage(sock, SK_MSG_EVICT, job, step, 0, &msg), 0, &msg);
	CHECK(!is_here(sock, job, step), "step %lld", (long long)step);
}

static void test_evict(struct rig *rig)
{
	struct rank old, new;

	rig_start(rig, "--memory", "64M", NULL);
	live(&old, rig, "newest");
	begin(&new, rig, &old, BEGUN, true);
	check_kept(new.sock, "newest", BEGUN, "the newest complete snapshot");
	check_kept(new.sock, "newest", -1, "step 2 of job");
	check_goes(new.sock, "newest", LAST);
	rank_snapshot(&new, LAST);
	check_kept(new.sock, "newest", BEGUN, "the newest complete snapshot");
	rank_snapshot(&new, LAST + 1);
	check_goes(new.sock, "newest", BEGUN);
	rank_close(&new);

	live(&old, rig, "named");
	begin(&new, rig, &old, 1, false);
	check_kept(new.sock, "named", LAST, "the newest complete snapshot");
	check_kept(new.sock, "named", 1, "what its job was restored from");
	check_goes(new.sock, "named", BEGUN);
	rank_close(&new);
	CHECK(rig_stop(rig) == 0, "exit status");
}

/* An image is 64 KiB and its header: the budget is that of three, and its
 * slots are a run's of three or two. */
static void test_room(struct rig *rig)
{
	struct rank old, new, other;
	struct rank_options o = options("room");

	rig_start(rig, "--memory", "240K", NULL);
	live(&old, rig, "room");
	begin(&new, rig, &old, BEGUN, true);
	CHECK(is_here(new.sock, "room", BEGUN), "what it restored went");
	CHECK(!is_here(new.sock, "room", LAST), "what nobody needs did not");
	rank_close(&new);
	/* Another job has nothing of it, either. */
	o.job = "other";
	o.slots = 3;
	CHECK_STATUS(rank_open(&other, rig, &o), -ENOMEM, &other.msg);
	rank_close(&other);
	o.slots = 2;
	CHECK_STATUS(rank_open(&other, rig, &o), 0, &other.msg);
	CHECK(is_here(other.sock, "room", BEGUN), "what it restored went");
	rank_close(&other);
	CHECK(rig_stop(rig) == 0, "exit status");
}

/* What is lost with the agent is what somebody may go back to. */
static void test_lost(struct rig *rig)
{
	struct sk_msg msg = { .type = SK_MSG_STOP,
			      .body.stop.flags = SK_STOP_WAIT };
	struct rank old, new;
	char path[200];
	int fd;

	(void)snprintf(path, sizeof(path), "%s/lost", rig->store);
	fd = open(path, O_CREAT | O_WRONLY, 0600);
	CHECK(fd >= 0, "create");
	close(fd);
	rig_start(rig, "--store", rig->store, "--memory", "64M", NULL);
	live(&old, rig, "lost");
	begin(&new, rig, &old, BEGUN, true);
	CHECK_STATUS(rig_call(new.sock, &msg, NULL, 0, NULL, NULL), -ENODATA,
		     &msg);
	CHECK(strstr(rig_why(&msg), "step 2 of job \"lost\"") &&
	      !strstr(rig_why(&msg), "step 3 of job \"lost\""), "%s",
	      rig_why(&msg));
	CHECK(rig_wait(rig) == 1, "exit status");
	rank_close(&new);
	CHECK(!unlink(path), "unlink");
}

int main(int argc, char **argv)
{
	struct rig rig;

	(void)argc;
	rig_init(&rig, argv[1]);
	test_evict(&rig);
	test_room(&rig);
	CHECK(!mkdir(rig.store, 0700), "mkdir");
	test_lost(&rig);
	rig_remove(&rig);
	return 0;
}
