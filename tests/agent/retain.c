/* SPDX-License-Identifier: Apache-2.0 */
/* What stays on disk, and what goes. */
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/rig.h"
#include "support/files.h"

#define SLACK 64	/* that may wait for their deletion */

static void path_of(const struct rig *rig, const char *job, const char *name,
		    char path[256])
{
	snprintf(path, 256, "%s/%s/%s", rig->store, job, name);
}

/* Names in the job's directory that begin so. */
static unsigned count(const struct rig *rig, const char *job,
		      const char *prefix)
{
	struct dirent *entry;
	char path[256];
	unsigned n = 0;
	DIR *dir;

	path_of(rig, job, "", path);
	dir = opendir(path);
	while (dir && (entry = readdir(dir)))
		n += strncmp(entry->d_name, prefix, strlen(prefix)) == 0;
	if (dir)
		closedir(dir);
	return n;
}

static bool has(const struct rig *rig, const char *job, int64_t step)
{
	char name[64], path[256];

	snprintf(name, sizeof(name), "step-%012lld", (long long)step);
	path_of(rig, job, name, path);
	return access(path, F_OK) == 0;
}

static void open_rank(struct rank *r, const struct rig *rig, const char *job)
{
	const struct rank_options o = { .job = job, .world = 1, .rows = 1,
					.slots = 3 };

	CHECK_STATUS(rank_open(r, rig, &o), 0, &r->msg);
}

/* Durable steps, one after the other. */
static void go(struct rank *r, int64_t first, int64_t last)
{
	for (int64_t step = first; step <= last; step++) {
		rank_snapshot(r, step);
		CHECK_STATUS(rank_wait(r, step, 3, WAIT_MS), 0, &r->msg);
	}
}

static void await_steps(const struct rig *rig, const struct rank *r,
			const char *job, unsigned n)
{
	AWAIT((stat_value(r->sock, "shardkeep_clients"),
	       count(rig, job, "step-") == n), "%u steps of %s, not %u",
	      count(rig, job, "step-"), job, n);
}

/* A loop that writes each step never has more than it was told to keep, and
 * what waits to be deleted. */
static void test_thousand(struct rig *rig)
{
	struct rank r;

	rig_start(rig, "--store", rig->store, "--keep-last", "3",
		  "--keep-every", "400", NULL);
	open_rank(&r, rig, "long");
	for (int64_t step = 1; step <= 1000; step += 10) {
		go(&r, step, step + 9);
		/* A busy disk deletes late. */
		AWAIT((stat_value(r.sock, "shardkeep_clients"),
		       count(rig, "long", "") < 3 + 2 + 5 + SLACK),
		      "%u names at step %d", count(rig, "long", ""),
		      (int)step);
	}
	await_steps(rig, &r, "long", 5);
	for (int64_t step = 998; step <= 1000; step++)
		CHECK(has(rig, "long", step), "step %d", (int)step);
	CHECK(has(rig, "long", 400) && has(rig, "long", 800), "every nth");
	AWAIT(stat_value(r.sock, "shardkeep_steps_retired_total") == 995,
	      "counted");
	rank_close(&r);
	CHECK(rig_stop(rig) == 0, "exit status");
}

/* A pin outlives the agent, and another agent knows it. */
static void test_pinned(struct rig *rig)
{
	struct sk_msg msg;
	struct rank r;

	rig_start(rig, "--store", rig->store, "--keep-last", "1", NULL);
	open_rank(&r, rig, "pinned");
	/* One that is not on disk yet, and one that is. */
	rank_snapshot(&r, 1);
	CHECK_STATUS(manage(r.sock, SK_MSG_PIN, "pinned", 1, 0, &msg), 0,
		     &msg);
	CHECK_STATUS(rank_wait(&r, 1, 3, WAIT_MS), 0, &r.msg);
	go(&r, 2, 2);
	CHECK_STATUS(manage(r.sock, SK_MSG_PIN, "pinned", 2, 0, &msg), 0,
		     &msg);
	CHECK(kill(rig->agent, SIGKILL) == 0, "kill");
	CHECK(rig_wait(rig) == 128 + SIGKILL, "killed");
	rank_close(&r);
	rig_start(rig, "--store", rig->store, "--keep-last", "1", NULL);
	open_rank(&r, rig, "pinned");
	go(&r, 3, 9);
	await_steps(rig, &r, "pinned", 3);
	CHECK(has(rig, "pinned", 1) && has(rig, "pinned", 2), "pinned steps");
	CHECK(snapshot_flags(r.sock, "pinned", 2) & SK_SNAP_PINNED, "said");
	CHECK_STATUS(manage(r.sock, SK_MSG_UNPIN, "pinned", 2, 0, &msg), 0,
		     &msg);
	await_steps(rig, &r, "pinned", 2);
	CHECK(has(rig, "pinned", 1), "still pinned");
	rank_close(&r);
	CHECK(rig_stop(rig) == 0, "exit status");
}

