/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks with so many tensors that the agent reads their headers, and tells what
 * they cover, in the background: nobody notices. */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "agent/rig.h"

#define MORE 4000u

static struct rank_options options(const char *job, int rank, int world)
{
	return (struct rank_options){ .job = job, .rank = rank, .world = world,
				      .more = MORE };
}

static void open_rank(struct rank *r, const struct rig *rig,
		      const struct rank_options *o)
{
	CHECK_STATUS(rank_open(r, rig, o), 0, &r->msg);
	CHECK(r->layouts[0]->header_bytes > 65536, "it is short");
}

/* A slot is not refused for what is still being told. */
static void test_slots_follow(struct rig *rig)
{
	struct rank r;

	for (unsigned salt = 0; salt < 10; salt++) {
		struct rank_options o = options("follow", 0, 1);

		o.salt = salt;
		open_rank(&r, rig, &o);
		for (int64_t step = 1; step < 6; step++)
			rank_snapshot(&r, step);
		rank_close(&r);
	}
	open_rank(&r, rig, &(struct rank_options){
		.job = "list", .world = 1, .more = MORE });
	rank_snapshot(&r, 7);
	CHECK(snapshot_flags(r.sock, "list", 7) & SK_SNAP_COMPLETE,
	      "a list that does not wait until it is known");
	rank_close(&r);
	open_rank(&r, rig, &(struct rank_options){
		.job = "evict", .world = 1, .more = MORE });
	rank_snapshot(&r, 7);
	CHECK_STATUS(manage(r.sock, SK_MSG_EVICT, "evict", -1, 0, &r.msg),
		     -EBUSY, &r.msg);
	CHECK(strstr(rig_why(&r.msg), "is the newest complete"), "%s",
	      rig_why(&r.msg));
	rank_close(&r);
}

/* All wait, and the last one to seal makes it complete. */
static void test_waits(struct rig *rig)
{
	struct rank r[3];
	struct sk_msg msg;

	for (int i = 0; i < 3; i++)
		open_rank(&r[i], rig, &(struct rank_options){ .job = "waits",
			.rank = i, .world = 3, .more = MORE });
	for (int64_t step = 1; step < 4; step++) {
		for (int i = 0; i < 2; i++)
			rank_snapshot(&r[i], step);
		CHECK_STATUS(rank_wait(&r[0], step, 2, 1), -ETIMEDOUT,
			     &r[0].msg);
		CHECK(strstr(rig_why(&r[0].msg), "rank 2 of 3 has not sealed"),
		      "%s", rig_why(&r[0].msg));
		msg = (struct sk_msg){ .type = SK_MSG_WAIT, .body.wait = {
			.id = { .step = step }, .until = 2,
			.timeout_ms = WAIT_MS } };
		strcpy(msg.body.wait.id.job, "waits");
		rig_send(r[0].sock, &msg);
		rank_snapshot(&r[2], step);
		CHECK_STATUS(rig_reply(r[0].sock, &msg, NULL, NULL), 0, &msg);
	}
	for (int i = 0; i < 3; i++)
		rank_close(&r[i]);
}

/* What a rank asked for before it went is done: its image is there. */
static void test_seal_and_go(struct rig *rig)
{
	struct sk_msg msg = { .type = SK_MSG_SEAL };
	int watcher = rig_connect(rig), slot;
	double sealed = stat_value(watcher, "shardkeep_images_sealed_total");
	double deaths = stat_value(watcher, "shardkeep_rank_deaths_total");
	struct rank r;

	open_rank(&r, rig, &(struct rank_options){ .job = "goes", .world = 1,
						   .more = MORE });
	slot = rank_slot(&r, 1, 0);
	CHECK(slot >= 0, "no slot");
	rank_fill(&r, slot, 1);
	msg.body.seal.state = r.state;
	msg.body.seal.step = 1;
	msg.body.seal.slot = (uint32_t)slot;
	rig_send(r.sock, &msg);
	rank_close(&r);
	/* Each request is a turn. */
	while (stat_value(watcher, "shardkeep_rank_deaths_total") == deaths)
		;
	CHECK(stat_value(watcher, "shardkeep_images_sealed_total") ==
	      sealed + 1, "it was not sealed");
	CHECK(snapshot_flags(watcher, "goes", 1) & SK_SNAP_COMPLETE,
	      "it is not complete");
	close(watcher);
}

