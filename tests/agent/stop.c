/* SPDX-License-Identifier: Apache-2.0 */
/* Stopping: what is still written, what is lost, and who is told. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/rig.h"

static int stop(int sock, uint32_t flags, struct sk_msg *ret_msg)
{
	*ret_msg = (struct sk_msg){ .type = SK_MSG_STOP,
				    .body.stop.flags = flags };
	return rig_call(sock, ret_msg, NULL, 0, NULL, NULL);
}

static void take(struct rank *r, const struct rig *rig, const char *job)
{
	CHECK_STATUS(rank_open(r, rig, &(struct rank_options){
		.job = job, .world = 1 }), 0, &r->msg);
	rank_snapshot(r, 1);
}

/* Without a store nothing is "to be flushed", and the last one is lost. */
static void test_no_store(struct rig *rig)
{
	struct rank r[2];
	struct sk_msg msg;

	rig_start(rig, "--memory", "64M", NULL);
	take(&r[0], rig, "a");
	take(&r[1], rig, "b");
	CHECK(!(snapshot_flags(r[0].sock, "a", 1) & SK_SNAP_WANTED),
	      "it waits for a store that is not there");
	CHECK_STATUS(stop(r[0].sock, 0, &msg), 0, &msg);
	CHECK(strstr(msg.body.text, "step 1 of job \"a\"") &&
	      strstr(msg.body.text, "step 1 of job \"b\"") &&
	      strstr(msg.body.text, "no store"), "%s", msg.body.text);
	CHECK(rig_wait(rig) == 0, "there was no store to go to");
	rank_close(&r[0]);
	rank_close(&r[1]);

	rig_start(rig, "--memory", "64M", NULL);
	take(&r[0], rig, "a");
	CHECK_STATUS(stop(r[0].sock, SK_STOP_WAIT, &msg), -ENODATA, &msg);
	CHECK(strstr(rig_why(&msg), "job \"a\""), "%s", rig_why(&msg));
	CHECK(rig_wait(rig) == 0, "exit status");
	rank_close(&r[0]);
}

/* Who waits is told of the failures that come after it asked. */
static void flush_in_vain(struct rank *r)
{
	struct sk_msg msg;

	rank_send_wait(r, 1, 3, WAIT_MS);
	CHECK_STATUS(manage(r->sock, SK_MSG_FLUSH, "broken", 1, 0, &msg), 0,
		     &msg);
	CHECK_STATUS(rig_reply(r->sock, &r->msg, NULL, NULL), -EIO, &r->msg);
}

/* The store breaks for a job, as often as a stop would try. */
static void break_store(const struct rig *rig, struct rank *r, char *path,
			size_t size)
{
	int fd;

	snprintf(path, size, "%s/broken", rig->store);
	fd = open(path, O_CREAT | O_WRONLY, 0600);
	CHECK(fd >= 0, "create");
	close(fd);
	CHECK_STATUS(rank_open(r, rig, &(struct rank_options){
		.job = "broken", .world = 1, .flush_every = UINT32_MAX }), 0,
		&r->msg);
	rank_snapshot(r, 1);
	for (int i = 0; i < 4; i++)
		flush_in_vain(r);
	CHECK(stat_value(r->sock, "shardkeep_flush_errors_total") >= 4,
	      "it is not counted");
}

/* A job whose other rank is on another node. */
static void take_apart(struct rank *r, const struct rig *rig, const char *job,
		       int64_t steps)
{
	CHECK_STATUS(rank_open(r, rig, &(struct rank_options){
		.job = job, .world = 2, .flush_every = UINT32_MAX }), 0,
		&r->msg);
	for (int64_t step = 1; step <= steps; step++)
		rank_snapshot(r, step);
}

static void check_written(const struct rig *rig, const char *job, int64_t step)
{
	char path[256];

	(void)snprintf(path, sizeof(path), "%s/%s/step-%012lld/"
		       "rank-00000-of-00002.safetensors", rig->store, job,
		       (long long)step);
	AWAIT(!access(path, F_OK), "%s is lost", path);
}