static void check_unpinned(const struct rig *rig, const struct rank *r,
			   int64_t step)
{
	char name[64], path[256];

	CHECK(!(snapshot_flags(r->sock, "unpinned", step) & SK_SNAP_PINNED),
	      "step %d is pinned", (int)step);
	snprintf(name, sizeof(name), "step-%012lld/.pinned", (long long)step);
	path_of(rig, "unpinned", name, path);
	CHECK(access(path, F_OK) < 0, "%s is there", path);
}

static void check_pin_on_disk(const struct rig *rig, bool there)
{
	char path[256];

	path_of(rig, "over", "step-000000000001/.pinned", path);
	CHECK((access(path, F_OK) == 0) == there, "%s is %sthere", path,
	      there ? "not " : "");
}

/* What outlived the last agent lies on disk as well, whoever has looked. */
static void test_over_agents(struct rig *rig)
{
	struct sk_msg msg = { 0 };
	struct rank r;
	int sock;

	rig_start(rig, "--store", rig->store, "--keep-last", "0", "--keeper",
		  "--idle-exit", "60", NULL);
	open_rank(&r, rig, "over");
	go(&r, 1, 1);
	CHECK_STATUS(manage(r.sock, SK_MSG_PIN, "over", 1, 0, &msg), 0, &msg);
	go(&r, 2, 14);
	sock = rig_try_connect(rig, &msg);
	CHECK(sock >= 0 && kill((pid_t)msg.body.hello_reply.pid, SIGKILL) == 0,
	      "kill");
	close(sock);
	rank_close(&r);
	sock = rig_connect(rig);
	check_pin_on_disk(rig, true);
	CHECK_STATUS(manage(sock, SK_MSG_UNPIN, "over", 1, 0, &msg), 0, &msg);
	check_pin_on_disk(rig, false);
	CHECK_STATUS(manage(sock, SK_MSG_PIN, "over", 1, 0, &msg), 0, &msg);
	check_pin_on_disk(rig, true);
	CHECK_STATUS(manage(sock, SK_MSG_UNPIN, "over", 1, 0, &msg), 0, &msg);
	CHECK_STATUS(manage(sock, SK_MSG_EVICT, "over", 1, SK_EVICT_DISK,
			    &msg), 0, &msg);
	CHECK(!has(rig, "over", 1), "step 1");
	close(sock);
	CHECK(rig_stop(rig) == 0, "exit status");
}

/* What is unpinned stays so, whatever looked at the store or wrote there at
 * that moment. */
static void test_unpinned(struct rig *rig)
{
	struct sk_msg msg;
	struct rank r;
	int other;

	rig_start(rig, "--store", rig->store, "--keep-last", "0", NULL);
	open_rank(&r, rig, "unpinned");
	other = rig_connect(rig);
	go(&r, 1, 2);
	for (int i = 0; i < 200; i++) {
		struct sk_msg list = { .type = SK_MSG_LIST, .body.list = {
			.id = { .step = -1, .rank = -1 },
			.what = SK_LIST_SNAPSHOTS } };
		int fds[SK_MSG_FDS], n = 0;

		CHECK_STATUS(manage(r.sock, SK_MSG_PIN, "unpinned", 1, 0,
				    &msg), 0, &msg);
		rig_send(other, &list);
		CHECK_STATUS(manage(r.sock, SK_MSG_UNPIN, "unpinned", 1, 0,
				    &msg), 0, &msg);
		CHECK_STATUS(rig_reply(other, &list, fds, &n), 0, &list);
		while (n)
			close(fds[--n]);
		check_unpinned(rig, &r, 1);
	}
	for (int64_t step = 3; step < 100; step++) {
		rank_snapshot(&r, step);
		CHECK_STATUS(manage(r.sock, SK_MSG_PIN, "unpinned", step, 0,
				    &msg), 0, &msg);
		for (int64_t i = 0; i < step % 5; i++)
			(void)snapshot_flags(r.sock, "unpinned", 1);
		CHECK_STATUS(manage(r.sock, SK_MSG_UNPIN, "unpinned", step, 0,
				    &msg), 0, &msg);
		CHECK_STATUS(rank_wait(&r, step, 3, WAIT_MS), 0, &r.msg);
		check_unpinned(rig, &r, step);
	}
	for (int64_t step = 1; step < 100; step++)
		check_unpinned(rig, &r, step);
	close(other);
	rank_close(&r);
	CHECK(rig_stop(rig) == 0, "exit status");
}

