/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One run, one identity: agents that share a store, jobs that share a name,
 * files that change behind an agent's back.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/rig.h"
#include "base/util.h"
#include "shardkeep.h"

#define MEMORY "64M"

static char *file_of(const struct rig *rig, const char *job, int64_t step,
		     int rank, int world, char buf[256])
{
	snprintf(buf, 256, "%s/%s/step-%012lld/rank-%05d-of-%05d.safetensors",
		 rig->store, job, (long long)step, rank, world);
	return buf;
}

/* An agent on the store of @first. */
static void start_beside(struct rig *rig, const struct rig *first)
{
	rig_init(rig, first->program);
	snprintf(rig->store, sizeof(rig->store), "%s", first->store);
	rig_start(rig, "--store", rig->store, "--memory", MEMORY, NULL);
}

static void start_first(struct rig *rig, const char *program)
{
	rig_init(rig, program);
	rig_start(rig, "--store", rig->store, "--memory", MEMORY, NULL);
}

static void end(struct rig *rig)
{
	(void)rig_stop(rig);
	rig_remove(rig);
}

static void open_ranks(struct rank *r, const struct rig *rig,
		       struct rank_options o, int world)
{
	o.world = world;
	for (o.rank = 0; o.rank < world; o.rank++)
		CHECK_STATUS(rank_open(&r[o.rank], rig, &o), 0,
			     &r[o.rank].msg);
}

static void close_ranks(struct rank *r, int world)
{
	for (int i = 0; i < world; i++)
		rank_close(&r[i]);
}

/* WAIT for this very run's snapshot. */
static int wait_durable(struct rank *r, int64_t step)
{
	r->msg = (struct sk_msg){ .type = SK_MSG_WAIT, .body.wait = {
		.id = { .run = r->run, .run_id = r->run_id, .step = step,
			.rank = r->rank },
		.until = 3, .timeout_ms = WAIT_MS } };
	strcpy(r->msg.body.wait.id.job, r->job);
	return rig_call(r->sock, &r->msg, NULL, 0, NULL, NULL);
}

/* The images of a snapshot that count on disk; of which run they are. */
static size_t on_disk(int sock, const char *job, int64_t step,
		      struct sk_wire_id *ret_id)
{
	struct sk_wire_image *images;
	size_t n, there = 0;

	images = list_images(sock, job, step, &n);
	for (size_t i = 0; i < n; i++) {
		if (images[i].place != SK_PLACE_DISK ||
		    images[i].state == SK_IMAGE_BAD)
			continue;
		*ret_id = images[i].id;
		there++;
	}
	free(images);
	return there;
}

/*
 * Two agents, one store, two lives of one job that both see an empty store:
 * both are run 1, and never is a file of one taken for the other's.
 */
static void test_two_agents(const char *program)
{
	struct rank_options o = { .job = "twice", .flush_every = UINT32_MAX };
	struct rank ra[2], rb[2];
	struct sk_wire_snapshot *all;
	struct rig a, b, c;
	struct sk_msg msg;
	int durable = 0, sock;
	size_t n;

	start_first(&a, program);
	start_beside(&b, &a);
	open_ranks(ra, &a, o, 2);
	open_ranks(rb, &b, o, 2);
	CHECK(ra[0].run == 1 && rb[0].run == 1, "runs");
	CHECK(ra[0].run_id && ra[0].run_id == ra[1].run_id &&
	      rb[0].run_id == rb[1].run_id && ra[0].run_id != rb[0].run_id,
	      "ids");
	for (int64_t step = 1; step < 6; step++) {
		struct rank *pair[2] = { ra, rb };

		for (int i = 0; i < 2; i++) {
			rank_snapshot(&ra[i], step);
			rank_snapshot(&rb[i], step);
		}
		/* Both at once; each life has the step, or has lost it. */
		CHECK_STATUS(manage(ra[0].sock, SK_MSG_FLUSH, "twice", step, 0,
				    &msg), 0, &msg);
		CHECK_STATUS(manage(rb[0].sock, SK_MSG_FLUSH, "twice", step, 0,
				    &msg), 0, &msg);
		for (int i = 0; i < 2; i++) {
			int r = wait_durable(pair[i], step);

			CHECK(r == 0 || r == -EIO, "step %d: %d %s",
			      (int)step, r, rig_why(&pair[i]->msg));
			CHECK(r == 0 || strstr(rig_why(&pair[i]->msg),
					       "another run 1"), "%s",
			      rig_why(&pair[i]->msg));
			durable += r == 0;
		}
	}
	CHECK(durable == 5, "%d of 5 steps are durable", durable);
	close_ranks(ra, 2);
	close_ranks(rb, 2);
	(void)rig_stop(&a);
	(void)rig_stop(&b);
	/* Who comes later sees each step once, whole, of one life. */
	rig_init(&c, program);
	rig_start(&c, "--store", a.store, "--memory", MEMORY, NULL);
	sock = rig_connect(&c);
	all = list_snapshots(sock, "twice", &n);
	CHECK(n == 5, "%zu snapshots", n);
	for (size_t i = 0; i < n; i++)
		CHECK(all[i].flags & SK_SNAP_COMPLETE && all[i].images == 2 &&
		      (all[i].id.run_id == ra[0].run_id ||
		       all[i].id.run_id == rb[0].run_id), "step %d",
		      (int)all[i].id.step);
	free(all);
	close(sock);
	end(&c);
	rig_remove(&a);
	rig_remove(&b);
}

