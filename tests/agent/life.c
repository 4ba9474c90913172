/* SPDX-License-Identifier: Apache-2.0 */
/* Registering, filling, sealing, listing, opening, dying, coming back. */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/rig.h"

static void test_thin_path(struct rig *rig)
{
	struct rank r[2];
	size_t n;

	for (int i = 0; i < 2; i++)
		CHECK_STATUS(rank_open(&r[i], rig, &(struct rank_options){
			.job = "thin", .rank = i, .world = 2,
			.replicated = true }), 0, &r[i].msg);
	CHECK(r[0].run == 1 && r[1].run == 1, "runs %d, %d", (int)r[0].run,
	      (int)r[1].run);
	rank_snapshot(&r[0], 10);
	CHECK(!(snapshot_flags(r[0].sock, "thin", 10) & SK_SNAP_COMPLETE),
	      "complete with one rank");
	CHECK_STATUS(rank_wait(&r[0], 10, 2, 1), -ETIMEDOUT, &r[0].msg);
	CHECK(strstr(rig_why(&r[0].msg), "rank 1"), "%s", rig_why(&r[0].msg));
	rank_snapshot(&r[1], 10);
	CHECK_STATUS(rank_wait(&r[0], 10, 2, WAIT_MS), 0, &r[0].msg);
	CHECK((snapshot_flags(r[0].sock, "thin", 10) &
	       (SK_SNAP_COMPLETE | SK_SNAP_NEWEST | SK_SNAP_MEMORY |
		SK_SNAP_DISK)) ==
	      (SK_SNAP_COMPLETE | SK_SNAP_NEWEST | SK_SNAP_MEMORY), "flags");
	free(list_images(r[0].sock, "thin", 10, &n));
	CHECK(n == 3 || n == 4, "%zu images", n);
	CHECK_STATUS(rank_slot(&r[0], 10, 0), -EEXIST, &r[0].msg);
	CHECK_STATUS(rank_wait(&r[0], 10, 3, 1), -ENOTCONN, &r[0].msg);
	CHECK_STATUS(rank_wait(&r[0], 11, 1, 1), -ENOENT, &r[0].msg);
	/* Many more steps than slots: the older ones make room. */
	for (int64_t step = 11; step < 40; step++) {
		rank_snapshot(&r[step % 2], step);
		rank_snapshot(&r[1 - step % 2], step);
	}
	free(list_snapshots(r[0].sock, "thin", &n));
	CHECK(n == 2, "%zu snapshots", n);
	CHECK(stat_value(r[0].sock, "shardkeep_snapshots") == 2, "as counted");
	CHECK(stat_value(r[0].sock, "shardkeep_coverage_checks_total") < 20,
	      "coverage is computed at every step");
	rank_close(&r[0]);
	rank_close(&r[1]);
}

/* The checksums alone are those of the header. */
static void check_sums(int sock, const struct sk_wire_image *image,
		       const struct sk_layout *l, const struct sk_stamp *stamp)
{
	struct sk_msg msg = { .type = SK_MSG_OPEN, .body.open = {
		.image = image->image, .place = image->place,
		.flags = SK_OPEN_SUMS } };
	const struct sk_wire_open_reply *o = &msg.body.open_reply;
	uint64_t bytes = l->n_sums * sizeof(*stamp->sums);
	int fds[SK_MSG_FDS], n = 0;
	char sums[4096];

	CHECK_STATUS(rig_call(sock, &msg, NULL, 0, fds, &n), 0, &msg);
	CHECK(n == 2 && bytes < sizeof(sums), "%d descriptors", n);
	CHECK(pread(fds[1], sums, sizeof(sums), 0) == (ssize_t)bytes &&
	      !memcmp(sums, stamp->sums, bytes), "sums");
	CHECK(o->n_sums == l->n_sums && o->run == stamp->run &&
	      o->run_id == stamp->run_id && o->rank == l->rank &&
	      (uint64_t)o->step == stamp->step && o->kind == l->kind &&
	      o->image_bytes == l->image_bytes &&
	      sk_digest_equal(&o->digest, &l->digest), "whose it is");
	CHECK(sk_digest_equal(&image->digest, &l->digest), "as listed");
	close(fds[0]);
	close(fds[1]);
}