/* A slot that is given up while it is being sealed holds no image; a header
 * that is another's is refused. */
static void test_given_up(struct rig *rig)
{
	struct sk_msg seal = { .type = SK_MSG_SEAL },
		      discard = { .type = SK_MSG_DISCARD },
		      again = { .type = SK_MSG_SLOT }, msg;
	struct rank r;
	int slot, status, done = 0;

	open_rank(&r, rig, &(struct rank_options){ .job = "given-up",
						   .world = 1, .more = MORE });
	slot = rank_slot(&r, 1, 0);
	CHECK(slot >= 0, "no slot");
	rank_fill(&r, slot, 1);
	seal.body.seal.state = discard.body.seal.state = r.state;
	seal.body.seal.step = discard.body.seal.step = 1;
	seal.body.seal.slot = discard.body.seal.slot = (uint32_t)slot;
	again.body.slot.state = r.state;
	again.body.slot.step = 1;
	rig_send(r.sock, &seal);
	rig_send(r.sock, &discard);
	rig_send(r.sock, &again);
	/* Whichever is answered first; one of the two was in time. */
	for (int i = 0; i < 3; i++) {
		status = rig_reply(r.sock, &msg, NULL, NULL);
		done += status == 0 && msg.type != SK_MSG_SLOT;
		CHECK(status == 0 || status == -ECANCELED ||
		      status == -EINVAL || status == -EEXIST, "%d: %s",
		      status, rig_why(&msg));
	}
	CHECK(done == 1, "%d of SEAL and DISCARD", done);
	(void)rig_call(r.sock, &discard, NULL, 0, NULL, NULL);
	slot = rank_slot(&r, 2, 0);
	CHECK(slot >= 0, "no slot");
	rank_fill(&r, slot, 3);
	CHECK_STATUS(rank_seal(&r, slot, 2), -EBADMSG, &r.msg);
	CHECK(strstr(rig_why(&r.msg), "was not sealed"), "%s",
	      rig_why(&r.msg));
	rank_snapshot(&r, 3);
	rank_close(&r);
}

/* The newest one goes to disk when the last rank leaves, or the agent ends,
 * though it is not known yet that it is complete. */
static void test_last_one_out(struct rig *rig, bool stop)
{
	const char *job = stop ? "stopped" : "left";
	struct rank_options o = options(job, 0, 1);
	int watcher = rig_connect(rig);
	struct rank r;

	o.flush_every = UINT32_MAX;
	o.more = 8 * MORE;
	open_rank(&r, rig, &o);
	rank_snapshot(&r, 1);
	if (stop) {
		close(watcher);
		CHECK(rig_stop(rig) == 0, "it lost the newest snapshot");
		rank_close(&r);
		return;
	}
	rank_close(&r);
	while (!(snapshot_flags(watcher, job, 1) & SK_SNAP_DURABLE))
		;
	close(watcher);
}

int main(int argc, char **argv)
{
	struct rig rig;

	if (argc != 2)
		return 2;
	(void)signal(SIGPIPE, SIG_IGN);
	rig_init(&rig, argv[1]);
	rig_start(&rig, "--memory", "1G", "--log-level", "error", NULL);
	test_slots_follow(&rig);
	test_waits(&rig);
	test_seal_and_go(&rig);
	test_given_up(&rig);
	CHECK(rig_stop(&rig) == 0, "the agent failed");
	rig_start(&rig, "--memory", "1G", "--log-level", "error", "--store",
		  rig.store, NULL);
	test_last_one_out(&rig, false);
	test_last_one_out(&rig, true);
	rig_remove(&rig);
	return 0;
}