/* One rank here, one there: neither completes what the other has. */
static void test_split_job(const char *program)
{
	struct rank_options o = { .job = "split", .world = 2 };
	struct sk_wire_id id;
	struct rank r0, r1;
	struct rig a, b, c;
	int sock;

	start_first(&a, program);
	start_beside(&b, &a);
	CHECK_STATUS(rank_open(&r0, &a, &o), 0, &r0.msg);
	o.rank = 1;
	CHECK_STATUS(rank_open(&r1, &b, &o), 0, &r1.msg);
	rank_snapshot(&r0, 7);
	rank_snapshot(&r1, 7);
	CHECK(!(snapshot_flags(r0.sock, "split", 7) & SK_SNAP_COMPLETE) &&
	      !(snapshot_flags(r1.sock, "split", 7) & SK_SNAP_COMPLETE),
	      "a snapshot of two lives");
	rank_close(&r0);
	rank_close(&r1);
	(void)rig_stop(&a);
	(void)rig_stop(&b);
	rig_init(&c, program);
	rig_start(&c, "--store", a.store, "--memory", MEMORY, NULL);
	sock = rig_connect(&c);
	CHECK(!(snapshot_flags(sock, "split", 7) & SK_SNAP_COMPLETE),
	      "a snapshot of two lives");
	CHECK(on_disk(sock, "split", 7, &id) == 1, "images");
	close(sock);
	end(&c);
	rig_remove(&a);
	rig_remove(&b);
}

/* ---- ranks of two agents, through the library ---- */

struct meeting {
	pthread_barrier_t barrier;
	char all[2][8192];
};

struct member {
	pthread_t thread;
	struct meeting *meeting;
	const struct rig *rig;
	int rank;
	struct sk_status status;
};

static int meet(void *ctx, const void *in, size_t bytes, void *out,
		uint32_t timeout_ms)
{
	struct member *m = ctx;

	(void)timeout_ms;
	CHECK(bytes <= sizeof(m->meeting->all[0]), "%zu bytes", bytes);
	memcpy(m->meeting->all[m->rank], in, bytes);
	pthread_barrier_wait(&m->meeting->barrier);
	for (size_t i = 0; i < 2; i++)
		memcpy((char *)out + i * bytes, m->meeting->all[i], bytes);
	pthread_barrier_wait(&m->meeting->barrier);
	return 0;
}