/* The other node may have been ended before it had sealed the newest one: so
 * the one before it, which may be the newest that is whole, is written too,
 * when the agent ends and when the last rank goes. */
static void test_others_a_step_behind(struct rig *rig)
{
	struct rank r;
	struct sk_msg msg;

	rig_start(rig, "--store", rig->store, "--memory", "64M", NULL);
	take_apart(&r, rig, "behind", 3);
	CHECK_STATUS(stop(r.sock, SK_STOP_WAIT, &msg), 0, &msg);
	CHECK(rig_wait(rig) == 0, "exit status");
	check_written(rig, "behind", 3);
	check_written(rig, "behind", 2);
	rank_close(&r);

	rig_start(rig, "--store", rig->store, "--memory", "64M", NULL);
	take_apart(&r, rig, "gone", 3);
	rank_close(&r);
	check_written(rig, "gone", 3);
	check_written(rig, "gone", 2);
	(void)rig_stop(rig);
}

/* What a run has begun with is not given up for what the run before had. */
static void test_others_in_their_first_step(struct rig *rig)
{
	struct rank r;
	struct sk_msg msg;

	rig_start(rig, "--store", rig->store, "--memory", "64M", NULL);
	take_apart(&r, rig, "first", 3);
	rank_close(&r);
	take_apart(&r, rig, "first", 0);
	rank_snapshot(&r, 4);
	CHECK_STATUS(stop(r.sock, SK_STOP_WAIT, &msg), 0, &msg);
	CHECK(rig_wait(rig) == 0, "exit status");
	check_written(rig, "first", 4);
	rank_close(&r);
}

/* This node's part of what may be whole is lost, and it is said. */
static void test_others_and_no_disk(struct rig *rig)
{
	struct rank r;
	struct sk_msg msg;
	char path[200];
	int fd;

	rig_start(rig, "--memory", "64M", NULL);
	take_apart(&r, rig, "nowhere", 2);
	CHECK_STATUS(stop(r.sock, SK_STOP_WAIT, &msg), -ENODATA, &msg);
	CHECK(strstr(rig_why(&msg), "step 2 of job \"nowhere\""), "%s",
	      rig_why(&msg));
	CHECK(rig_wait(rig) == 0, "there was no store to go to");
	rank_close(&r);

	snprintf(path, sizeof(path), "%s/nothing", rig->store);
	fd = open(path, O_CREAT | O_WRONLY, 0600);
	CHECK(fd >= 0, "create");
	close(fd);
	rig_start(rig, "--store", rig->store, "--memory", "64M", NULL);
	take_apart(&r, rig, "nothing", 2);
	CHECK_STATUS(stop(r.sock, SK_STOP_WAIT, &msg), -ENODATA, &msg);
	CHECK(strstr(rig_why(&msg), "step 2 of job \"nothing\""), "%s",
	      rig_why(&msg));
	CHECK(rig_wait(rig) == 1, "exit status");
	rank_close(&r);
	CHECK(!unlink(path), "unlink");
}

/* It failed often, but at the stop there is space again. */
static void test_space_is_back(struct rig *rig)
{
	struct rank r;
	struct sk_msg msg;
	char path[200];

	rig_start(rig, "--store", rig->store, "--memory", "64M", NULL);
	break_store(rig, &r, path, sizeof(path));
	CHECK(!unlink(path), "unlink");
	CHECK_STATUS(stop(r.sock, SK_STOP_WAIT, &msg), 0, &msg);
	CHECK(rig_wait(rig) == 0, "exit status");
	CHECK(!access(strcat(path, "/step-000000000001"), F_OK), "%s", path);
	rank_close(&r);
	CHECK(!system("rm -r \"$STORE\"/broken"), "rm");
}

