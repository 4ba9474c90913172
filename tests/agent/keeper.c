/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An agent with a parent that keeps what memory holds: killed at any moment,
 * it loses nothing that was sealed.
 */
#include "agent/rig.h"

#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>


#include "keeper/table.h"
#include "support/agent.h"

#define TRIES 10

/* ---- what is looked at ---- */

static pid_t agent_pid(const struct rig *rig)
{
	struct sk_msg msg;
	int sock = rig_try_connect(rig, &msg);

	CHECK(sock >= 0, "connect: %s", strerror(-sock));
	close(sock);
	return (pid_t)msg.body.hello_reply.pid;
}

static void await_death(pid_t pid, int sig)
{
	struct pollfd p = { .events = POLLIN };

	p.fd = (int)syscall(SYS_pidfd_open, pid, 0);
	CHECK(p.fd >= 0, "pidfd_open: %s", strerror(errno));
	CHECK(!sig || kill(pid, sig) == 0, "kill");
	CHECK(poll(&p, 1, (int)WAIT_MS) == 1, "process %d lives", (int)pid);
	close(p.fd);
}

static pid_t kill_agent(const struct rig *rig)
{
	pid_t pid = agent_pid(rig);

	CHECK(pid != rig->agent, "the keeper is another process");
	await_death(pid, SIGKILL);
	return pid;
}

static unsigned fds_of(pid_t pid)
{
	struct dirent *e;
	unsigned n = 0;
	char path[64];
	DIR *d;

	snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
	d = opendir(path);
	CHECK(d, "%s", path);
	while ((e = readdir(d)))
		n += e->d_name[0] != '.';
	closedir(d);
	return n;
}

static bool is_asleep(pid_t pid)
{
	char path[64], state = 0;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	f = fopen(path, "re");
	CHECK(f && fscanf(f, "%*d %*s %c", &state) == 1, "%s", path);
	(void)fclose(f);
	return state == 'S';
}

/* What the keeper has when it has begun an agent: the two ends of a socket it
 * has until then, and the agent may serve before. */
static unsigned fds_at_rest(pid_t keeper)
{
	AWAIT(is_asleep(keeper), "the keeper does not rest");
	return fds_of(keeper);
}

static double stat_of(const struct rig *rig, const char *name)
{
	int sock = rig_connect(rig);
	double value = stat_value(sock, name);

	close(sock);
	return value;
}

static uint32_t flags_of(const struct rig *rig, const char *job, int64_t step)
{
	int sock = rig_connect(rig);
	uint32_t flags = snapshot_flags(sock, job, step);

	close(sock);
	return flags;
}

/* Every byte of what a rank sealed is as it was filled. */
static void check_image(int sock, const struct sk_wire_image *image,
			const struct rank *like)
{
	struct sk_msg msg = { .type = SK_MSG_OPEN, .body.open = {
		.image = image->image, .place = SK_PLACE_MEMORY } };
	const struct sk_layout *l = like->layouts[image->kind];
	int fds[SK_MSG_FDS], n = 0;
	char *map;

	CHECK_STATUS(rig_call(sock, &msg, NULL, 0, fds, &n), 0, &msg);
	CHECK(n == 2, "%d descriptors", n);
	CHECK(image->bytes == l->image_bytes, "bytes");
	map = mmap(NULL, l->image_bytes, PROT_READ, MAP_SHARED, fds[0], 0);
	CHECK(map != MAP_FAILED, "mmap");
	for (uint32_t i = 0; i < l->n_entries; i++) {
		const struct sk_entry *e = &l->entries[i];
		const uint32_t *words = (void *)(map + e->offset);

		for (uint64_t k = 0; k < e->bytes / 4; k++)
			CHECK(words[k] == rank_word(image->id.rank,
						    image->id.step),
			      "word %d of rank %d", (int)k, image->id.rank);
	}
	munmap(map, l->image_bytes);
	close(fds[0]);
	close(fds[1]);
}

static size_t check_images(const struct rig *rig, const char *job,
			   int64_t step, const struct rank *ranks)
{
	int sock = rig_connect(rig);
	size_t n;
	struct sk_wire_image *images = list_images(sock, job, step, &n);

	for (size_t i = 0; i < n; i++)
		check_image(sock, &images[i], &ranks[images[i].id.rank]);
	free(images);
	close(sock);
	return n;
}

/* The rank as it comes back to the run that it was in. */
static void come_back(struct rank *r, const struct rig *rig,
		      struct rank_options o)
{
	struct rank before = *r;