/* A first run: nothing to restore, then a snapshot. */
static void *be_member(void *arg)
{
	struct member *m = arg;
	const struct sk_options opts = { .socket = m->rig->socket,
					 .flags = SK_OPEN_NO_START };
	const struct sk_comm comm = { .ctx = m, .allgather = meet };
	struct sk_mesh *mesh;
	struct sk_state *state;
	float data[16] = { 0 };
	struct sk *sk;

	CHECK(sk_open(&opts, &sk) == 0, "%s", sk_error());
	CHECK(sk_mesh_create(1, (int64_t[]){ 2 }, NULL, NULL, &mesh) == 0,
	      "%s", sk_error());
	CHECK(sk_state_create(sk, &(struct sk_job){ .name = "nodes",
		.rank = m->rank, .world = 2 }, &state) == 0, "%s", sk_error());
	CHECK(sk_state_tensor(state, &(struct sk_tensor){ .name = "w",
		.dtype = SK_F32, .ndim = 1, .shape = { 32 }, .mesh = mesh,
		.placements = { SK_SHARD(0) }, .data = data }) == 0, "%s",
	      sk_error());
	CHECK(sk_restore(state, SK_LATEST, &comm, NULL, NULL) == -ENOENT,
	      "%s", sk_error());
	CHECK(sk_snapshot(state, 3, NULL) == 0, "%s", sk_error());
	CHECK(sk_wait(state, 3, SK_SEALED, WAIT_MS) == 0, "%s", sk_error());
	CHECK(sk_status(state, &m->status) == 0, "%s", sk_error());
	sk_state_free(state);
	sk_mesh_release(mesh);
	sk_close(sk);
	return NULL;
}

/* Ranks that agree on a restore are one life, whoever serves them: what two
 * agents write of it is one snapshot. */
static void test_ranks_agree(const char *program)
{
	struct meeting meeting;
	struct member members[2];
	struct rig rigs[2], c;
	int sock;

	start_first(&rigs[0], program);
	start_beside(&rigs[1], &rigs[0]);
	pthread_barrier_init(&meeting.barrier, NULL, 2);
	for (int i = 0; i < 2; i++) {
		members[i] = (struct member){ .meeting = &meeting,
					      .rig = &rigs[i], .rank = i };
		CHECK(pthread_create(&members[i].thread, NULL, be_member,
				     &members[i]) == 0, "thread");
	}
	for (int i = 0; i < 2; i++)
		CHECK(pthread_join(members[i].thread, NULL) == 0, "join");
	pthread_barrier_destroy(&meeting.barrier);
	(void)rig_stop(&rigs[0]);
	(void)rig_stop(&rigs[1]);
	rig_init(&c, program);
	rig_start(&c, "--store", rigs[0].store, "--memory", MEMORY, NULL);
	sock = rig_connect(&c);
	CHECK(snapshot_flags(sock, "nodes", 3) & SK_SNAP_COMPLETE,
	      "two lives, not one");
	close(sock);
	end(&c);
	rig_remove(&rigs[0]);
	rig_remove(&rigs[1]);
}

/* A job goes to another agent and comes back: what it left is superseded. */
static void test_moves_and_returns(const char *program)
{
	struct rank_options o = { .job = "moves", .world = 1 };
	struct sk_wire_id id;
	struct rig a, b;
	struct rank r;

	start_first(&a, program);
	start_beside(&b, &a);
	CHECK_STATUS(rank_open(&r, &a, &o), 0, &r.msg);
	rank_snapshot(&r, 5);
	CHECK_STATUS(wait_durable(&r, 5), 0, &r.msg);
	rank_close(&r);
	CHECK_STATUS(rank_open(&r, &b, &o), 0, &r.msg);
	CHECK(r.run == 2, "run %" PRIu64, r.run);
	rank_snapshot(&r, 5);
	CHECK_STATUS(wait_durable(&r, 5), 0, &r.msg);
	rank_close(&r);
	CHECK_STATUS(rank_open(&r, &a, &o), 0, &r.msg);
	CHECK(r.run == 3, "run %" PRIu64, r.run);
	/* What was pushed aside goes in the background. */
	AWAIT(on_disk(r.sock, "moves", 5, &id) == 1, "run 1 stays");
	CHECK(id.run == 2, "run %" PRIu64 " is on disk", id.run);
	rank_close(&r);
	end(&b);
	end(&a);
}

/* ---- files that change ---- */

static char *read_file(const char *path, size_t *n)
{
	int fd = open(path, O_RDONLY);
	struct stat st;
	char *bytes;

	CHECK(fd >= 0 && fstat(fd, &st) == 0, "%s", path);
	bytes = malloc((size_t)st.st_size);
	CHECK(read(fd, bytes, (size_t)st.st_size) == st.st_size, "read");
	close(fd);
	*n = (size_t)st.st_size;
	return bytes;
}

