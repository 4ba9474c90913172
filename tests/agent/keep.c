/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A node of a job of two, each with a store of its own: what the ranks agree on
 * stays on its disk, however many steps follow.
 */
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "agent/rig.h"
#include "shardkeep.h"

#define UNTIL_WRITTEN 4u

/* Steps of the job on disk, ascending: "4 8 9". */
static const char *on_disk(const struct rig *rig, const char *job)
{
	static char text[512];
	struct dirent **names;
	char path[256];
	int n;

	(void)snprintf(path, sizeof(path), "%s/%s", rig->store, job);
	n = scandir(path, &names, NULL, alphasort);
	text[0] = '\0';
	for (int i = 0; i < n; i++) {
		char *end = text + strlen(text);
		long long step;

		if (sscanf(names[i]->d_name, "step-%lld", &step) == 1)
			(void)sprintf(end, end > text ? " %lld" : "%lld", step);
		free(names[i]);
	}
	if (n >= 0)
		free(names);
	return text;
}

static void await_disk(const struct rig *rig, int sock, const char *job,
		       const char *steps)
{
	AWAIT((stat_value(sock, "shardkeep_clients"),
	       strcmp(on_disk(rig, job), steps) == 0),
	      "\"%s\" on disk, not \"%s\"", on_disk(rig, job), steps);
}

static void go(struct rank *r, int64_t first, int64_t last)
{
	for (int64_t step = first; step <= last; step++) {
		rank_snapshot(r, step);
		CHECK_STATUS(rank_wait(r, step, UNTIL_WRITTEN, WAIT_MS), 0,
			     &r->msg);
	}
}

static struct sk_msg keeping(const struct rank *r, int64_t step, int64_t next)
{
	struct sk_msg msg = { .type = SK_MSG_KEEP, .body.keep = {
		.id = { .run = r->run, .run_id = r->run_id, .step = -1,
			.rank = r->rank, .world = r->world },
		.steps = { step, next } } };

	(void)snprintf(msg.body.keep.id.job, sizeof(msg.body.keep.id.job),
		       "%s", r->job);
	return msg;
}

static struct sk_wire_keep_reply keep(struct rank *r, int64_t step,
				      int64_t next)
{
	r->msg = keeping(r, step, next);
	CHECK_STATUS(rig_call(r->sock, &r->msg, NULL, 0, NULL, NULL), 0,
		     &r->msg);
	return r->msg.body.keep_reply;
}

static void check_evict(const struct rank *r, int64_t step, const char *why)
{
	struct sk_msg msg;

	CHECK_STATUS(manage(r->sock, SK_MSG_EVICT, r->job, step, SK_EVICT_DISK,
			    &msg), why ? -EBUSY : 0, &msg);
	CHECK(!why || strstr(rig_why(&msg), why), "%s", rig_why(&msg));
}

static struct rank_options options(void)
{
	return (struct rank_options){ .job = "part", .world = 2, .rows = 1 };
}

static void test_what_is_said(struct rig *rig)
{
	const struct rank_options o = options();
	struct rank r;

	rig_start(rig, "--store", rig->store, "--keep-last", "2", NULL);
	CHECK_STATUS(rank_open(&r, rig, &o), 0, &r.msg);
	CHECK(keep(&r, -1, -1).written == -1, "nothing is written");
	go(&r, 1, 4);
	await_disk(rig, r.sock, "part", "3 4");
	/* The one that is to be agreed on stays as well as that which is. */
	CHECK(keep(&r, 4, -1).written == 4 && !r.msg.body.keep_reply.has_next,
	      "written");
	go(&r, 5, 9);
	await_disk(rig, r.sock, "part", "4 8 9");
	CHECK(keep(&r, 4, 9).has_next, "has it");
	go(&r, 10, 13);
	await_disk(rig, r.sock, "part", "4 9 12 13");
	check_evict(&r, 4, "agree on");
	CHECK(keep(&r, 9, 20).written == 13 && !r.msg.body.keep_reply.has_next,
	      "what is to come");
	go(&r, 14, 14);
	await_disk(rig, r.sock, "part", "9 13 14");
	/* Who says so begins anew, and has agreed on nothing yet. */
	(void)keep(&r, -1, -1);
	go(&r, 15, 15);
	await_disk(rig, r.sock, "part", "9 14 15");
	(void)keep(&r, 15, -1);
	go(&r, 16, 17);
	await_disk(rig, r.sock, "part", "15 16 17");
	rank_close(&r);
	CHECK(rig_stop(rig) == 0, "exit status");
}