static void test_still_broken(struct rig *rig)
{
	struct rank r;
	struct sk_msg msg;
	char path[200];

	rig_start(rig, "--store", rig->store, "--memory", "64M", NULL);
	break_store(rig, &r, path, sizeof(path));
	CHECK_STATUS(stop(r.sock, SK_STOP_WAIT, &msg), -ENODATA, &msg);
	CHECK(strstr(rig_why(&msg), "step 1 of job \"broken\""), "%s",
	      rig_why(&msg));
	CHECK(rig_wait(rig) == 1, "exit status");
	rank_close(&r);
}

/* Two snapshots in memory; a bit of the newer one flips once it is sealed. */
static void spoil_newest(struct rig *rig, struct rank *r, const char *job)
{
	int slot;

	rig_start(rig, "--store", rig->store, "--memory", "64M", NULL);
	CHECK_STATUS(rank_open(r, rig, &(struct rank_options){
		.job = job, .world = 1, .flush_every = UINT32_MAX }), 0,
		&r->msg);
	rank_snapshot(r, 1);
	slot = rank_slot(r, 2, 0);
	CHECK(slot >= 0, "slot: %d", slot);
	rank_fill(r, slot, 2);
	CHECK(!rank_seal(r, slot, 2), "seal");
	CHECK_STATUS(rank_wait(r, 2, 2, WAIT_MS), 0, &r->msg);
	r->maps[slot][0][r->layouts[0]->header_bytes] ^= 1;
}

/* The newest turns out not to be what was sealed: the one before it is the
 * newest then, and goes to disk in its place. */
static void test_newest_is_damaged(struct rig *rig)
{
	struct rank r;
	struct sk_msg msg;
	char path[200];

	spoil_newest(rig, &r, "spoilt");
	CHECK_STATUS(stop(r.sock, SK_STOP_WAIT, &msg), -ENODATA, &msg);
	CHECK(strstr(rig_why(&msg), "step 2 of job \"spoilt\" (it is damaged"),
	      "%s", rig_why(&msg));
	CHECK(rig_wait(rig) == 0, "exit status");
	snprintf(path, sizeof(path), "%s/spoilt/step-000000000001",
		 rig->store);
	CHECK(!access(path, F_OK), "%s", path);
	rank_close(&r);
}

/* Of a job that has nothing written: what is pinned was to stay. */
static void test_pinned(struct rig *rig)
{
	struct rank r;
	struct sk_msg msg;
	char path[200];

	rig_start(rig, "--store", rig->store, "--memory", "64M", NULL);
	CHECK_STATUS(rank_open(&r, rig, &(struct rank_options){
		.job = "pinned", .world = 1, .slots = 3,
		.flush_every = UINT32_MAX }), 0, &r.msg);
	rank_snapshot(&r, 1);
	CHECK_STATUS(rank_wait(&r, 1, 2, WAIT_MS), 0, &r.msg);
	CHECK_STATUS(manage(r.sock, SK_MSG_PIN, "pinned", 1, 0, &msg), 0,
		     &msg);
	rank_snapshot(&r, 2);
	CHECK_STATUS(stop(r.sock, SK_STOP_WAIT, &msg), 0, &msg);
	CHECK(rig_wait(rig) == 0, "exit status");
	for (int step = 1; step <= 2; step++) {
		snprintf(path, sizeof(path), "%s/pinned/step-%012d/%s",
			 rig->store, step, step == 1 ? ".pinned" : ".run");
		CHECK(!access(path, F_OK), "%s", path);
	}
	rank_close(&r);
}