static void write_file(const char *path, const char *bytes, size_t n)
{
	char temporary[PATH_MAX];
	int fd;

	/* An agent that looks beside it sees the one or the other. */
	(void)snprintf(temporary, sizeof(temporary), "%s.tmp", path);
	fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC, 0600);
	CHECK(fd >= 0 && write(fd, bytes, n) == (ssize_t)n, "%s", path);
	close(fd);
	CHECK(!rename(temporary, path), "%s", path);
}

/* A rank whose step 5 is on disk and not in memory. */
static void store_one(struct rank *r, const struct rig *rig, const char *job)
{
	const struct rank_options o = { .job = job, .world = 1 };
	struct sk_msg msg;

	CHECK_STATUS(rank_open(r, rig, &o), 0, &r->msg);
	rank_snapshot(r, 5);
	CHECK_STATUS(wait_durable(r, 5), 0, &r->msg);
	CHECK_STATUS(manage(r->sock, SK_MSG_EVICT, job, 5, SK_EVICT_MEMORY |
			    SK_EVICT_FORCE, &msg), 0, &msg);
}

/* Whatever bit of its header flips, a running agent sees it, takes it for no
 * other snapshot, and takes it back when it is mended. */
static void test_flips(const char *program)
{
	struct sk_wire_snapshot *all;
	struct sk_wire_id id;
	struct rank r;
	struct rig a;
	char path[256], *bytes;
	size_t n, count;

	start_first(&a, program);
	store_one(&r, &a, "flips");
	bytes = read_file(file_of(&a, "flips", 5, 0, 1, path), &n);
	srandom(4711);
	for (int i = 0; i < 300; i++) {
		size_t bit = (size_t)random() %
			     (8 * r.layouts[0]->header_bytes);

		bytes[bit / 8] ^= (char)(1 << bit % 8);
		write_file(path, bytes, n);
		all = list_snapshots(r.sock, "flips", &count);
		CHECK(count == 0, "bit %zu: run %" PRIu64 " step %" PRId64, bit,
		      all[0].id.run, all[0].id.step);
		free(all);
		bytes[bit / 8] ^= (char)(1 << bit % 8);
	}
	write_file(path, bytes, n);
	CHECK(on_disk(r.sock, "flips", 5, &id) == 1 && id.run_id == r.run_id,
	      "it was mended");
	free(bytes);
	rank_close(&r);
	end(&a);
}

/* What a client writes into the header of a sealed slot reaches nobody: the
 * agent gives its own copy, and flushes that. */
static void test_memory_flips(const char *program)
{
	struct rank_options o = { .job = "scribble", .world = 1,
				  .flush_every = UINT32_MAX };
	uint64_t sums[64];
	struct sk_stamp stamp = { .sums = sums };
	struct sk_wire_image *images;
	struct sk_wire_id id;
	int fds[SK_MSG_FDS], n_fds = 0;
	struct sk_msg msg;
	struct rank r;
	struct rig a;
	char *header;
	size_t n, bytes;

	start_first(&a, program);
	CHECK_STATUS(rank_open(&r, &a, &o), 0, &r.msg);
	CHECK(r.layouts[0]->n_sums <= 64, "sums");
	rank_snapshot(&r, 9);
	bytes = r.layouts[0]->header_bytes;
	for (uint32_t slot = 0; slot < r.slots; slot++)
		for (size_t at = 0; at < bytes; at++)
			r.maps[slot][0][at] ^= (char)(1 << at % 8);
	images = list_images(r.sock, "scribble", 9, &n);
	CHECK(n == 1 && images[0].id.run_id == r.run_id, "%zu images", n);
	msg = (struct sk_msg){ .type = SK_MSG_OPEN, .body.open = {
		.image = images[0].image, .place = SK_PLACE_MEMORY } };
	CHECK_STATUS(rig_call(r.sock, &msg, NULL, 0, fds, &n_fds), 0, &msg);
	CHECK(n_fds == 2, "%d descriptors", n_fds);
	header = malloc(bytes);
	CHECK(pread(fds[1], header, bytes, 0) == (ssize_t)bytes, "header");
	CHECK(sk_layout_read_stamp(r.layouts[0], header, &stamp, NULL) == 0 &&
	      stamp.run == r.run && stamp.run_id == r.run_id &&
	      stamp.step == 9, "the stamp");
	close(fds[0]);
	close(fds[1]);
	CHECK_STATUS(manage(r.sock, SK_MSG_FLUSH, "scribble", 9, 0, &msg), 0,
		     &msg);
	CHECK_STATUS(wait_durable(&r, 9), 0, &r.msg);
	rank_close(&r);
	(void)rig_stop(&a);
	rig_start(&a, "--store", a.store, "--memory", MEMORY, NULL);
	r.sock = rig_connect(&a);
	CHECK(on_disk(r.sock, "scribble", 9, &id) == 1 &&
	      id.run_id == stamp.run_id, "on disk");
	close(r.sock);
	free(header);
	free(images);
	end(&a);
}