/* Whoever reads a step keeps it. */
static void test_in_use(struct rig *rig)
{
	struct sk_msg msg = { .type = SK_MSG_OPEN };
	struct sk_wire_image *images;
	struct rank r;
	size_t n;

	rig_start(rig, "--store", rig->store, "--keep-last", "2", NULL);
	open_rank(&r, rig, "read");
	go(&r, 1, 1);
	images = list_images(r.sock, "read", 1, &n);
	CHECK(n > 0, "no image");
	msg.body.open.image = images[0].image;
	msg.body.open.place = SK_PLACE_DISK;
	free(images);
	CHECK_STATUS(rig_call(r.sock, &msg, NULL, 0, NULL, NULL), 0, &msg);
	go(&r, 2, 6);
	await_steps(rig, &r, "read", 3);
	CHECK(has(rig, "read", 1), "it is read");
	rank_close(&r);
	open_rank(&r, rig, "read");
	go(&r, 7, 7);
	await_steps(rig, &r, "read", 2);
	rank_close(&r);
	CHECK(rig_stop(rig) == 0, "exit status");
}

/* Of steps 1 and 2 on disk the second is refused by that reason. */
static void check_kept(const struct rig *rig, int sock, const char *job,
		       const char *why)
{
	struct sk_msg msg;

	CHECK_STATUS(manage(sock, SK_MSG_EVICT, job, 2, SK_EVICT_DISK, &msg),
		     -EBUSY, &msg);
	CHECK(strstr(rig_why(&msg), why), "%s", rig_why(&msg));
	CHECK_STATUS(manage(sock, SK_MSG_EVICT, job, 1, SK_EVICT_DISK, &msg),
		     0, &msg);
	CHECK(!has(rig, job, 1) && has(rig, job, 2), "steps");
	CHECK_STATUS(manage(sock, SK_MSG_EVICT, job, 2,
			    SK_EVICT_DISK | SK_EVICT_FORCE, &msg), 0, &msg);
	CHECK(!has(rig, job, 2), "by force it goes");
}

/* What is left if memory goes is not evicted, though something newer is
 * complete there. */
static void test_last_durable(struct rig *rig)
{
	struct rank r;
	int slot;

	rig_start(rig, "--store", rig->store, "--keep-last", "0", NULL);
	open_rank(&r, rig, "last");
	go(&r, 1, 2);
	slot = rank_slot(&r, 3, SK_SLOT_NO_FLUSH);
	CHECK(slot >= 0, "slot: %s", rig_why(&r.msg));
	rank_fill(&r, slot, 3);
	CHECK_STATUS(rank_seal(&r, slot, 3), 0, &r.msg);
	CHECK_STATUS(rank_wait(&r, 3, 2, WAIT_MS), 0, &r.msg);
	check_kept(rig, r.sock, "last", "the newest durable");
	rank_close(&r);
	CHECK(rig_stop(rig) == 0, "exit status");
}

/* Of a job on several nodes a store may have no step that is whole: this
 * node's part of the newest one is what the others' are of use with. */
static void test_last_part(struct rig *rig)
{
	const struct rank_options o = { .job = "part", .world = 2,
					.flush_every = UINT32_MAX };
	struct sk_msg msg;
	struct rank r;

	rig_start(rig, "--store", rig->store, "--keep-last", "0", NULL);
	CHECK_STATUS(rank_open(&r, rig, &o), 0, &r.msg);
	for (int64_t step = 1; step <= 2; step++) {
		rank_snapshot(&r, step);
		CHECK_STATUS(manage(r.sock, SK_MSG_FLUSH, "part", step, 0,
				    &msg), 0, &msg);
		CHECK_STATUS(rank_wait(&r, step, 4, WAIT_MS), 0, &r.msg);
	}
	rank_snapshot(&r, 3);
	check_kept(rig, r.sock, "part", "the newest on disk");
	rank_close(&r);
	CHECK(rig_stop(rig) == 0, "exit status");
}