/* Where there is none, each is named that is lost. */
static void test_pinned_and_no_store(struct rig *rig)
{
	struct rank r;
	struct sk_msg msg;

	rig_start(rig, "--memory", "64M", NULL);
	CHECK_STATUS(rank_open(&r, rig, &(struct rank_options){
		.job = "pinned", .world = 1, .slots = 3 }), 0, &r.msg);
	rank_snapshot(&r, 1);
	CHECK_STATUS(rank_wait(&r, 1, 2, WAIT_MS), 0, &r.msg);
	CHECK_STATUS(manage(r.sock, SK_MSG_PIN, "pinned", 1, 0, &msg), 0,
		     &msg);
	rank_snapshot(&r, 2);
	CHECK_STATUS(stop(r.sock, SK_STOP_WAIT, &msg), -ENODATA, &msg);
	CHECK(strstr(rig_why(&msg), "step 1 of") &&
	      strstr(rig_why(&msg), "step 2 of"), "%s", rig_why(&msg));
	CHECK(rig_wait(rig) == 0, "exit status");
	rank_close(&r);
}

/* The same where the last rank goes. */
static void test_newest_is_damaged_and_left(struct rig *rig)
{
	struct rank r;
	int sock;

	spoil_newest(rig, &r, "left");
	rank_close(&r);
	sock = rig_connect(rig);
	AWAIT(snapshot_flags(sock, "left", 1) & SK_SNAP_DURABLE,
	      "the one before it stays in memory alone");
	close(sock);
	(void)rig_stop(rig);
}

/* A newer run has been through the step again: the older one's, which was to
 * go to disk as well, is nobody's loss. */
static void test_superseded(struct rig *rig)
{
	struct rank old, new;
	struct sk_msg msg;
	char path[200];
	int sock;

	rig_start(rig, "--store", rig->store, "--memory", "64M", NULL);
	break_store(rig, &old, path, sizeof(path));
	rank_close(&old);
	sock = rig_connect(rig);
	AWAIT(stat_value(sock, "shardkeep_flush_errors_total") == 5,
	      "it is not tried when its last rank goes");
	close(sock);
	CHECK(!unlink(path), "unlink");
	/* Seconds before the old one is tried again. */
	take(&new, rig, "broken");
	CHECK(new.run > old.run, "run %llu", (unsigned long long)new.run);
	CHECK_STATUS(rank_wait(&new, 1, 3, WAIT_MS), 0, &new.msg);
	msg = (struct sk_msg){ .type = SK_MSG_FLUSH, .body.manage.id = {
		.job = "broken", .run = old.run, .run_id = old.run_id,
		.step = 1, .rank = -1 } };
	CHECK_STATUS(rig_call(new.sock, &msg, NULL, 0, NULL, NULL), 0, &msg);
	AWAIT(stat_value(new.sock, "shardkeep_flush_errors_total") == 6,
	      "it is not refused");
	CHECK_STATUS(stop(new.sock, SK_STOP_WAIT, &msg), 0, &msg);
	CHECK(rig_wait(rig) == 0, "exit status");
	rank_close(&new);
}

static void open_both(struct rank r[2], const struct rig *rig)
{
	for (int i = 0; i < 2; i++)
		CHECK_STATUS(rank_open(&r[i], rig, &(struct rank_options){
			.job = "half", .rank = i, .world = 2, .slots = 3 }),
			0, &r[i].msg);
}

/* What rank 1 has on disk of the job's first step. */
static uint64_t on_disk(const struct rank *r)
{
	struct sk_wire_image *images;
	uint64_t image = 0;
	size_t n;

	images = list_images(r->sock, "half", 1, &n);
	for (size_t i = 0; i < n; i++)
		if (images[i].id.rank == 1 &&
		    images[i].place == SK_PLACE_DISK)
			image = images[i].image;
	free(images);
	CHECK(image, "it is not on disk");
	return image;
}

/* A file is bad, and before anybody could tell what is still covered the
 * agent is to end: it waits for the answer, and writes the file anew. */