/* What is written into the data of a sealed slot is found when it is flushed:
 * it is not durable, and from then on nobody has it. */
static void test_data_flips(const char *program)
{
	struct rank_options o = { .job = "data", .world = 1,
				  .flush_every = UINT32_MAX };
	struct sk_msg msg;
	struct rank r;
	struct rig a;

	start_first(&a, program);
	CHECK_STATUS(rank_open(&r, &a, &o), 0, &r.msg);
	rank_snapshot(&r, 9);
	CHECK(snapshot_flags(r.sock, "data", 9) & SK_SNAP_COMPLETE, "step 9");
	for (uint32_t slot = 0; slot < r.slots; slot++)
		r.maps[slot][0][r.layouts[0]->image_bytes - 10] ^= 4;
	CHECK_STATUS(manage(r.sock, SK_MSG_FLUSH, "data", 9, 0, &msg), 0,
		     &msg);
	CHECK(wait_durable(&r, 9) < 0, "it is durable");
	CHECK(!(snapshot_flags(r.sock, "data", 9) & SK_SNAP_COMPLETE),
	      "flags %x", snapshot_flags(r.sock, "data", 9));
	rank_snapshot(&r, 10);
	CHECK_STATUS(manage(r.sock, SK_MSG_FLUSH, "data", 10, 0, &msg), 0,
		     &msg);
	CHECK_STATUS(wait_durable(&r, 10), 0, &r.msg);
	rank_close(&r);
	end(&a);
}

/* A file that was set aside counts again once it is another one. */
static void test_put_back(const char *program)
{
	struct sk_wire_image *images;
	struct sk_wire_id id;
	struct sk_msg msg;
	char path[256], *bytes;
	struct rank r;
	struct rig a;
	size_t n;

	start_first(&a, program);
	store_one(&r, &a, "back");
	bytes = read_file(file_of(&a, "back", 5, 0, 1, path), &n);
	images = list_images(r.sock, "back", 5, &n);
	CHECK(n == 1, "%zu images", n);
	msg = (struct sk_msg){ .type = SK_MSG_REPORT_BAD, .body.bad = {
		.image = images[0].image, .place = SK_PLACE_DISK } };
	CHECK_STATUS(rig_call(r.sock, &msg, NULL, 0, NULL, NULL), 0, &msg);
	CHECK(on_disk(r.sock, "back", 5, &id) == 0, "set aside");
	n = r.layouts[0]->image_bytes;
	write_file(path, bytes, n);
	CHECK(on_disk(r.sock, "back", 5, &id) == 1, "put back");
	free(images);
	free(bytes);
	rank_close(&r);
	end(&a);
}