/* Nobody says anything: what is new keeps four; what was there before this
 * was keeps all. */
static void test_default(struct rig *rig)
{
	char path[256];
	struct rank r;

	rig->retains = true;
	rig_start(rig, "--store", rig->store, NULL);
	open_rank(&r, rig, "new");
	go(&r, 1, 9);
	await_steps(rig, &r, "new", 4);
	rank_close(&r);
	open_rank(&r, rig, "old");
	go(&r, 1, 1);
	path_of(rig, "old", ".retain", path);
	CHECK(unlink(path) == 0, "unlink");
	go(&r, 2, 9);
	/* A job of its own is looked at after it. */
	rank_close(&r);
	open_rank(&r, rig, "new");
	go(&r, 10, 10);
	await_steps(rig, &r, "new", 4);
	CHECK(count(rig, "old", "step-") == 9, "steps of before");
	rank_close(&r);
	CHECK(rig_stop(rig) == 0, "exit status");
}

static void write_file(const char *path, const char *text)
{
	FILE *f = fopen(path, "w");

	CHECK(f && fputs(text, f) >= 0 && fclose(f) == 0, "%s", path);
}

/* What makes no sense deletes nothing, whatever the options say. */
static void test_malformed(struct rig *rig)
{
	static const char *const texts[] = {
		"", "keep 3\n", "{\"version\":1}\n",
		"{\"version\":2,\"from\":\"job\",\"keep_last\":1,"
		"\"keep_every\":0,\"keep_age_s\":0,\"keep_bytes\":0}\n",
		"{\"version\":1,\"from\":\"job\",\"keep_last\":-1,"
		"\"keep_every\":0,\"keep_age_s\":0,\"keep_bytes\":0}\n",
	};
	char path[256];
	struct rank r;

	rig_start(rig, "--store", rig->store, "--keep-last", "1", NULL);
	open_rank(&r, rig, "torn");
	go(&r, 1, 1);
	path_of(rig, "torn", ".retain", path);
	/* A look that had begun would go by what made sense. */
	rank_close(&r);
	CHECK(rig_stop(rig) == 0, "exit status");
	write_file(path, texts[0]);
	rig_start(rig, "--store", rig->store, "--keep-last", "1", NULL);
	open_rank(&r, rig, "torn");
	for (int i = 0; i < 5; i++) {
		write_file(path, texts[i]);
		go(&r, 2 + i, 2 + i);
	}
	CHECK(count(rig, "torn", "step-") == 6, "%u steps",
	      count(rig, "torn", "step-"));
	write_file(path, "{\"version\":1,\"from\":\"operator\",\"keep_last\":2,"
		   "\"keep_every\":0,\"keep_age_s\":0,\"keep_bytes\":0}\n");
	go(&r, 7, 7);
	await_steps(rig, &r, "torn", 2);
	rank_close(&r);
	CHECK(rig_stop(rig) == 0, "exit status");
}

static uint32_t retain(const struct rank *r, uint32_t flags, uint32_t last,
		       uint32_t *ret_last)
{
	struct sk_msg msg = { .type = SK_MSG_RETAIN };

	snprintf(msg.body.retain.id.job, sizeof(msg.body.retain.id.job), "%s",
		 r->job);
	msg.body.retain.flags = flags;
	msg.body.retain.retention.keep_last = last;
	CHECK_STATUS(rig_call(r->sock, &msg, NULL, 0, NULL, NULL), 0, &msg);
	*ret_last = msg.body.retain.retention.keep_last;
	return msg.body.retain.from;
}

/* The operator before the job, the job before the agent; and what both said is
 * known to the next agent. */