	o.run = before.run;
	o.run_id = before.run_id;
	rank_close(r);
	CHECK_STATUS(rank_open(r, rig, &o), 0, &r->msg);
	CHECK(r->run == before.run && r->run_id == before.run_id,
	      "run %d", (int)r->run);
}

static void open_ranks(struct rank r[2], const struct rig *rig,
		       struct rank_options o)
{
	o.world = 2;
	for (o.rank = 0; o.rank < 2; o.rank++)
		CHECK_STATUS(rank_open(&r[o.rank], rig, &o), 0,
			     &r[o.rank].msg);
}

static void close_ranks(struct rank r[2])
{
	rank_close(&r[0]);
	rank_close(&r[1]);
}

/* ---- tests ---- */

/* What was sealed stands, byte for byte; what was being filled is free; who
 * comes back has its slots again and goes on. */
static void test_sealed_stands(struct rig *rig)
{
	struct rank_options o = { .job = "stands", .world = 2,
				  .replicated = true };
	double used;
	struct rank r[2];
	pid_t before;

	open_ranks(r, rig, o);
	for (int64_t step = 1; step <= 2; step++)
		for (int i = 0; i < 2; i++)
			rank_snapshot(&r[i], step);
	CHECK(rank_slot(&r[0], 3, 0) >= 0, "slot");
	used = stat_of(rig, "shardkeep_memory_used_bytes");
	before = kill_agent(rig);
	CHECK(agent_pid(rig) != before, "another agent");
	CHECK(stat_of(rig, "shardkeep_memory_used_bytes") == used, "used");
	CHECK((flags_of(rig, "stands", 2) & (SK_SNAP_COMPLETE |
	       SK_SNAP_RESIDENT | SK_SNAP_NEWEST)) == (SK_SNAP_COMPLETE |
	       SK_SNAP_RESIDENT | SK_SNAP_NEWEST), "step 2");
	CHECK(stat_of(rig, "shardkeep_images_revived_total") >= 3, "images");
	CHECK(stat_of(rig, "shardkeep_images_not_revived_total") == 0, "lost");
	CHECK(check_images(rig, "stands", 2, r) >= 3, "images");
	CHECK(!(flags_of(rig, "stands", 3) & SK_SNAP_MEMORY), "step 3");
	for (o.rank = 0; o.rank < 2; o.rank++)
		come_back(&r[o.rank], rig, o);
	CHECK(r[0].slots == 2 && r[1].slots == 2, "slots");
	CHECK(stat_of(rig, "shardkeep_memory_used_bytes") == used, "used");
	CHECK(check_images(rig, "stands", 2, r) >= 3, "images");
	rank_snapshot(&r[0], 3);
	rank_snapshot(&r[1], 3);
	CHECK_STATUS(rank_wait(&r[0], 3, 2, WAIT_MS), 0, &r[0].msg);
	CHECK(check_images(rig, "stands", 3, r) >= 3, "images");
	close_ranks(r);
}

/* Nobody needs to come back: a restart of the job restores from memory. */
static void test_next_run(struct rig *rig)
{
	struct rank_options o = { .job = "next" };
	struct rank r[2];

	open_ranks(r, rig, o);
	rank_snapshot(&r[0], 5);
	rank_snapshot(&r[1], 5);
	(void)kill_agent(rig);
	close_ranks(r);
	open_ranks(r, rig, o);
	CHECK(r[0].run == 2 && r[1].run == 2, "run %d", (int)r[0].run);
	CHECK(flags_of(rig, "next", 5) & SK_SNAP_COMPLETE, "step 5");
	rank_snapshot(&r[0], 6);
	rank_snapshot(&r[1], 6);
	CHECK_STATUS(rank_wait(&r[0], 6, 2, WAIT_MS), 0, &r[0].msg);
	close_ranks(r);
}

/* A rank that is awaited may still bring what another one has sealed. */
static void test_awaited(struct rig *rig)
{
	struct rank_options o = { .job = "awaited", .world = 2 };
	struct rank r[2];

	open_ranks(r, rig, o);
	rank_snapshot(&r[0], 1);
	rank_snapshot(&r[1], 1);
	(void)kill_agent(rig);
	come_back(&r[0], rig, o);
	rank_snapshot(&r[0], 2);
	rank_send_wait(&r[0], 2, 2, WAIT_MS);
	o.rank = 1;
	come_back(&r[1], rig, o);
	rank_snapshot(&r[1], 2);
	CHECK_STATUS(rig_reply(r[0].sock, &r[0].msg, NULL, NULL), 0,
		     &r[0].msg);
	close_ranks(r);
}