/* Until its ranks agree on something newer, what a run began with is what all
 * nodes have. */
static void test_begun(struct rig *rig)
{
	struct rank_options o = options();
	struct rank first, second;

	rig_start(rig, "--store", rig->store, "--keep-last", "2", NULL);
	CHECK_STATUS(rank_open(&first, rig, &o), 0, &first.msg);
	go(&first, 1, 5);
	rank_close(&first);
	o.of = &first;
	o.begun = 4;
	CHECK_STATUS(rank_open(&second, rig, &o), 0, &second.msg);
	go(&second, 6, 9);
	await_disk(rig, second.sock, "part", "4 8 9");
	check_evict(&second, 4, "agree on");
	/* It is no other run's word. */
	(void)keep(&second, -1, 9);
	go(&second, 10, 12);
	await_disk(rig, second.sock, "part", "4 9 11 12");
	(void)keep(&second, 9, -1);
	go(&second, 13, 13);
	await_disk(rig, second.sock, "part", "9 12 13");
	rank_close(&second);
	CHECK(rig_stop(rig) == 0, "exit status");
}

static bool stands(const struct rig *rig)
{
	char path[256];

	(void)snprintf(path, sizeof(path), "%s/part/.agreed", rig->store);
	return access(path, F_OK) == 0;
}

/* It stands in the store: whoever comes after the agent, or after the ranks,
 * and says nothing of it has agreed on nothing yet. */
static void test_outlives(struct rig *rig)
{
	const struct rank_options o = options();
	struct rank r;

	rig_start(rig, "--store", rig->store, "--keep-last", "2", NULL);
	CHECK_STATUS(rank_open(&r, rig, &o), 0, &r.msg);
	/* Said before there was a place for it, and once more since. */
	(void)keep(&r, -1, 1);
	go(&r, 1, 1);
	CHECK(keep(&r, -1, 1).has_next && stands(rig), "it is not written");
	go(&r, 2, 3);
	(void)keep(&r, 2, 3);
	go(&r, 4, 6);
	await_disk(rig, r.sock, "part", "2 3 5 6");
	rank_close(&r);
	CHECK(kill(rig->agent, SIGKILL) == 0, "kill");
	(void)rig_wait(rig);
	rig_start(rig, "--store", rig->store, "--keep-last", "2", NULL);
	CHECK_STATUS(rank_open(&r, rig, &o), 0, &r.msg);
	go(&r, 7, 10);
	await_disk(rig, r.sock, "part", "2 3 9 10");
	(void)keep(&r, -1, -1);
	go(&r, 11, 12);
	await_disk(rig, r.sock, "part", "2 3 11 12");
	(void)keep(&r, 12, -1);
	go(&r, 13, 14);
	await_disk(rig, r.sock, "part", "12 13 14");
	rank_close(&r);
	CHECK(rig_stop(rig) == 0, "exit status");
}

static void write_agreed(const struct rig *rig, const char *text)
{
	char path[256];
	FILE *f;

	(void)snprintf(path, sizeof(path), "%s/part/.agreed", rig->store);
	f = fopen(path, "w");
	CHECK(f && fputs(text, f) >= 0 && fclose(f) == 0, "%s", path);
}