static void test_said(struct rig *rig)
{
	const struct rank_options o = { .job = "said", .world = 1, .rows = 1,
					.slots = 3, .keep_last = 2 };
	struct rank r;
	uint32_t last;

	rig_start(rig, "--store", rig->store, "--keep-last", "6", NULL);
	open_rank(&r, rig, "said");
	go(&r, 1, 8);
	await_steps(rig, &r, "said", 6);
	CHECK(retain(&r, 0, 0, &last) == 2 && last == 6, "the agent's");
	rank_close(&r);
	CHECK_STATUS(rank_open(&r, rig, &o), 0, &r.msg);
	await_steps(rig, &r, "said", 2);
	CHECK(retain(&r, 0, 0, &last) == 3 && last == 2, "the job's");
	CHECK(retain(&r, SK_RETAIN_SET, 4, &last) == 4 && last == 4,
	      "the operator's");
	go(&r, 9, 12);
	await_steps(rig, &r, "said", 4);
	rank_close(&r);
	CHECK(rig_stop(rig) == 0, "exit status");
	rig_start(rig, "--store", rig->store, "--keep-last", "1", NULL);
	CHECK_STATUS(rank_open(&r, rig, &o), 0, &r.msg);
	go(&r, 13, 16);
	await_steps(rig, &r, "said", 4);
	CHECK(retain(&r, SK_RETAIN_DEFAULT, 0, &last) == 3 && last == 2,
	      "the job's again");
	await_steps(rig, &r, "said", 2);
	rank_close(&r);
	/* Its last word counts when it is not there, too. */
	rig_stop(rig);
	rig_start(rig, "--store", rig->store, "--keep-last", "1", NULL);
	open_rank(&r, rig, "said");
	go(&r, 17, 19);
	await_steps(rig, &r, "said", 2);
	CHECK(retain(&r, 0, 0, &last) == 3 && last == 2, "from the store");
	rank_close(&r);
	CHECK(rig_stop(rig) == 0, "exit status");
}

static void copy_step(const struct rig *rig, int64_t step, bool back)
{
	char name[64], path[256], aside[256], command[600];

	snprintf(name, sizeof(name), "step-%012lld", (long long)step);
	path_of(rig, "back", name, path);
	snprintf(aside, sizeof(aside), "%s.%s", rig->store, name);
	snprintf(command, sizeof(command), "cp -a %s %s", back ? aside : path,
		 back ? path : aside);
	CHECK(system(command) == 0, "%s", command);
}

/* Whatever was due of any job is done. */
static void end_passes(const struct rig *rig, int64_t first)
{
	struct rank r;

	open_rank(&r, rig, "other");
	go(&r, first, first + 3);
	await_steps(rig, &r, "other", 2);
	rank_close(&r);
}

/* Steps that were put back from a backup, older than what is to stay: whoever
 * comes to restore one finds it, and who pins one after the other all. */
static void test_brought_back(struct rig *rig)
{
	const struct rank_options o = { .job = "back", .world = 1, .rows = 1,
					.slots = 3, .keep_last = 2 };
	struct sk_msg msg;
	struct rank r;

	rig_start(rig, "--store", rig->store, "--keep-last", "2", NULL);
	open_rank(&r, rig, "back");
	go(&r, 1, 2);
	copy_step(rig, 1, false);
	copy_step(rig, 2, false);
	go(&r, 3, 6);
	await_steps(rig, &r, "back", 2);
	end_passes(rig, 1);
	copy_step(rig, 1, true);
	copy_step(rig, 2, true);
	/* As a restore registers. */
	CHECK_STATUS(rank_again(&r, &o), 0, &r.msg);
	end_passes(rig, 5);
	CHECK(has(rig, "back", 1) && has(rig, "back", 2), "while it restores");
	CHECK_STATUS(manage(r.sock, SK_MSG_PIN, "back", 1, 0, &msg), 0, &msg);
	end_passes(rig, 9);
	CHECK_STATUS(manage(r.sock, SK_MSG_PIN, "back", 2, 0, &msg), 0, &msg);
	CHECK_STATUS(manage(r.sock, SK_MSG_UNPIN, "back", 2, 0, &msg), 0,
		     &msg);
	rank_close(&r);
	/* One that has its slots is no such one. */
	CHECK_STATUS(rank_open(&r, rig, &o), 0, &r.msg);
	await_steps(rig, &r, "back", 3);
	CHECK(has(rig, "back", 1) && !has(rig, "back", 2), "the pinned one");
	/* It pins what was put back beside it. */
	copy_step(rig, 2, true);
	CHECK_STATUS(manage(r.sock, SK_MSG_PIN, "back", 1, 0, &msg), 0, &msg);
	end_passes(rig, 13);
	CHECK(has(rig, "back", 2), "by a pin");
	rank_close(&r);
	CHECK(rig_stop(rig) == 0, "exit status");
}