static void test_pins(struct rig *rig)
{
	struct rank_options o = { .job = "pins" };
	struct sk_msg msg;
	struct rank r[2];
	int sock;

	open_ranks(r, rig, o);
	for (int64_t step = 1; step <= 2; step++)
		for (int i = 0; i < 2; i++)
			rank_snapshot(&r[i], step);
	CHECK_STATUS(manage(r[0].sock, SK_MSG_PIN, "pins", 1, 0, &msg), 0,
		     &msg);
	(void)kill_agent(rig);
	CHECK(flags_of(rig, "pins", 1) & SK_SNAP_PINNED, "it is pinned");
	CHECK(!(flags_of(rig, "pins", 2) & SK_SNAP_PINNED), "it is not");
	sock = rig_connect(rig);
	CHECK_STATUS(manage(sock, SK_MSG_UNPIN, "pins", 1, 0, &msg), 0, &msg);
	close(sock);
	(void)kill_agent(rig);
	CHECK(!(flags_of(rig, "pins", 1) & SK_SNAP_PINNED), "nor that");
	close_ranks(r);
}

/* A pin that stood on disk when the agent was killed is no more where another
 * one has taken it away meanwhile; what was pinned in memory alone stays so. */
static void test_pins_on_disk(const char *program)
{
	char path[200];
	struct rig rig;
	struct rank r;

	rig_init(&rig, program);
	rig_start(&rig, "--keeper", "--store", rig.store, NULL);
	CHECK_STATUS(rank_open(&r, &rig, &(struct rank_options){
		.job = "pins", .world = 1, .flush_every = UINT32_MAX }), 0,
		&r.msg);
	rank_snapshot(&r, 1);
	rank_snapshot(&r, 2);
	CHECK_STATUS(manage(r.sock, SK_MSG_FLUSH, "pins", 2, 0, &r.msg), 0,
		     &r.msg);
	CHECK_STATUS(rank_wait(&r, 2, 3, WAIT_MS), 0, &r.msg);
	for (int64_t step = 1; step <= 2; step++)
		CHECK_STATUS(manage(r.sock, SK_MSG_PIN, "pins", step, 0,
				    &r.msg), 0, &r.msg);
	(void)snprintf(path, sizeof(path), "%s/pins/step-%012d/.pinned",
		       rig.store, 2);
	(void)kill_agent(&rig);
	CHECK(unlink(path) == 0, "it was not pinned on disk");
	CHECK(!(flags_of(&rig, "pins", 2) & SK_SNAP_PINNED), "it is pinned");
	CHECK(flags_of(&rig, "pins", 1) & SK_SNAP_PINNED, "it is not pinned");
	rank_close(&r);
	CHECK(rig_stop(&rig) == 0, "status");
	rig_remove(&rig);
}

/* What is let go of is not kept, by anybody. */
static void test_keeps_no_more(struct rig *rig)
{
	struct rank_options o = { .job = "more", .world = 1 };
	unsigned before = fds_at_rest(rig->agent);
	struct sk_msg msg;
	struct rank r;

	for (int i = 0; i < 3; i++) {
		CHECK_STATUS(rank_open(&r, rig, &o), 0, &r.msg);
		rank_snapshot(&r, 1);
		/* What it was told it has heard before it begins another. */
		(void)kill_agent(rig);
		CHECK(flags_of(rig, "more", 1) & SK_SNAP_MEMORY, "it stands");
		AWAIT(fds_of(rig->agent) == before + 2, "both are kept");
		come_back(&r, rig, o);
		CHECK_STATUS(rank_unregister(&r), 0, &r.msg);
		CHECK_STATUS(manage(r.sock, SK_MSG_EVICT, "more", 1,
				    SK_EVICT_FORCE, &msg), 0, &msg);
		(void)kill_agent(rig);
		CHECK(flags_of(rig, "more", 1) == 0, "it is gone");
		AWAIT(fds_of(rig->agent) == before, "%u descriptors, not "
		      "%u", fds_of(rig->agent), before);
		rank_close(&r);
	}
}

/* Kills the agent while it writes; the step. A test that stands still for the
 * seconds that this takes has another try. */