/* What an image holds, read through OPEN. */
static void check_open(int sock, const struct sk_wire_image *image,
		       int64_t step)
{
	struct sk_msg msg = { .type = SK_MSG_OPEN, .body.open = {
		.image = image->image, .place = image->place } };
	struct sk_layout *l = NULL;
	struct sk_stamp stamp = { 0 };
	struct sk_err err = { "" };
	int fds[SK_MSG_FDS], n = 0;
	char *data, *head;

	CHECK_STATUS(rig_call(sock, &msg, NULL, 0, fds, &n), 0, &msg);
	CHECK(n == 2, "%d descriptors", n);
	data = mmap(NULL, msg.body.open_reply.image_bytes, PROT_READ,
		    MAP_SHARED, fds[0], 0);
	head = mmap(NULL, msg.body.open_reply.header_bytes, PROT_READ,
		    MAP_SHARED, fds[1], 0);
	CHECK(data != MAP_FAILED && head != MAP_FAILED, "mmap");
	CHECK(sk_layout_parse(head, msg.body.open_reply.header_bytes,
			      msg.body.open_reply.image_bytes, &l, &err) == 0,
	      "%s", err.text);
	stamp.sums = calloc(l->n_sums + 1u, sizeof(uint64_t));
	CHECK(sk_layout_read_stamp(l, head, &stamp, &err) == 0, "%s",
	      err.text);
	CHECK((int64_t)stamp.step == step, "step %d", (int)stamp.step);
	CHECK(!memcmp(head, data, l->header_bytes), "headers differ");
	check_sums(sock, image, l, &stamp);
	for (uint32_t i = 0; i < l->n_entries; i++)
		CHECK(*(uint32_t *)(data + l->entries[i].offset) ==
		      rank_word(l->rank, step), "data");
	free(stamp.sums);
	sk_layout_free(l);
	close(fds[0]);
	close(fds[1]);
}

/* The agent learns of a closed connection when it gets there. */
static int evict_unused(int sock, const char *job, int64_t step,
			struct sk_msg *msg)
{
	int r;

	AWAIT((r = manage(sock, SK_MSG_EVICT, job, step, 0, msg)) != -EBUSY,
	      "step %d is in use", (int)step);
	return r;
}

static void test_open(struct rig *rig)
{
	struct sk_wire_image *images;
	struct sk_msg msg;
	struct rank r;
	size_t n;
	int other;

	CHECK_STATUS(rank_open(&r, rig, &(struct rank_options){
		.job = "open", .world = 1 }), 0, &r.msg);
	rank_snapshot(&r, 1);
	rank_snapshot(&r, 2);
	images = list_images(r.sock, "open", 1, &n);
	CHECK(n == 1, "%zu", n);
	other = rig_connect(rig);
	check_open(other, &images[0], 1);
	/* A lease keeps it from being evicted, by force as well. */
	CHECK_STATUS(manage(r.sock, SK_MSG_EVICT, "open", 1, SK_EVICT_FORCE,
			    &msg), -EBUSY, &msg);
	CHECK(strstr(rig_why(&msg), "in use"), "%s", rig_why(&msg));
	CHECK_STATUS(rank_slot(&r, 3, 0), -EBUSY, &r.msg);
	/* It ends with the connection. */
	close(other);
	CHECK_STATUS(evict_unused(r.sock, "open", 1, &msg), 0, &msg);
	CHECK_STATUS(manage(r.sock, SK_MSG_EVICT, "open", 2, 0, &msg), -EBUSY,
		     &msg);
	CHECK(strstr(rig_why(&msg), "newest"), "%s", rig_why(&msg));
	msg = (struct sk_msg){ .type = SK_MSG_OPEN, .body.open = {
		.image = images[0].image, .place = SK_PLACE_MEMORY } };
	CHECK_STATUS(rig_call(r.sock, &msg, NULL, 0, NULL, NULL), -ENOENT,
		     &msg);
	free(images);
	rank_close(&r);
}