static void test_asked_at_the_end(struct rig *rig)
{
	struct sk_msg bad = { .type = SK_MSG_REPORT_BAD }, end = {
		.type = SK_MSG_STOP };
	struct rank r[2];
	char path[256];

	rig_start(rig, "--store", rig->store, "--memory", "64M", NULL);
	open_both(r, rig);
	for (int i = 0; i < 2; i++)
		rank_snapshot(&r[i], 1);
	CHECK_STATUS(rank_wait(&r[0], 1, 3, WAIT_MS), 0, &r[0].msg);
	bad.body.bad = (struct sk_wire_bad){ .image = on_disk(&r[0]),
					     .place = SK_PLACE_DISK };
	(void)snprintf(path, sizeof(path), "%s/half/step-000000000001/"
		       "rank-00001-of-00002.safetensors", rig->store);
	CHECK(unlink(path) == 0, "unlink %s", path);
	/* Both in one turn. */
	rig_freeze(rig);
	rig_send(r[0].sock, &bad);
	rig_send(r[0].sock, &end);
	rig_thaw(rig);
	CHECK(rig_wait(rig) == 0, "exit status");
	CHECK(access(path, F_OK) == 0, "it is lost");
	rank_close(&r[0]);
	rank_close(&r[1]);
}

/* Who asks for more in the turn in which it was told to end is refused. */
static void test_more_at_the_end(struct rig *rig)
{
	struct rank r;
	struct sk_msg end = { .type = SK_MSG_STOP }, slot;

	rig_start(rig, "--memory", "64M", NULL);
	take(&r, rig, "more");
	slot = (struct sk_msg){ .type = SK_MSG_SLOT, .body.slot = {
		.state = r.state, .step = 2 } };
	rig_freeze(rig);
	rig_send(r.sock, &end);
	rig_send(r.sock, &slot);
	rig_thaw(rig);
	CHECK_STATUS(rig_reply(r.sock, &end, NULL, NULL), 0, &end);
	CHECK_STATUS(rig_reply(r.sock, &slot, NULL, NULL), -ESHUTDOWN, &slot);
	CHECK(strstr(rig_why(&slot), "is stopping"), "%s", rig_why(&slot));
	CHECK(rig_wait(rig) == 0, "exit status");
	rank_close(&r);
}

static bool says(const char *path, const char *what)
{
	char text[4096];
	FILE *f = fopen(path, "re");
	size_t n;

	CHECK(f, "%s", path);
	n = fread(text, 1, sizeof(text) - 1, f);
	text[n] = 0;
	(void)fclose(f);
	return strstr(text, what);
}

/* What it says goes to that file. */
static pid_t start_next(const struct rig *rig, const char *said)
{
	int fd = open(said, O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0600);
	pid_t next = fork();

	CHECK(fd >= 0 && next >= 0, "fork");
	if (!next) {
		(void)dup2(fd, STDERR_FILENO);
		execl(rig->program, rig->program, "--socket", rig->socket,
		      "--memory", "64M", (char *)NULL);
		_exit(127);
	}
	close(fd);
	return next;
}

/* -1: nobody. */
static pid_t serving(const struct rig *rig)
{
	struct sk_msg msg;
	int sock = rig_try_connect(rig, &msg);

	if (sock < 0)
		return -1;
	close(sock);
	return (pid_t)msg.body.hello_reply.pid;
}

/* One that finds an agent that is stopping waits for its end, and serves. */
static void test_next_waits(struct rig *rig, const char *keeper)
{
	struct rank r;
	struct sk_msg msg;
	char said[128];
	pid_t first, next;

	(void)snprintf(said, sizeof(said), "%s/said", rig->dir);
	rig_start(rig, "--store", rig->store, "--memory", "64M",
		  "--flush-rate", "64K", keeper, NULL);
	first = serving(rig);
	CHECK_STATUS(rank_open(&r, rig, &(struct rank_options){
		.job = "slow", .world = 1, .rows = 4096,
		.flush_every = UINT32_MAX }), 0, &r.msg);
	rank_snapshot(&r, 1);
	CHECK_STATUS(stop(r.sock, 0, &msg), 0, &msg);
	next = start_next(rig, said);
	AWAIT(says(said, "is stopping"), "it does not wait");
	CHECK(serving(rig) == first, "it has taken its place");
	/* The second one ends it at once. */
	CHECK(kill(rig->agent, SIGTERM) == 0 && kill(rig->agent, SIGINT) == 0,
	      "kill");
	CHECK(rig_wait(rig) == 1, "exit status");
	rank_close(&r);
	rig->agent = next;
	AWAIT(serving(rig) == next, "nobody serves");
	CHECK(rig_stop(rig) == 0, "exit status");
	CHECK(!unlink(said), "unlink");
}