/* Files of one run in the directory of another, and under other names. */
static void test_strange_places(const char *program)
{
	char path[256], other[256], *bytes;
	struct sk_wire_id id;
	struct rank r, s;
	double ignored;
	struct rig a;
	size_t n;

	start_first(&a, program);
	store_one(&r, &a, "places");
	rank_close(&r);
	CHECK_STATUS(rank_open(&s, &a, &(struct rank_options){
		.job = "places", .world = 1 }), 0, &s.msg);
	rank_snapshot(&s, 6);
	CHECK_STATUS(wait_durable(&s, 6), 0, &s.msg);
	bytes = read_file(file_of(&a, "places", 5, 0, 1, path), &n);
	/* Another step's, then another run's of the same step. */
	write_file(file_of(&a, "places", 6, 0, 1, other), bytes, n);
	CHECK(on_disk(s.sock, "places", 6, &id) == 0, "step 5 as step 6");
	free(bytes);
	/* And one of the same run, which all but its name speaks for. */
	for (int64_t step = 7; step < 9; step++) {
		rank_snapshot(&s, step);
		CHECK_STATUS(wait_durable(&s, step), 0, &s.msg);
	}
	ignored = stat_value(s.sock, "shardkeep_ignored_files_total");
	bytes = read_file(file_of(&a, "places", 7, 0, 1, path), &n);
	write_file(file_of(&a, "places", 8, 0, 1, other), bytes, n);
	CHECK(on_disk(s.sock, "places", 8, &id) == 0, "step 7 as step 8");
	CHECK(stat_value(s.sock, "shardkeep_ignored_files_total") ==
	      ignored + 1, "step 7 was taken from step 8");
	CHECK(on_disk(s.sock, "places", 7, &id) == 1, "step 7");
	free(bytes);
	rank_close(&s);
	end(&a);
}

/* ---- jobs of one name, numbers ---- */

static void test_two_jobs(const char *program)
{
	struct rank_options o = { .job = "name" };
	struct rank r[2], other;
	struct rig a;

	start_first(&a, program);
	open_ranks(r, &a, o, 2);
	for (o.world = 1; o.world < 5; o.world++) {
		CHECK_STATUS(rank_open(&other, &a, &o), -EEXIST, &other.msg);
		CHECK(strstr(rig_why(&other.msg), "two jobs of one name"), "%s",
		      rig_why(&other.msg));
		rank_close(&other);
	}
	/* One has gone: what comes now is its restart. */
	rank_close(&r[1]);
	o.world = 3;
	CHECK_STATUS(rank_open(&other, &a, &o), 0, &other.msg);
	CHECK(other.run == 2, "run %" PRIu64, other.run);
	rank_close(&other);
	rank_close(&r[0]);
	end(&a);
}

static void test_numbers(const char *program)
{
	static const uint64_t bad[] = { SK_RUN_GIVEN_MAX + 1, SK_RUN_MAX,
		SK_RUN_MAX + 1, INT64_MAX - 1, INT64_MAX,
		(uint64_t)INT64_MAX + 1, UINT64_MAX };
	struct rank_options o = { .job = "numbers", .world = 1 };
	struct rank r;
	struct rig a;

	start_first(&a, program);
	for (size_t i = 0; i < SK_ARRAY_SIZE(bad); i++) {
		o.run = bad[i];
		CHECK_STATUS(rank_open(&r, &a, &o), -EINVAL, &r.msg);
		rank_close(&r);
	}
	/* Nor by who says that it was there before. */
	o.run = SK_RUN_MAX;
	o.run_id = 5;
	CHECK_STATUS(rank_open(&r, &a, &o), -EINVAL, &r.msg);
	rank_close(&r);
	o.run = SK_RUN_GIVEN_MAX;
	o.run_id = 0;
	CHECK_STATUS(rank_open(&r, &a, &o), 0, &r.msg);
	rank_snapshot(&r, 5);
	CHECK_STATUS(wait_durable(&r, 5), 0, &r.msg);
	rank_close(&r);
	/* Used once; known to the next agent, too; and there is a next. */
	CHECK_STATUS(rank_open(&r, &a, &o), -ESTALE, &r.msg);
	rank_close(&r);
	(void)rig_stop(&a);
	rig_start(&a, "--store", a.store, "--memory", MEMORY, NULL);
	CHECK_STATUS(rank_open(&r, &a, &o), -ESTALE, &r.msg);
	rank_close(&r);
	o.run = 0;
	CHECK_STATUS(rank_open(&r, &a, &o), 0, &r.msg);
	CHECK(r.run == SK_RUN_GIVEN_MAX + 1, "run %" PRIu64, r.run);
	rank_close(&r);
	end(&a);
}

/* A run is on disk by its directory, whatever became of the files in it: its
 * number is not given again, for its step would be refused. */