/* Who comes to a round when another rank of the run has gone hears that. */
static void check_told_who_is_gone(struct rank *r)
{
	struct sk_msg msg = { .type = SK_MSG_GATHER, .body.gather = {
		.id = { .job = "death", .run = r->run, .run_id = r->run_id,
			.step = -1, .rank = 0, .world = 2 },
		.bytes = 8, .timeout_ms = 1 } };

	CHECK_STATUS(rig_call(r->sock, &msg, NULL, 0, NULL, NULL), -ETIMEDOUT,
		     &msg);
	CHECK(strstr(rig_why(&msg), "rank 1, which is gone"), "%s",
	      rig_why(&msg));
}

static struct sk_msg gather_of(int32_t rank, int32_t world,
			       uint32_t timeout_ms)
{
	return (struct sk_msg){ .type = SK_MSG_GATHER, .body.gather = {
		.id = { .job = "apart", .run = SK_RUN_READERS,
			.step = -1, .rank = rank, .world = world },
		.bytes = 8, .timeout_ms = timeout_ms } };
}

/* It is in its round when this returns. */
static void wait_in(int sock, struct sk_msg msg)
{
	msg.seq = 1;
	CHECK(sk_channel_send(sk_os_linux(), sock, &msg, NULL, 0) == 0, "send");
	msg = (struct sk_msg){ .type = SK_MSG_STATUS, .seq = 2 };
	CHECK(sk_channel_send(sk_os_linux(), sock, &msg, NULL, 0) == 0, "send");
	CHECK(rig_reply(sock, &msg, NULL, NULL) == 0 && msg.seq == 2,
	      "another answer");
}

/* Whoever waits longer does not hear that those whose time was over before it
 * had not come. */
static void test_absent(struct rig *rig)
{
	int socks[2] = { rig_connect(rig), rig_connect(rig) };
	struct sk_msg msg;

	wait_in(socks[0], gather_of(0, 3, 1500));
	msg = gather_of(1, 3, 1);
	CHECK_STATUS(rig_call(socks[1], &msg, NULL, 0, NULL, NULL), -ETIMEDOUT,
		     &msg);
	CHECK(strstr(rig_why(&msg), "1 of 3 ranks of job \"apart\"") &&
	      strstr(rig_why(&msg), "rank 2"), "%s", rig_why(&msg));
	CHECK_STATUS(rig_reply(socks[0], &msg, NULL, NULL), -ETIMEDOUT, &msg);
	CHECK(strstr(rig_why(&msg), "1 of 3 ranks of job \"apart\"") &&
	      strstr(rig_why(&msg), "rank 2"), "%s", rig_why(&msg));
	for (int i = 0; i < 2; i++)
		close(socks[i]);
}

/* What does not go together ends at once, for all. */
static void test_other_world(struct rig *rig)
{
	int socks[2] = { rig_connect(rig), rig_connect(rig) };
	struct sk_msg msg = gather_of(1, 3, WAIT_MS);

	wait_in(socks[0], gather_of(0, 2, WAIT_MS));
	CHECK_STATUS(rig_call(socks[1], &msg, NULL, 0, NULL, NULL), -EINVAL,
		     &msg);
	CHECK_STATUS(rig_reply(socks[0], &msg, NULL, NULL), -EINVAL, &msg);
	CHECK(strstr(rig_why(&msg), "with 3 ranks, others with 2"), "%s",
	      rig_why(&msg));
	for (int i = 0; i < 2; i++)
		close(socks[i]);
}