static int64_t cut_short(struct rig *rig, struct rank r[2],
			 struct rank_options o)
{
	o.world = 2;
	for (int64_t step = 1; step <= TRIES; step++) {
		rank_snapshot(&r[0], step);
		rank_snapshot(&r[1], step);
		CHECK_STATUS(rank_wait(&r[0], step, 2, WAIT_MS), 0,
			     &r[0].msg);
		(void)kill_agent(rig);
		if (!(flags_of(rig, o.job, step) & SK_SNAP_DURABLE))
			return step;
		for (o.rank = 0; o.rank < 2; o.rank++)
			come_back(&r[o.rank], rig, o);
	}
	CHECK(false, "each was written too soon");
	return 0;
}

/* A flush that was cut short begins again. */
static void test_flush(const char *program)
{
	struct rank_options o = { .job = "flush", .rows = 512 };
	struct rank r[2];
	struct rig rig;
	int64_t step;

	rig_init(&rig, program);
	rig_start(&rig, "--keeper", "--store", rig.store, "--flush-rate",
		  "2M", "--idle-exit", "60", NULL);
	open_ranks(r, &rig, o);
	step = cut_short(&rig, r, o);
	close_ranks(r);
	o.world = 2;
	CHECK_STATUS(rank_open(&r[0], &rig, &o), 0, &r[0].msg);
	r[0].run = 1;
	CHECK_STATUS(rank_wait(&r[0], step, 3, WAIT_MS), 0, &r[0].msg);
	/* What is durable need not be written again. */
	CHECK(stat_of(&rig, "shardkeep_snapshots_durable_total") == 1, "1");
	(void)kill_agent(&rig);
	CHECK(flags_of(&rig, "flush", step) & SK_SNAP_DURABLE, "durable");
	CHECK(stat_of(&rig, "shardkeep_bytes_flushed_total") == 0, "written");
	rank_close(&r[0]);
	CHECK(rig_stop(&rig) == 0, "status");
	rig_remove(&rig);
}

/* Without its keeper the agent goes on, and says what that means. */
static void test_keeper_dies(const char *program)
{
	struct rank_options o = { .job = "orphan" };
	struct rank r[2];
	struct rig rig;
	pid_t agent;

	rig_init(&rig, program);
	rig_start(&rig, "--keeper", "--idle-exit", "60", NULL);
	open_ranks(r, &rig, o);
	rank_snapshot(&r[0], 1);
	rank_snapshot(&r[1], 1);
	CHECK(stat_value(r[0].sock, "shardkeep_keeper") == 1, "kept");
	agent = agent_pid(&rig);
	CHECK(kill(rig.agent, SIGKILL) == 0, "kill");
	CHECK(rig_wait(&rig) == 128 + SIGKILL, "kill");
	CHECK(agent_pid(&rig) == agent, "the agent goes on");
	rank_snapshot(&r[0], 2);
	rank_snapshot(&r[1], 2);
	CHECK_STATUS(rank_wait(&r[0], 2, 2, WAIT_MS), 0, &r[0].msg);
	CHECK(stat_value(r[0].sock, "shardkeep_keeper") == 0, "not kept");
	close_ranks(r);
	await_death(agent, SIGTERM);
	rig_remove(&rig);
}

/* It ends with its agent where that ends in order, whoever was told to. */
static void test_ends(const char *program)
{
	struct rig rig;
	struct stat st;

	rig_init(&rig, program);
	for (int i = 0; i < 3; i++) {
		rig_start(&rig, "--keeper", "--idle-exit", "60", NULL);
		if (i == 1)
			(void)kill_agent(&rig);
		if (i == 2)
			CHECK(kill(agent_pid(&rig), SIGTERM) == 0, "kill");
		CHECK((i == 2 ? rig_wait(&rig) : rig_stop(&rig)) == 0,
		      "status");
		CHECK(stat(rig.socket, &st) < 0 && errno == ENOENT,
		      "the socket is gone");
	}
	rig_remove(&rig);
}

/* ---- takeover ---- */

static pid_t start_over(const struct rig *rig)
{
	const char *const args[] = {
		rig->program, "--socket", rig->socket, "--takeover",
		"--log-level", "warning", "--idle-exit", "60", NULL };

	return agent_start(args);
}