static void test_damaged_run(const char *program)
{
	char path[256];
	struct rank r;
	struct rig a;

	start_first(&a, program);
	store_one(&r, &a, "hurt");
	rank_close(&r);
	(void)rig_stop(&a);
	write_file(file_of(&a, "hurt", 5, 0, 1, path), "hurt", 4);
	rig_start(&a, "--store", a.store, "--memory", MEMORY, NULL);
	CHECK_STATUS(rank_open(&r, &a, &(struct rank_options){
		.job = "hurt", .world = 1 }), 0, &r.msg);
	CHECK(r.run == 2, "run %" PRIu64, r.run);
	rank_snapshot(&r, 5);
	CHECK_STATUS(wait_durable(&r, 5), 0, &r.msg);
	rank_close(&r);
	end(&a);
}

/* What is known to be damaged does not tell its directory's run: what comes
 * beside it does. */
static void test_damaged_tells_nothing(const char *program)
{
	char first[256], second[256], run[256], *bytes;
	struct rank_options o = { .job = "half" };
	struct sk_wire_snapshot *all;
	struct rank r[2];
	struct rig a;
	size_t n, count;

	start_first(&a, program);
	open_ranks(r, &a, o, 2);
	for (int i = 0; i < 2; i++)
		rank_snapshot(&r[i], 5);
	CHECK_STATUS(wait_durable(&r[0], 5), 0, &r[0].msg);
	close_ranks(r, 2);
	(void)rig_stop(&a);
	bytes = read_file(file_of(&a, "half", 5, 1, 2, second), &n);
	snprintf(run, sizeof(run), "%s/half/step-000000000005/.run", a.store);
	CHECK(!unlink(second) && !unlink(run), "unlink");
	write_file(file_of(&a, "half", 5, 0, 2, first), "hurt", 4);
	rig_start(&a, "--store", a.store, "--memory", MEMORY, NULL);
	r[0].sock = rig_connect(&a);
	all = list_snapshots(r[0].sock, "half", &count);
	CHECK(!count, "it is damaged");
	free(all);
	close(r[0].sock);
	write_file(second, bytes, n);
	open_ranks(r, &a, o, 2);
	CHECK(r[0].run == 2, "run %" PRIu64, r[0].run);
	close_ranks(r, 2);
	free(bytes);
	end(&a);
}

/* The agent is lost without a store: its ranks come back by name and id, and
 * whoever came in between is a stranger to them. */
static void test_comes_back(const char *program)
{
	struct rank_options o = { .job = "lost" };
	struct rank r[2], again[2], other;
	struct rig a;

	rig_init(&a, program);
	rig_start(&a, "--memory", MEMORY, NULL);
	open_ranks(r, &a, o, 2);
	(void)rig_stop(&a);
	rig_start(&a, "--memory", MEMORY, NULL);
	o.run = r[0].run;
	o.run_id = r[0].run_id;
	open_ranks(again, &a, o, 2);
	CHECK(again[0].run_id == r[0].run_id && again[1].run == r[0].run,
	      "another run");
	close_ranks(again, 2);
	(void)rig_stop(&a);

	rig_start(&a, "--memory", MEMORY, NULL);
	CHECK_STATUS(rank_open(&other, &a, &(struct rank_options){
		.job = "lost", .world = 1 }), 0, &other.msg);
	CHECK(other.run == r[0].run && other.run_id != r[0].run_id, "run");
	o.world = 2;
	CHECK_STATUS(rank_open(&again[0], &a, &o), -EEXIST, &again[0].msg);
	rank_close(&again[0]);
	rank_close(&other);
	close_ranks(r, 2);
	end(&a);
}

int main(int argc, char **argv)
{
	const char *program = argc > 1 ? argv[1] : NULL;

	test_two_agents(program);
	test_split_job(program);
	test_ranks_agree(program);
	test_moves_and_returns(program);
	test_flips(program);
	test_memory_flips(program);
	test_data_flips(program);
	test_put_back(program);
	test_strange_places(program);
	test_two_jobs(program);
	test_numbers(program);
	test_damaged_run(program);
	test_damaged_tells_nothing(program);
	test_comes_back(program);
	return 0;
}