/* Killed while it fills: the older snapshot stands, the next run counts on. */
static void test_death(struct rig *rig)
{
	struct rank_options o = { .job = "death", .world = 2 };
	struct rank r[2], next;
	int status, done[2];
	double lost = 0;
	pid_t pid;
	char c;

	CHECK(pipe(done) == 0, "pipe");
	CHECK_STATUS(rank_open(&r[0], rig, &o), 0, &r[0].msg);
	lost = stat_value(r[0].sock,
			  "shardkeep_discarded_rank_death_total");
	pid = fork();
	if (!pid) {
		o.rank = 1;
		CHECK_STATUS(rank_open(&r[1], rig, &o), 0, &r[1].msg);
		rank_snapshot(&r[1], 1);
		CHECK(rank_slot(&r[1], 2, 0) >= 0, "slot");
		CHECK(r[1].msg.body.slot_reply.ranks == 2, "both are served");
		memset(r[1].maps[1][0], 0xff, 100);
		CHECK(write(done[1], "x", 1) == 1, "write");
		pause();
	}
	rank_snapshot(&r[0], 1);
	CHECK(read(done[0], &c, 1) == 1, "read");
	rank_snapshot(&r[0], 2);
	/* A second rank of that number is refused while it lives. */
	o.rank = 1;
	CHECK_STATUS(rank_open(&next, rig, &o), -EEXIST, &next.msg);
	CHECK(strstr(rig_why(&next.msg), "two jobs of one name"), "%s",
	      rig_why(&next.msg));
	rank_close(&next);
	kill(pid, SIGKILL);
	CHECK(waitpid(pid, &status, 0) == pid, "waitpid");
	/* It cannot be complete any more: whoever waits is told. */
	CHECK_STATUS(rank_wait(&r[0], 2, 2, WAIT_MS), -ENOENT, &r[0].msg);
	check_told_who_is_gone(&r[0]);
	CHECK(snapshot_flags(r[0].sock, "death", 1) & SK_SNAP_NEWEST,
	      "the older snapshot is the newest complete one");
	CHECK(stat_value(r[0].sock, "shardkeep_discarded_rank_death_total") ==
	      lost + 1, "the loss is counted");
	/* The survivor's run is over; the next one is numbered behind it. */
	CHECK_STATUS(rank_open(&next, rig, &o), 0, &next.msg);
	CHECK(next.run == 2, "run %d", (int)next.run);
	rank_close(&r[0]);
	o.rank = 0;
	CHECK_STATUS(rank_open(&r[0], rig, &o), 0, &r[0].msg);
	CHECK(r[0].run == 2, "run %d", (int)r[0].run);
	/* And what the first run sealed is still there. */
	CHECK(snapshot_flags(r[0].sock, "death", 1) & SK_SNAP_COMPLETE,
	      "run 1");
	rank_snapshot(&r[0], 2);
	rank_snapshot(&next, 2);
	CHECK_STATUS(rank_wait(&r[0], 2, 2, WAIT_MS), 0, &r[0].msg);
	rank_close(&r[0]);
	rank_close(&next);
	close(done[0]);
	close(done[1]);
}

static void test_runs(struct rig *rig)
{
	struct rank_options o = { .job = "runs", .world = 2, .run = 7 };
	struct rank a, b;

	CHECK_STATUS(rank_open(&a, rig, &o), 0, &a.msg);
	CHECK(a.run == 7, "run %d", (int)a.run);
	/* Unnumbered ranks join it. */
	CHECK_STATUS(rank_open(&b, rig, &(struct rank_options){
		.job = "runs", .rank = 1, .world = 2 }), 0, &b.msg);
	CHECK(b.run == 7, "run %d", (int)b.run);
	rank_close(&b);
	/* An older run while a newer one lives is a mistake. */
	o.run = 6;
	o.rank = 1;
	CHECK_STATUS(rank_open(&b, rig, &o), -ESTALE, &b.msg);
	rank_close(&b);
	/* The same run with another world as well. */
	o.run = 7;
	o.world = 3;
	CHECK_STATUS(rank_open(&b, rig, &o), -EINVAL, &b.msg);
	rank_close(&b);
	rank_close(&a);
}

/* An image that says something else than was asked for is not believed. */
static void test_bad_seal(struct rig *rig)
{
	struct rank r;
	int slot;

	CHECK_STATUS(rank_open(&r, rig, &(struct rank_options){
		.job = "bad", .world = 1 }), 0, &r.msg);
	slot = rank_slot(&r, 5, 0);
	CHECK(slot >= 0, "slot");
	rank_fill(&r, slot, 6);
	CHECK_STATUS(rank_seal(&r, slot, 5), -EBADMSG, &r.msg);
	CHECK_STATUS(rank_seal(&r, slot, 5), -EINVAL, &r.msg);
	slot = rank_slot(&r, 5, 0);
	CHECK(slot >= 0, "slot");
	memset(r.maps[slot][0], 'x', 4096);
	CHECK_STATUS(rank_seal(&r, slot, 5), -EBADMSG, &r.msg);
	rank_snapshot(&r, 5);
	CHECK_STATUS(rank_wait(&r, 5, 2, WAIT_MS), 0, &r.msg);
	rank_close(&r);
}

