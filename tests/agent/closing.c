/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections that end while the agent is about to answer them: a client
 * shuts its side for reading and asks on, so that every reply to it fails in
 * the middle of whatever replies. The agent lets the client go and nothing
 * else.
 */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent/rig.h"

#define WAITS 4

/* The agent still answers. */
static void check_lives(struct rig *rig, const char *after)
{
	int sock = rig_connect(rig);

	CHECK(stat_value(sock, "shardkeep_clients") >= 1, "after %s", after);
	close(sock);
}

/* Once only the connection that asks is left. */
static void check_alone(struct rig *rig, const char *after)
{
	int sock = rig_connect(rig);

	AWAIT(stat_value(sock, "shardkeep_clients") == 1,
	      "after %s the agent keeps the connection", after);
	close(sock);
}

static int connect_deaf(struct rig *rig)
{
	int sock = rig_connect(rig);

	CHECK(shutdown(sock, SHUT_RD) == 0, "shutdown");
	return sock;
}

static void ask_gather_of(int sock, const char *job, uint64_t run,
			  uint64_t run_id, int32_t rank, int32_t world,
			  uint32_t bytes)
{
	struct sk_msg msg = { .type = SK_MSG_GATHER, .body.gather = {
		.id = { .run = run, .run_id = run_id, .step = -1,
			.rank = rank, .world = world },
		.bytes = bytes, .timeout_ms = WAIT_MS } };

	strcpy(msg.body.gather.id.job, job);
	/* The agent may have closed it by now. */
	(void)sk_channel_send(sk_os_linux(), sock, &msg, NULL, 0);
}

/* Readers have no run. */
static void ask_gather(int sock, const char *job, int32_t rank, int32_t world,
		       uint32_t bytes)
{
	ask_gather_of(sock, job, SK_RUN_READERS, 0, rank, world, bytes);
}

static void ask_wait(int sock, const char *job, int64_t step, uint32_t until,
		     uint32_t timeout_ms)
{
	struct sk_msg msg = { .type = SK_MSG_WAIT, .body.wait = {
		.id = { .step = step, .rank = -1 }, .until = until,
		.timeout_ms = timeout_ms } };

	strcpy(msg.body.wait.id.job, job);
	(void)sk_channel_send(sk_os_linux(), sock, &msg, NULL, 0);
}

static void ask_list(int sock)
{
	struct sk_msg msg = { .type = SK_MSG_LIST, .body.list = {
		.id = { .step = -1, .rank = -1 },
		.what = SK_LIST_SNAPSHOTS } };

	(void)sk_channel_send(sk_os_linux(), sock, &msg, NULL, 0);
}

/* The round is whole, and nobody listens to it. */
static void test_gather_given(struct rig *rig)
{
	int sock = connect_deaf(rig);

	ask_gather(sock, "g", 0, 2, 8);
	ask_gather(sock, "g", 1, 2, 8);
	check_lives(rig, "a gather that is given");
	close(sock);
	check_alone(rig, "a gather that is given");
}

/* The last to come differs: the others are told, in vain. */
static void test_gather_failed(struct rig *rig)
{
	int deaf = connect_deaf(rig), other = rig_connect(rig);
	struct sk_msg msg = { 0 };

	for (int32_t rank = 0; rank < 3; rank++)
		ask_gather(deaf, "f", rank, 5, 8);
	check_lives(rig, "half a gather");
	ask_gather(other, "f", 4, 5, 16);
	CHECK_STATUS(rig_reply(other, &msg, NULL, NULL), -EINVAL, &msg);
	close(deaf);
	close(other);
	check_alone(rig, "a gather that failed");
}

/* The one that makes it fail is itself deaf, and waits in it. */
static void test_gather_failed_by_itself(struct rig *rig)
{
	int deaf = connect_deaf(rig);

	for (int32_t rank = 0; rank < 3; rank++)
		ask_gather(deaf, "i", rank, 4, 8);
	ask_gather(deaf, "i", 3, 4, 16);
	check_lives(rig, "a gather that its own rank failed");
	close(deaf);
	check_alone(rig, "a gather that its own rank failed");
}

/* A rank dies; those who wait for it are deaf, and ranks of the same run. */
static void test_rank_death(struct rig *rig)
{
	struct rank ranks[3];

	for (int32_t i = 0; i < 3; i++)
		CHECK_STATUS(rank_open(&ranks[i], rig, &(struct rank_options){
			.job = "death", .rank = i, .world = 3 }), 0,
			&ranks[i].msg);
	CHECK(shutdown(ranks[0].sock, SHUT_RD) == 0, "shutdown");
	ask_gather_of(ranks[0].sock, "death", ranks[0].run,
		      ranks[0].run_id, 0, 3, 8);
	ask_gather_of(ranks[0].sock, "death", ranks[0].run,
		      ranks[0].run_id, 1, 3, 8);
	check_lives(rig, "two thirds of a gather");
	rank_close(&ranks[2]);
	check_lives(rig, "a rank's death");
	rank_close(&ranks[1]);
	rank_close(&ranks[0]);
	check_alone(rig, "a rank's death");
}