/* Nothing is deleted by what nobody can read, and nobody writes over it. */
static void test_malformed(struct rig *rig)
{
	static const char *const texts[] = {
		"", "agreed 3\n", "[]", "{\"version\":1}\n",
		"{\"version\":2,\"run\":1,\"run_id\":\"00000000000000a7\","
		"\"steps\":[1,2],\"before\":[]}\n",
		"{\"version\":1,\"run\":1,\"run_id\":\"a7\","
		"\"steps\":[1,2],\"before\":[]}\n",
		"{\"version\":1,\"run\":1,\"run_id\":\"00000000000000a7\","
		"\"steps\":[1,-2],\"before\":[]}\n",
		"{\"version\":1,\"run\":1,\"run_id\":\"00000000000000a7\","
		"\"steps\":[1,2],\"before\":[[1,2,3]]}\n",
	};
	const struct rank_options o = options();
	int64_t step = 0;
	struct rank r;

	rig_start(rig, "--store", rig->store, "--keep-last", "2", NULL);
	CHECK_STATUS(rank_open(&r, rig, &o), 0, &r.msg);
	for (size_t i = 0; i < sizeof(texts) / sizeof(*texts); i++) {
		if (i)
			write_agreed(rig, texts[i]);
		go(&r, step + 1, step + 2);
		step += 2;
		write_agreed(rig, texts[i]);
		r.msg = keeping(&r, 1, -1);
		CHECK_STATUS(rig_call(r.sock, &r.msg, NULL, 0, NULL, NULL),
			     -EBADMSG, &r.msg);
		CHECK(strstr(rig_why(&r.msg), ".agreed") &&
		      strstr(rig_why(&r.msg), "remove it"), "%s",
		      rig_why(&r.msg));
	}
	CHECK(!strncmp(on_disk(rig, "part"), "1 2 3 4 5 6 ", 12), "%s",
	      on_disk(rig, "part"));
	write_agreed(rig, "{\"version\":1,\"run\":7,\"run_id\":"
		     "\"00000000000000a7\",\"steps\":[-1,-1],"
		     "\"before\":[]}\n");
	go(&r, 100, 101);
	await_disk(rig, r.sock, "part", "100 101");
	rank_close(&r);
	CHECK(rig_stop(rig) == 0, "exit status");
}

/* One agent has all of it, whatever is said. */
static void test_complete(struct rig *rig)
{
	struct rank_options o = options();
	struct rank r;

	o.world = 1;
	rig_start(rig, "--store", rig->store, "--keep-last", "2", NULL);
	CHECK_STATUS(rank_open(&r, rig, &o), 0, &r.msg);
	go(&r, 1, 1);
	CHECK(keep(&r, 1, -1).written == 1, "written");
	go(&r, 2, 4);
	await_disk(rig, r.sock, "part", "3 4");
	rank_close(&r);
	CHECK(rig_stop(rig) == 0, "exit status");
}

static void test_refused(struct rig *rig)
{
	const struct rank_options o = options();
	struct sk_msg msg;
	struct rank r;

	rig_start(rig, NULL);
	CHECK_STATUS(rank_open(&r, rig, &o), 0, &r.msg);
	msg = keeping(&r, -2, -1);
	CHECK_STATUS(rig_call(r.sock, &msg, NULL, 0, NULL, NULL), -EINVAL,
		     &msg);
	msg = keeping(&r, 1, -2);
	CHECK_STATUS(rig_call(r.sock, &msg, NULL, 0, NULL, NULL), -EINVAL,
		     &msg);
	msg = keeping(&r, 1, 2);
	msg.body.keep.id.rank = 1;
	CHECK_STATUS(rig_call(r.sock, &msg, NULL, 0, NULL, NULL), -ENOENT,
		     &msg);
	CHECK(strstr(rig_why(&msg), "rank 1"), "%s", rig_why(&msg));
	msg = keeping(&r, 1, 2);
	msg.body.keep.id.run_id++;
	CHECK_STATUS(rig_call(r.sock, &msg, NULL, 0, NULL, NULL), -ENOENT,
		     &msg);
	rank_close(&r);
	CHECK(rig_stop(rig) == 0, "exit status");
}