/* A line of /proc's of the agent that begins so; what stands behind it. */
static void proc_line(const struct rig *rig, const char *file,
		      const char *begin, char *ret, size_t size)
{
	char path[64];
	FILE *f;

	(void)snprintf(path, sizeof(path), "/proc/%d/%s", (int)rig->agent,
		       file);
	f = fopen(path, "re");
	CHECK(f, "%s", path);
	do {
		CHECK(fgets(ret, (int)size, f), "no \"%s\"", begin);
	} while (strncmp(ret, begin, strlen(begin)) != 0);
	memmove(ret, ret + strlen(begin), strlen(ret) - strlen(begin) + 1);
	(void)fclose(f);
}

static bool has_signal(const struct rig *rig, const char *mask, int signal)
{
	char text[256];

	proc_line(rig, "status", mask, text, sizeof(text));
	return strtoull(text, NULL, 16) >> (signal - 1) & 1;
}

/* It is told of its end by a descriptor, no lost pipe ends it, and it has the
 * descriptors that it may have. */
static void test_start(struct rig *rig)
{
	struct rlimit before, less;
	unsigned long long soft, hard;
	char text[256];

	CHECK(getrlimit(RLIMIT_NOFILE, &before) == 0, "getrlimit");
	less = before;
	less.rlim_cur = 256;
	CHECK(setrlimit(RLIMIT_NOFILE, &less) == 0, "setrlimit");
	rig_start(rig, NULL);
	CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0, "setrlimit");
	CHECK(has_signal(rig, "SigIgn:", SIGPIPE) &&
	      has_signal(rig, "SigIgn:", SIGHUP), "what it ignores");
	CHECK(has_signal(rig, "SigBlk:", SIGTERM) &&
	      has_signal(rig, "SigBlk:", SIGINT) &&
	      has_signal(rig, "SigBlk:", SIGHUP), "what it blocks");
	proc_line(rig, "limits", "Max open files", text, sizeof(text));
	CHECK(sscanf(text, "%llu %llu", &soft, &hard) == 2 && soft == hard,
	      "it may open %s", text);
	CHECK(rig_stop(rig) == 0, "its end");
}

int main(int argc, char **argv)
{
	struct rig rig;

	(void)argc;
	rig_init(&rig, argv[1]);
	CHECK(!mkdir(rig.store, 0700) || errno == EEXIST, "mkdir");
	CHECK(!setenv("STORE", rig.store, 1), "setenv");
	test_start(&rig);
	test_no_store(&rig);
	test_space_is_back(&rig);
	test_pinned(&rig);
	test_pinned_and_no_store(&rig);
	test_newest_is_damaged(&rig);
	test_newest_is_damaged_and_left(&rig);
	test_superseded(&rig);
	test_others_a_step_behind(&rig);
	test_others_in_their_first_step(&rig);
	test_others_and_no_disk(&rig);
	test_asked_at_the_end(&rig);
	test_next_waits(&rig, "--no-keeper");
	test_next_waits(&rig, "--keeper");
	test_more_at_the_end(&rig);
	CHECK(!system("rm -r \"$STORE\"/broken"), "rm");
	test_still_broken(&rig);
	rig_remove(&rig);
	return 0;
}