/* Several that wait for one thing, which happens. */
static void test_waits_answered(struct rig *rig)
{
	struct rank r;
	int deaf;

	CHECK_STATUS(rank_open(&r, rig, &(struct rank_options){
		.job = "waits", .world = 1 }), 0, &r.msg);
	CHECK(rank_slot(&r, 1, 0) >= 0, "slot");
	deaf = connect_deaf(rig);
	for (int i = 0; i < WAITS; i++)
		ask_wait(deaf, "waits", 1, 2, WAIT_MS);
	check_lives(rig, "waits");
	rank_fill(&r, 0, 1);
	CHECK_STATUS(rank_seal(&r, 0, 1), 0, &r.msg);
	check_lives(rig, "waits that are answered");
	/* And some that are refused as soon as they are looked at. */
	close(deaf);
	deaf = connect_deaf(rig);
	for (int i = 0; i < WAITS; i++)
		ask_wait(deaf, "waits", 99, 2, WAIT_MS);
	check_lives(rig, "waits that are refused");
	close(deaf);
	rank_close(&r);
	check_alone(rig, "waits");
}

static void test_waits_timed_out(struct rig *rig)
{
	struct rank r;
	int deaf;

	CHECK_STATUS(rank_open(&r, rig, &(struct rank_options){
		.job = "late", .world = 1 }), 0, &r.msg);
	CHECK(rank_slot(&r, 1, 0) >= 0, "slot");
	deaf = connect_deaf(rig);
	for (int i = 0; i < WAITS; i++)
		ask_wait(deaf, "late", 1, 2, 1);
	/* One that listens comes after them. */
	ask_wait(r.sock, "late", 1, 2, 50);
	CHECK_STATUS(rig_reply(r.sock, &r.msg, NULL, NULL), -ETIMEDOUT,
		     &r.msg);
	close(deaf);
	rank_close(&r);
	check_alone(rig, "waits that are late");
}

/* Lists wait for the disk. */
static void test_scan_done(struct rig *rig)
{
	int deaf = connect_deaf(rig), other = rig_connect(rig);
	size_t n;

	for (int i = 0; i < 8; i++)
		ask_list(deaf);
	free(list_snapshots(other, "", &n));
	close(deaf);
	close(other);
	check_alone(rig, "lists");
}

/* The agent ends with all of them waiting. */
static void test_stop(struct rig *rig)
{
	struct rank r;
	int deaf;

	CHECK_STATUS(rank_open(&r, rig, &(struct rank_options){
		.job = "stop", .world = 1 }), 0, &r.msg);
	CHECK(rank_slot(&r, 1, 0) >= 0, "slot");
	deaf = connect_deaf(rig);
	for (int i = 0; i < WAITS; i++)
		ask_wait(deaf, "stop", 1, 2, WAIT_MS);
	ask_gather(deaf, "stop", 0, 3, 8);
	ask_gather(deaf, "stop", 1, 3, 8);
	for (int i = 0; i < 8; i++)
		ask_list(deaf);
	CHECK(rig_stop(rig) == 0, "exit status");
	close(deaf);
	rank_close(&r);
}

static const struct test {
	const char *name;
	void (*run)(struct rig *rig);
	bool stops;
} tests[] = {
	{ "gather-given", test_gather_given, false },
	{ "gather-failed", test_gather_failed, false },
	{ "gather-failed-by-itself", test_gather_failed_by_itself, false },
	{ "rank-death", test_rank_death, false },
	{ "waits-answered", test_waits_answered, false },
	{ "waits-timed-out", test_waits_timed_out, false },
	{ "scan-done", test_scan_done, false },
	{ "stop", test_stop, true },
};

/* argv[2]: only the test of that name. */
int main(int argc, char **argv)
{
	for (size_t i = 0; i < sizeof(tests) / sizeof(*tests); i++) {
		const struct test *t = &tests[i];
		struct rig rig;

		if (argc > 2 && strcmp(argv[2], t->name) != 0)
			continue;
		rig_init(&rig, argc > 1 ? argv[1] : NULL);
		rig_start(&rig, "--memory", "256M", "--log-level", "error",
			  "--store", rig.store, NULL);
		t->run(&rig);
		CHECK(t->stops || rig_stop(&rig) == 0, "%s: exit status",
		      t->name);
		rig_remove(&rig);
	}
	return 0;
}