/* A node each: two agents, a rank each, one run. */
struct nodes {
	struct rig *a, b;
	struct rank ra, rb;
};

static void open_nodes(struct nodes *n, struct rig *rig, const char *job,
		       bool shared)
{
	struct rank_options o = { .job = job, .world = 2, .rows = 1 };

	n->a = rig;
	rig_init(&n->b, rig->program);
	rig_start(rig, "--store", rig->store, "--keep-last", "2", NULL);
	rig_start(&n->b, "--store", shared ? rig->store : n->b.store,
		  "--keep-last", "2", NULL);
	CHECK_STATUS(rank_open(&n->ra, rig, &o), 0, &n->ra.msg);
	o.rank = 1;
	o.run = n->ra.run;
	o.run_id = n->ra.run_id;
	CHECK_STATUS(rank_open(&n->rb, &n->b, &o), 0, &n->rb.msg);
}

static void close_nodes(struct nodes *n)
{
	rank_close(&n->ra);
	rank_close(&n->rb);
	CHECK(rig_stop(n->a) == 0, "exit status");
	CHECK(rig_stop(&n->b) == 0, "exit status");
	rig_remove(&n->b);
}

static void flushed(const struct rank *r, double n)
{
	AWAIT(stat_value(r->sock, "shardkeep_bytes_flushed_total") >= n,
	      "flushed");
}

static double image_bytes(const struct rank *r)
{
	return (double)r->layouts[0]->image_bytes;
}

/* What one has written waits for the other, which is behind; then both judge
 * by what lies there. */
static void test_two_agents(struct rig *rig)
{
	struct nodes n;

	open_nodes(&n, rig, "both", true);
	for (int64_t step = 1; step <= 5; step++) {
		rank_snapshot(&n.ra, step);
		flushed(&n.ra, (double)step * image_bytes(&n.ra));
		rank_snapshot(&n.rb, step);
		flushed(&n.rb, (double)step * image_bytes(&n.rb));
	}
	await_steps(rig, &n.ra, "both", 2);
	/* One goes ahead: nothing that may become complete goes, nor what is
	 * complete. */
	for (int64_t step = 6; step <= 12; step++) {
		rank_snapshot(&n.ra, step);
		flushed(&n.ra, (double)step * image_bytes(&n.ra));
	}
	CHECK(count(rig, "both", "step-") == 9, "%u steps",
	      count(rig, "both", "step-"));
	for (int64_t step = 6; step <= 12; step++) {
		rank_snapshot(&n.rb, step);
		flushed(&n.rb, (double)step * image_bytes(&n.rb));
	}
	await_steps(rig, &n.rb, "both", 2);
	CHECK(has(rig, "both", 11) && has(rig, "both", 12), "the last ones");
	close_nodes(&n);
}

/* Each has a disk of its own, on which no step is ever complete. */
static void test_own_stores(struct rig *rig)
{
	struct nodes n;

	open_nodes(&n, rig, "apart", false);
	for (int64_t step = 1; step <= 9; step++) {
		rank_snapshot(&n.ra, step);
		flushed(&n.ra, (double)step * image_bytes(&n.ra));
		rank_snapshot(&n.rb, step);
		flushed(&n.rb, (double)step * image_bytes(&n.rb));
	}
	await_steps(rig, &n.ra, "apart", 2);
	await_steps(&n.b, &n.rb, "apart", 2);
	CHECK(has(rig, "apart", 9) && has(&n.b, "apart", 8), "the last ones");
	close_nodes(&n);
}

int main(int argc, char **argv)
{
	static void (*const tests[])(struct rig *rig) = {
		test_thousand,
		test_pinned,
		test_over_agents,
		test_unpinned,
		test_in_use,
		test_last_durable,
		test_last_part,
		test_default,
		test_malformed,
		test_said,
		test_brought_back,
		test_own_stores,
		/* Who of them deletes what is chance. */
		test_two_agents, test_two_agents, test_two_agents,
		test_two_agents, test_two_agents, test_two_agents,
		test_two_agents, test_two_agents, test_two_agents,
		test_two_agents, test_two_agents, test_two_agents,
	};

	for (size_t i = 0; i < sizeof(tests) / sizeof(*tests); i++) {
		struct rig rig;

		rig_init(&rig, argc > 1 ? argv[1] : NULL);
		tests[i](&rig);
		rig_remove(&rig);
	}
	return 0;
}