/* Another agent has what this one had, which is no more. */
static void test_takeover(const char *program)
{
	struct rank_options o = { .job = "over", .world = 2,
				  .replicated = true };
	struct rank r[2];
	struct rig rig;
	double used;

	rig_init(&rig, program);
	rig_start(&rig, "--keeper", "--idle-exit", "60", NULL);
	open_ranks(r, &rig, o);
	for (int64_t step = 1; step <= 3; step++) {
		pid_t next, agent = agent_pid(&rig);

		rank_snapshot(&r[0], step);
		rank_snapshot(&r[1], step);
		CHECK(rank_slot(&r[0], step + 1, 0) >= 0, "slot");
		used = stat_of(&rig, "shardkeep_memory_used_bytes");
		next = start_over(&rig);
		CHECK(next > 0, "it was not taken over");
		CHECK(rig_wait(&rig) == 0, "the old one's keeper has ended");
		rig.agent = next;
		CHECK(agent_pid(&rig) != agent, "another agent");
		CHECK(stat_of(&rig, "shardkeep_memory_used_bytes") == used,
		      "used");
		CHECK(flags_of(&rig, "over", step) & SK_SNAP_RESIDENT,
		      "step %d", (int)step);
		CHECK(check_images(&rig, "over", step, r) >= 3, "images");
		for (o.rank = 0; o.rank < 2; o.rank++)
			come_back(&r[o.rank], &rig, o);
		/* And it has a keeper of its own. */
		(void)kill_agent(&rig);
		CHECK(check_images(&rig, "over", step, r) >= 3, "images");
		for (o.rank = 0; o.rank < 2; o.rank++)
			come_back(&r[o.rank], &rig, o);
	}
	close_ranks(r);
	CHECK(rig_stop(&rig) == 0, "status");
	rig_remove(&rig);
}

static struct sk_msg ask_over(int sock, uint32_t version, uint32_t bytes)
{
	struct sk_msg msg = { .type = SK_MSG_TAKEOVER, .body.takeover = {
		.table_version = version, .record_bytes = bytes } };

	(void)rig_call(sock, &msg, NULL, 0, NULL, NULL);
	return msg;
}

/* Who cannot read it, or does not say that it has all, gets nothing. */
static void test_not_taken(const char *program)
{
	struct rank_options o = { .job = "not" };
	struct sk_msg msg;
	struct rank r[2];
	struct rig rig;
	pid_t agent;
	int sock;

	rig_init(&rig, program);
	CHECK(start_over(&rig) < 0, "there is nobody");
	rig_start(&rig, "--keeper", "--idle-exit", "60", NULL);
	agent = agent_pid(&rig);
	open_ranks(r, &rig, o);
	rank_snapshot(&r[0], 1);
	rank_snapshot(&r[1], 1);
	sock = rig_connect(&rig);
	msg = ask_over(sock, TABLE_VERSION + 1, sizeof(struct table_record));
	CHECK_STATUS(msg.status, -EPROTO, &msg);
	CHECK(strstr(rig_why(&msg), "stop this one"), "%s", rig_why(&msg));
	msg = ask_over(sock, TABLE_VERSION, 8);
	CHECK_STATUS(msg.status, -EPROTO, &msg);
	CHECK(strstr(rig_why(&msg), "version"), "%s", rig_why(&msg));
	msg = ask_over(sock, TABLE_VERSION, sizeof(struct table_record));
	CHECK(msg.status == 0 && msg.body.kept.left, "the first of several");
	close(sock);
	CHECK(agent_pid(&rig) == agent, "it goes on");
	rank_snapshot(&r[0], 2);
	rank_snapshot(&r[1], 2);
	CHECK_STATUS(rank_wait(&r[0], 2, 2, WAIT_MS), 0, &r[0].msg);
	close_ranks(r);
	CHECK(rig_stop(&rig) == 0, "status");
	rig_start(&rig, NULL);
	sock = rig_connect(&rig);
	msg = ask_over(sock, TABLE_VERSION, sizeof(struct table_record));
	CHECK_STATUS(msg.status, -EOPNOTSUPP, &msg);
	close(sock);
	CHECK(rig_stop(&rig) == 0, "status");
	rig_remove(&rig);
}

int main(int argc, char **argv)
{
	const char *program = argc > 1 ? argv[1] : NULL;
	struct rig rig;

	rig_init(&rig, program);
	rig_start(&rig, "--keeper", "--memory", "64M", "--idle-exit", "60",
		  NULL);
	test_sealed_stands(&rig);
	test_next_run(&rig);
	test_awaited(&rig);
	test_pins(&rig);
	test_keeps_no_more(&rig);
	CHECK(rig_stop(&rig) == 0, "status");
	rig_remove(&rig);
	test_pins_on_disk(program);
	test_flush(program);
	test_keeper_dies(program);
	test_ends(program);
	test_takeover(program);
	test_not_taken(program);
	return 0;
}