/* PREPARE and SLOT_WAIT, over connections of their own. */
static void test_deferred(struct rig *rig)
{
	struct sk_msg msg = { .type = SK_MSG_PREPARE, .body.prepare = {
		.id = { .step = -1 }, .timeout_ms = WAIT_MS } };
	double refused;
	struct rank r;
	int other;

	CHECK_STATUS(rank_open(&r, rig, &(struct rank_options){
		.job = "wait", .world = 1, .rows = 4096 }), 0, &r.msg);
	other = rig_connect(rig);
	strcpy(msg.body.prepare.id.job, "wait");
	CHECK_STATUS(rig_call(other, &msg, NULL, 0, NULL, NULL), 0, &msg);
	rank_snapshot(&r, 1);
	CHECK(rank_slot(&r, 2, 0) >= 0, "slot");
	refused = stat_value(r.sock, "shardkeep_slots_refused_total");
	CHECK_STATUS(rank_slot(&r, 3, SK_SLOT_WILL_WAIT), -EBUSY, &r.msg);
	CHECK(stat_value(r.sock, "shardkeep_slots_refused_total") == refused,
	      "it asks again");
	CHECK_STATUS(rank_slot(&r, 3, 0), -EBUSY, &r.msg);
	CHECK(stat_value(r.sock, "shardkeep_slots_refused_total") ==
	      refused + 1);
	CHECK(strstr(rig_why(&r.msg), "being filled"), "%s",
	      rig_why(&r.msg));
	msg = (struct sk_msg){ .type = SK_MSG_SLOT_WAIT, .body.slot_wait = {
		.id = { .step = -1 }, .timeout_ms = WAIT_MS } };
	strcpy(msg.body.slot_wait.id.job, "wait");
	rig_send(other, &msg);
	rank_fill(&r, 1, 2);
	CHECK_STATUS(rank_seal(&r, 1, 2), 0, &r.msg);
	CHECK_STATUS(rig_reply(other, &msg, NULL, NULL), 0, &msg);
	CHECK(rank_slot(&r, 3, 0) >= 0, "slot");
	close(other);
	rank_close(&r);
}

/* A rank that describes itself anew is one rank: what it sealed before stays,
 * and it ends once. */
static void test_anew(struct rig *rig)
{
	struct rank_options o = { .job = "anew", .world = 1 };
	int sock = rig_connect(rig);
	double deaths;
	struct rank r;

	AWAIT(stat_value(sock, "shardkeep_ranks") == 0, "others live");
	deaths = stat_value(sock, "shardkeep_rank_deaths_total");
	CHECK_STATUS(rank_open(&r, rig, &o), 0, &r.msg);
	rank_snapshot(&r, 1);
	o.rows = 8;
	CHECK_STATUS(rank_again(&r, &o), 0, &r.msg);
	CHECK(stat_value(sock, "shardkeep_ranks") == 1, "two ranks");
	rank_close(&r);
	AWAIT(stat_value(sock, "shardkeep_ranks") == 0, "it stays");
	CHECK(stat_value(sock, "shardkeep_rank_deaths_total") == deaths + 1,
	      "%.0f deaths", stat_value(sock, "shardkeep_rank_deaths_total") -
	      deaths);
	CHECK(snapshot_flags(sock, "anew", 1) & SK_SNAP_RESIDENT, "step 1");
	close(sock);
}

int main(int argc, char **argv)
{
	struct rig rig;

	rig_init(&rig, argc > 1 ? argv[1] : NULL);
	rig_start(&rig, "--memory", "256M", NULL);
	test_thin_path(&rig);
	test_open(&rig);
	test_death(&rig);
	test_absent(&rig);
	test_other_world(&rig);
	test_runs(&rig);
	test_bad_seal(&rig);
	test_deferred(&rig);
	test_anew(&rig);
	CHECK(rig_stop(&rig) == 0, "exit status");
	rig_remove(&rig);
	return 0;
}