/* ---- by the library ---- */

struct trainer {
	struct sk *sk;
	struct sk_state *state;
	char data[4096];
};

static void join(struct trainer *t, const struct rig *rig)
{
	CHECK(sk_open(&(struct sk_options){ .socket = rig->socket,
					     .flags = SK_OPEN_NO_START },
		      &t->sk) == 0, "%s", sk_error());
	CHECK(sk_state_create(t->sk, &(struct sk_job){ .name = "part",
			      .world = 2, .flush_every = 1 }, &t->state) == 0,
	      "%s", sk_error());
	CHECK(sk_state_blob_local(t->state, "x", t->data, sizeof(t->data)) == 0,
	      "%s", sk_error());
}

static void train(struct trainer *t, int64_t first, int64_t last)
{
	for (int64_t step = first; step <= last; step++) {
		CHECK(sk_snapshot(t->state, step,
				  &(struct sk_snapshot_options){
					.wait_ms = WAIT_MS }) == 0, "%s",
		      sk_error());
		CHECK(sk_wait(t->state, step, SK_WRITTEN, WAIT_MS) == 0, "%s",
		      sk_error());
	}
}

static int say(struct trainer *t, int64_t step, int64_t next)
{
	struct sk_kept kept;
	int r = sk_keep(t->state, step, next, &kept);

	CHECK(r < 0 || kept.reserved == 0, "reserved");
	return r < 0 ? r : kept.next;
}

/* The next agent hears it as soon as the rank is there, and nobody deletes
 * anything before. */
static void test_library(struct rig *rig)
{
	struct trainer t;
	int sock;

	rig_start(rig, "--store", rig->store, "--keep-last", "2", NULL);
	join(&t, rig);
	CHECK(say(&t, -1, -1) == -ENOENT && strstr(sk_error(), "in no run"),
	      "%s", sk_error());
	train(&t, 1, 1);
	CHECK(say(&t, -2, -1) == -EINVAL && say(&t, 0, -2) == -EINVAL,
	      "%s", sk_error());
	CHECK(sk_keep(t.state, 1, -1, NULL) == -EINVAL, "%s", sk_error());
	CHECK(say(&t, 1, 1) == 1 && say(&t, 1, 2) == 0 && say(&t, 1, 0) == -1,
	      "%s", sk_error());
	train(&t, 2, 5);
	CHECK(kill(rig->agent, SIGKILL) == 0, "kill");
	(void)rig_wait(rig);
	rig_start(rig, "--store", rig->store, "--keep-last", "2", NULL);
	CHECK(say(&t, 1, 4) == -ENOENT, "%s", sk_error());
	train(&t, 6, 9);
	sock = rig_connect(rig);
	await_disk(rig, sock, "part", "1 4 8 9");
	CHECK(say(&t, 8, -1) == -1, "%s", sk_error());
	train(&t, 10, 11);
	await_disk(rig, sock, "part", "8 10 11");
	close(sock);
	sk_state_free(t.state);
	sk_close(t.sk);
	CHECK(rig_stop(rig) == 0, "exit status");
}

int main(int argc, char **argv)
{
	static void (*const tests[])(struct rig *rig) = {
		test_what_is_said,
		test_begun,
		test_outlives,
		test_malformed,
		test_complete,
		test_refused,
		test_library,
	};

	for (size_t i = 0; i < sizeof(tests) / sizeof(*tests); i++) {
		struct rig rig;

		rig_init(&rig, argc > 1 ? argv[1] : NULL);
		tests[i](&rig);
		rig_remove(&rig);
	}
	return 0;
}
