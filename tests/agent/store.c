/* SPDX-License-Identifier: Apache-2.0 */
/* Flushing, stopping, starting again, evicting from disk. */
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/rig.h"

static char *file_of(const struct rig *rig, const char *job, int64_t step,
		     int rank, int world, char *buf, size_t size)
{
	snprintf(buf, size, "%s/%s/step-%012lld/rank-%05d-of-%05d.safetensors",
		 rig->store, job, (long long)step, rank, world);
	return buf;
}

static bool exists(const struct rig *rig, const char *job, int64_t step,
		   int rank, int world)
{
	char path[256];

	return access(file_of(rig, job, step, rank, world, path,
			      sizeof(path)), F_OK) == 0;
}

static void open_job(struct rank *r, const struct rig *rig,
		     struct rank_options o, int world)
{
	for (int i = 0; i < world; i++) {
		o.rank = i;
		o.world = world;
		CHECK_STATUS(rank_open(&r[i], rig, &o), 0, &r[i].msg);
	}
}

static void snapshot_all(struct rank *r, int world, int64_t step)
{
	for (int i = 0; i < world; i++)
		rank_snapshot(&r[i], step);
}

static void close_all(struct rank *r, int world)
{
	for (int i = 0; i < world; i++)
		rank_close(&r[i]);
}

static void test_flush(struct rig *rig)
{
	struct rank r[3];
	struct sk_msg msg;
	uint32_t flags;

	open_job(r, rig, (struct rank_options){ .job = "flush",
		.flush_every = 10, .replicated = true }, 3);
	snapshot_all(r, 3, 10);
	CHECK_STATUS(rank_wait(&r[0], 10, 3, WAIT_MS), 0, &r[0].msg);
	for (int i = 0; i < 3; i++)
		CHECK(exists(rig, "flush", 10, i, 3), "rank %d", i);
	flags = snapshot_flags(r[0].sock, "flush", 10);
	CHECK(flags & SK_SNAP_DURABLE && flags & SK_SNAP_DISK &&
	      !(flags & (SK_SNAP_FAILED | SK_SNAP_WANTED)), "flags %x", flags);
	/* Not a multiple: it stays in memory until somebody asks. */
	snapshot_all(r, 3, 11);
	CHECK_STATUS(rank_wait(&r[0], 11, 3, 50), -ETIMEDOUT, &r[0].msg);
	CHECK(!exists(rig, "flush", 11, 0, 3), "step 11 was flushed");
	CHECK_STATUS(manage(r[0].sock, SK_MSG_FLUSH, "flush", 11, 0, &msg), 0,
		     &msg);
	CHECK_STATUS(rank_wait(&r[0], 11, 3, WAIT_MS), 0, &r[0].msg);
	CHECK(exists(rig, "flush", 11, 2, 3), "step 11");
	close_all(r, 3);
}

/* The last rank leaves: what memory alone has goes to disk. */
static void test_job_end(struct rig *rig)
{
	struct rank r[2], next;

	open_job(r, rig, (struct rank_options){ .job = "end",
		.flush_every = UINT32_MAX }, 2);
	snapshot_all(r, 2, 5);
	close_all(r, 2);
	CHECK_STATUS(rank_open(&next, rig, &(struct rank_options){
		.job = "end", .world = 2 }), 0, &next.msg);
	CHECK(next.run == 2, "run %d", (int)next.run);
	CHECK_STATUS(rank_wait(&next, 5, 3, WAIT_MS), 0, &next.msg);
	CHECK(exists(rig, "end", 5, 1, 2), "file");
	rank_close(&next);
}

/* The agent keeps no checksums of what only the disk has: they come from the
 * file. */
static void check_header(int sock, uint64_t image)
{
	struct sk_msg msg = { .type = SK_MSG_OPEN, .body.open = {
		.image = image, .place = SK_PLACE_DISK } };
	int fds[SK_MSG_FDS], n = 0;
	char *file, *told;
	size_t bytes;

	CHECK_STATUS(rig_call(sock, &msg, NULL, 0, fds, &n), 0, &msg);
	CHECK(n == 2, "%d descriptors", n);
	bytes = msg.body.open_reply.header_bytes;
	file = malloc(bytes);
	told = malloc(bytes);
	CHECK(pread(fds[0], file, bytes, 0) == (ssize_t)bytes, "short file");
	CHECK(pread(fds[1], told, bytes, 0) == (ssize_t)bytes, "short header");
	CHECK(!memcmp(file, told, bytes), "another header");
	free(file);
	free(told);
	close(fds[0]);
	close(fds[1]);
}

/* Jobs descending, each newest first. */
static void see_all(int sock)
{
	struct sk_wire_snapshot *all;
	size_t n;

	all = list_snapshots(sock, "", &n);
	CHECK(n == 4, "%zu snapshots", n);
	CHECK(!strcmp(all[0].id.job, "flush") && all[0].id.step == 11, "%s",
	      all[0].id.job);
	CHECK(!strcmp(all[2].id.job, "end") && !strcmp(all[3].id.job, "again"),
	      "order");
	CHECK(all[3].id.run == 4 && all[3].flags & SK_SNAP_COMPLETE &&
	      all[3].flags & SK_SNAP_DURABLE && all[3].images == 2 &&
	      !(all[3].flags & SK_SNAP_MEMORY), "flags %x", all[3].flags);
	free(all);
}

/* In use: not even by force. The newest complete one: only by force. */
static void evict_from_disk(struct rig *rig, int sock)
{
	struct sk_wire_image *images;
	struct sk_msg msg;
	size_t n;

	images = list_images(sock, "again", 20, &n);
	CHECK(n == 2 && images[0].place == SK_PLACE_DISK &&
	      images[0].state == SK_IMAGE_STORED, "%zu images", n);
	check_header(sock, images[0].image);
	CHECK_STATUS(manage(sock, SK_MSG_EVICT, "again", 20, SK_EVICT_DISK |
			    SK_EVICT_FORCE, &msg), -EBUSY, &msg);
	msg = (struct sk_msg){ .type = SK_MSG_CLOSE, .body.open = {
		.image = images[0].image, .place = SK_PLACE_DISK } };
	CHECK_STATUS(rig_call(sock, &msg, NULL, 0, NULL, NULL), 0, &msg);
	CHECK_STATUS(manage(sock, SK_MSG_EVICT, "again", 20, SK_EVICT_DISK,
			    &msg), -EBUSY, &msg);
	CHECK(strstr(rig_why(&msg), "newest complete"), "%s", rig_why(&msg));
	CHECK_STATUS(manage(sock, SK_MSG_EVICT, "again", 20, SK_EVICT_DISK |
			    SK_EVICT_FORCE, &msg), 0, &msg);
	CHECK(!snapshot_flags(sock, "again", 20), "it is still listed");
	CHECK(!exists(rig, "again", 20, 0, 2), "it is still there");
	free(images);
}

/* A file that somebody else removes is not listed any more; and a damaged one
 * is passed over, once aloud. */
static void spoil_files(struct rig *rig, int sock)
{
	struct sk_wire_image *images;
	char path[256];
	size_t n;

	CHECK(!unlink(file_of(rig, "flush", 11, 0, 3, path, sizeof(path))),
	      "unlink");
	CHECK(!(snapshot_flags(sock, "flush", 11) & SK_SNAP_COMPLETE),
	      "complete without a file");
	CHECK(!truncate(file_of(rig, "flush", 11, 1, 3, path, sizeof(path)),
			100), "truncate");
	images = list_images(sock, "flush", 11, &n);
	CHECK(n == 1 && images[0].id.rank != 1, "%zu images", n);
	free(images);
	CHECK(stat_value(sock, "shardkeep_ignored_files_total") == 1,
	      "ignored");
	(void)snapshot_flags(sock, "flush", 11);
	CHECK(stat_value(sock, "shardkeep_ignored_files_total") == 1,
	      "ignored twice");
}

static void test_restart(struct rig *rig)
{
	struct rank r[2];
	int sock;

	open_job(r, rig, (struct rank_options){ .job = "again",
		.flush_every = UINT32_MAX, .run = 4 }, 2);
	snapshot_all(r, 2, 20);
	CHECK(!exists(rig, "again", 20, 0, 2), "not yet");
	/* Stopping makes it durable. */
	CHECK(rig_stop(rig) == 0, "exit status");
	CHECK(exists(rig, "again", 20, 0, 2) && exists(rig, "again", 20, 1, 2),
	      "files");
	close_all(r, 2);
	rig_start(rig, "--store", rig->store, "--memory", "256M", NULL);
	sock = rig_connect(rig);
	see_all(sock);
	/* Runs go on behind those on disk. */
	CHECK_STATUS(rank_open(&r[0], rig, &(struct rank_options){
		.job = "again", .world = 2 }), 0, &r[0].msg);
	CHECK(r[0].run == 5, "run %d", (int)r[0].run);
	evict_from_disk(rig, sock);
	spoil_files(rig, sock);
	close(sock);
	rank_close(&r[0]);
}

static struct sk_wire_snapshot snapshot_of(int sock, const char *job,
					   int64_t step)
{
	struct sk_wire_snapshot *all, found = { .images = 0 };
	size_t n;

	all = list_snapshots(sock, job, &n);
	for (size_t i = 0; i < n; i++)
		if (all[i].id.step == step)
			found = all[i];
	free(all);
	CHECK(found.images, "no step %d", (int)step);
	return found;
}

/* The short records of one snapshot say what the long ones do. */
static void check_parts(int sock, const struct sk_wire_image *images, size_t n)
{
	struct sk_msg msg = { .type = SK_MSG_LIST, .body.list = {
		.what = SK_LIST_PARTS, .flags = SK_LIST_KNOWN } };
	struct sk_wire_part parts[8];
	int fds[SK_MSG_FDS], n_fds = 0;

	msg.body.list.id = images[0].id;
	msg.body.list.id.rank = -1;
	CHECK_STATUS(rig_call(sock, &msg, NULL, 0, fds, &n_fds), 0, &msg);
	CHECK(n_fds == 1 && n <= 8 && msg.body.list_reply.n == n &&
	      msg.body.list_reply.record_bytes == sizeof(parts[0]), "%d parts",
	      (int)msg.body.list_reply.n);
	CHECK(pread(fds[0], parts, n * sizeof(parts[0]), 0) ==
	      (ssize_t)(n * sizeof(parts[0])), "short list");
	for (size_t i = 0; i < n; i++)
		CHECK(parts[i].image == images[i].image &&
		      parts[i].bytes == images[i].bytes &&
		      parts[i].rank == images[i].id.rank &&
		      parts[i].kind == images[i].kind &&
		      parts[i].place == images[i].place &&
		      parts[i].state == images[i].state &&
		      parts[i].description == parts[0].description &&
		      sk_digest_equal(&parts[i].digest, &images[i].digest),
		      "part %zu", i);
	close(fds[0]);
	/* Of several nobody could tell which is whose. */
	msg = (struct sk_msg){ .type = SK_MSG_LIST, .body.list = {
		.what = SK_LIST_PARTS, .id = images[0].id } };
	msg.body.list.id.run_id = 0;
	CHECK_STATUS(rig_call(sock, &msg, NULL, 0, NULL, NULL), -EINVAL, &msg);
}

/* What a list of snapshots tells without one of their images. */
static void test_known(struct rig *rig)
{
	struct sk_wire_snapshot one, two, other;
	struct sk_wire_image *images;
	struct rank r[2], alone;
	struct sk_msg msg;
	char path[256];
	size_t n;

	open_job(r, rig, (struct rank_options){ .job = "known",
		.flush_every = 1 }, 2);
	open_job(&alone, rig, (struct rank_options){ .job = "known-other",
		.flush_every = 1 }, 1);
	for (int64_t step = 1; step <= 2; step++) {
		snapshot_all(r, 2, step);
		CHECK_STATUS(rank_wait(&r[0], step, 3, WAIT_MS), 0,
			     &r[0].msg);
	}
	snapshot_all(&alone, 1, 1);
	one = snapshot_of(r[0].sock, "known", 1);
	two = snapshot_of(r[0].sock, "known", 2);
	other = snapshot_of(r[0].sock, "known-other", 1);
	CHECK(one.digest && one.digest == two.digest &&
	      one.digest != other.digest, "digests");
	CHECK(one.bad_memory == -1 && one.bad_disk == -1, "bad");
	/* It is gone, and who does not look does not know. */
	CHECK(!unlink(file_of(rig, "known", 1, 0, 2, path, sizeof(path))),
	      "unlink");
	CHECK_STATUS(manage(r[0].sock, SK_MSG_EVICT, "known", 1,
			    SK_EVICT_FORCE, &msg), 0, &msg);
	free(list_known(r[0].sock, "known", 1, &n));
	CHECK(n == 2, "%zu known", n);
	images = list_images(r[0].sock, "known", 1, &n);
	CHECK(n == 1 && images[0].id.rank == 1, "%zu images", n);
	free(list_known(r[0].sock, "known", 1, &n));
	CHECK(n == 1, "%zu known after a look", n);
	msg = (struct sk_msg){ .type = SK_MSG_REPORT_BAD, .body.bad = {
		.image = images[0].image, .place = SK_PLACE_DISK } };
	CHECK_STATUS(rig_call(r[0].sock, &msg, NULL, 0, NULL, NULL), 0, &msg);
	free(images);
	images = list_images(r[0].sock, "known", 2, &n);
	check_parts(r[0].sock, images, n);
	for (size_t i = 0; i < n; i++) {
		if (images[i].id.rank != 1 ||
		    images[i].place != SK_PLACE_MEMORY)
			continue;
		msg.type = SK_MSG_REPORT_BAD;
		msg.body.bad.image = images[i].image;
		msg.body.bad.place = SK_PLACE_MEMORY;
		CHECK_STATUS(rig_call(r[0].sock, &msg, NULL, 0, NULL, NULL), 0,
			     &msg);
	}
	free(images);
	two = snapshot_of(r[0].sock, "known", 2);
	CHECK(two.bad_memory == 1 && two.bad_disk == -1, "%d %d",
	      two.bad_memory, two.bad_disk);
	/* A look at all jobs tells what is gone as well. */
	CHECK_STATUS(rank_wait(&alone, 1, 3, WAIT_MS), 0, &alone.msg);
	CHECK_STATUS(manage(alone.sock, SK_MSG_EVICT, "known-other", 1,
			    SK_EVICT_FORCE, &msg), 0, &msg);
	CHECK(!unlink(file_of(rig, "known-other", 1, 0, 1, path,
			      sizeof(path))), "unlink");
	free(list_snapshots(alone.sock, "", &n));
	free(list_known(alone.sock, "known-other", 1, &n));
	CHECK(n == 0, "%zu known after a look at all", n);
	close_all(r, 2);
	rank_close(&alone);
}

/* A store that cannot be written: kept in memory, counted, tried again. */
static void test_failure(struct rig *rig)
{
	struct rank r;
	struct sk_wire_snapshot *all;
	char path[200];
	size_t n;
	int fd;

	/* A file where the job's directory should be. */
	snprintf(path, sizeof(path), "%s/broken", rig->store);
	fd = open(path, O_CREAT | O_WRONLY, 0600);
	CHECK(fd >= 0, "create");
	close(fd);
	CHECK_STATUS(rank_open(&r, rig, &(struct rank_options){
		.job = "broken", .world = 1, .flush_every = UINT32_MAX }), 0,
		&r.msg);
	rank_snapshot(&r, 1);
	CHECK_STATUS(manage(r.sock, SK_MSG_FLUSH, "broken", 1, 0, &r.msg), 0,
		     &r.msg);
	CHECK_STATUS(rank_wait(&r, 1, 3, WAIT_MS), -EIO, &r.msg);
	all = list_snapshots(r.sock, "broken", &n);
	CHECK(n == 1 && all[0].flags & SK_SNAP_FAILED && all[0].text[0] &&
	      !(all[0].flags & SK_SNAP_DURABLE), "flags %x", all[0].flags);
	free(all);
	CHECK(stat_value(r.sock, "shardkeep_flush_errors_total") >= 1,
	      "counted");
	CHECK(unlink(path) == 0, "unlink");
	/* The next try makes it. */
	CHECK_STATUS(rank_wait(&r, 1, 3, WAIT_MS), 0, &r.msg);
	rank_close(&r);
}

static void write_owner(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_TRUNC);
	size_t n = strlen(text);

	CHECK(fd >= 0 && write(fd, text, n) == (ssize_t)n, "%s", path);
	close(fd);
}

/* A small file on the store is damaged: no word against what memory holds. */
static void test_damaged_owner(struct rig *rig)
{
	char path[200], owner[32];
	struct rank r;

	CHECK_STATUS(rank_open(&r, rig, &(struct rank_options){
		.job = "owned", .world = 1, .flush_every = UINT32_MAX }), 0,
		&r.msg);
	for (int64_t step = 1; step < 3; step++) {
		rank_snapshot(&r, step);
		CHECK_STATUS(manage(r.sock, SK_MSG_FLUSH, "owned", step, 0,
				    &r.msg), 0, &r.msg);
		CHECK_STATUS(rank_wait(&r, step, 3, WAIT_MS),
			     step == 1 ? 0 : -EIO, &r.msg);
		snprintf(path, sizeof(path), "%s/owned/.owner", rig->store);
		write_owner(path, "x\n");
	}
	CHECK(strstr(rig_why(&r.msg), "whose job") &&
	      strstr(rig_why(&r.msg), "a user's number"), "%s",
	      rig_why(&r.msg));
	snprintf(owner, sizeof(owner), "%u\n", (unsigned)geteuid());
	write_owner(path, owner);
	CHECK_STATUS(rank_wait(&r, 2, 3, WAIT_MS), 0, &r.msg);
	CHECK(exists(rig, "owned", 2, 0, 1), "step 2");
	rank_close(&r);
}

/* Another agent's user had the job's name on the store first: nothing is put
 * among what is theirs, and it is not tried again. */
static void test_taken(struct rig *rig)
{
	char path[200];
	struct rank r;
	int fd;

	CHECK_STATUS(rank_open(&r, rig, &(struct rank_options){
		.job = "taken", .world = 1, .flush_every = UINT32_MAX }), 0,
		&r.msg);
	rank_snapshot(&r, 1);
	snprintf(path, sizeof(path), "%s/taken", rig->store);
	CHECK(mkdir(path, 0700) == 0, "mkdir");
	snprintf(path, sizeof(path), "%s/taken/.owner", rig->store);
	fd = open(path, O_WRONLY | O_CREAT, 0600);
	CHECK(fd >= 0, "create");
	close(fd);
	write_owner(path, "12345678\n");
	CHECK_STATUS(manage(r.sock, SK_MSG_FLUSH, "taken", 1, 0, &r.msg), 0,
		     &r.msg);
	CHECK_STATUS(rank_wait(&r, 1, 3, WAIT_MS), -EIO, &r.msg);
	CHECK(strstr(rig_why(&r.msg), "of another user"), "%s",
	      rig_why(&r.msg));
	CHECK(!exists(rig, "taken", 1, 0, 1), "it was written");
	CHECK(!(snapshot_flags(r.sock, "taken", 1) & SK_SNAP_WANTED),
	      "it is tried again");
	rank_close(&r);
}

static uint32_t flags_of_run(int sock, const char *job, int64_t step,
			     uint64_t run)
{
	struct sk_wire_snapshot *all;
	uint32_t flags = 0;
	size_t n;

	all = list_snapshots(sock, job, &n);
	for (size_t i = 0; i < n; i++)
		if (all[i].id.step == step && all[i].id.run == run)
			flags = all[i].flags;
	free(all);
	return flags;
}

/* A newer run has written the step: the older one's has lost its name. */
static void test_superseded(struct rig *rig)
{
	struct rank_options o = { .job = "super", .world = 1,
				  .flush_every = UINT32_MAX };
	struct rank old, r;
	struct sk_msg msg;
	uint32_t flags;

	CHECK_STATUS(rank_open(&old, rig, &o), 0, &old.msg);
	rank_snapshot(&old, 5);
	rank_snapshot(&old, 6);
	CHECK_STATUS(manage(old.sock, SK_MSG_EVICT, "super", 6, SK_EVICT_DISK,
			    &msg), -ENOENT, &msg);
	CHECK(strstr(rig_why(&msg), "on disk"), "%s", rig_why(&msg));
	rank_close(&old);
	o.flush_every = 1;
	CHECK_STATUS(rank_open(&r, rig, &o), 0, &r.msg);
	CHECK(r.run > old.run, "runs %lu, %lu", r.run, old.run);
	rank_snapshot(&r, 5);
	CHECK_STATUS(rank_wait(&r, 5, 3, WAIT_MS), 0, &r.msg);
	CHECK(flags_of_run(r.sock, "super", 5, old.run) & SK_SNAP_MEMORY,
	      "the older run's is gone");

	msg = (struct sk_msg){ .type = SK_MSG_FLUSH, .body.manage.id = {
		.job = "super", .step = 5, .run = old.run, .rank = -1 } };
	CHECK_STATUS(rig_call(r.sock, &msg, NULL, 0, NULL, NULL), 0, &msg);
	/* Told to whoever asks, and to whoever asks again. */
	for (int i = 0; i < 2; i++) {
		msg = (struct sk_msg){ .type = SK_MSG_WAIT, .body.wait = {
			.id = { .job = "super", .step = 5, .run = old.run },
			.until = 3, .timeout_ms = WAIT_MS } };
		CHECK_STATUS(rig_call(r.sock, &msg, NULL, 0, NULL, NULL),
			     -EIO, &msg);
		CHECK(strstr(rig_why(&msg), "newer than run"), "%s",
		      rig_why(&msg));
	}
	flags = flags_of_run(r.sock, "super", 5, old.run);
	CHECK(flags & SK_SNAP_FAILED &&
	      !(flags & (SK_SNAP_WANTED | SK_SNAP_DURABLE)), "flags %x",
	      flags);
	rank_close(&r);
}

/* What cannot be made durable is named, and the exit status says so. */
static void test_stop_fails(struct rig *rig)
{
	char path[200];
	struct rank r;
	int fd;

	snprintf(path, sizeof(path), "%s/doomed", rig->store);
	fd = open(path, O_CREAT | O_WRONLY, 0600);
	CHECK(fd >= 0, "create");
	close(fd);
	CHECK_STATUS(rank_open(&r, rig, &(struct rank_options){
		.job = "doomed", .world = 1, .flush_every = UINT32_MAX }), 0,
		&r.msg);
	rank_snapshot(&r, 1);
	CHECK(rig_stop(rig) == 1, "exit status");
	rank_close(&r);
	CHECK(unlink(path) == 0, "unlink");
}

/* A rank is killed: its job's newest complete snapshot goes to disk. */
static void test_kill(struct rig *rig)
{
	int done[2], status;
	struct rank r, next;
	pid_t pid;
	char c;

	CHECK(pipe(done) == 0, "pipe");
	pid = fork();
	if (!pid) {
		CHECK_STATUS(rank_open(&r, rig, &(struct rank_options){
			.job = "killed", .world = 1,
			.flush_every = UINT32_MAX }), 0, &r.msg);
		rank_snapshot(&r, 1);
		CHECK(rank_slot(&r, 2, 0) >= 0, "slot");
		CHECK(write(done[1], "x", 1) == 1, "write");
		pause();
	}
	CHECK(read(done[0], &c, 1) == 1, "read");
	kill(pid, SIGKILL);
	CHECK(waitpid(pid, &status, 0) == pid, "waitpid");
	CHECK_STATUS(rank_open(&next, rig, &(struct rank_options){
		.job = "killed", .world = 1 }), 0, &next.msg);
	CHECK_STATUS(rank_wait(&next, 1, 3, WAIT_MS), 0, &next.msg);
	/* The same step anew: the older run's directory gives way. */
	rank_snapshot(&next, 1);
	CHECK_STATUS(rank_wait(&next, 1, 3, WAIT_MS), 0, &next.msg);
	rank_close(&next);
	close(done[0]);
	close(done[1]);
}

/* ---- what dead agents leave ---- */

static unsigned n_left, n_images, n_alive;

static int count_left(const char *path, const struct stat *st, int type,
		      struct FTW *ftw)
{
	const char *name = path + ftw->base;

	(void)st;
	(void)type;
	n_left += strstr(name, ".tmp") || strstr(name, ".deleted-");
	n_images += strstr(name, ".tmp") && strstr(name, "rank-");
	n_alive += strncmp(name, ".agent-", 7) == 0;
	return 0;
}

static unsigned left_over(const struct rig *rig)
{
	int r;

	/* A directory gets its name, or goes, while it is walked. */
	do {
		n_left = n_images = n_alive = 0;
		r = nftw(rig->store, count_left, 16, FTW_PHYS);
	} while (r < 0 && errno == ENOENT);
	CHECK(r == 0, "nftw: %m");
	return n_left;
}

/* Killed while it writes: whoever starts next removes what is left, now. */
static void test_killed_agent(struct rig *rig)
{
	struct rank r;

	for (int i = 0; i < 3; i++) {
		rig_start(rig, "--store", rig->store, "--memory", "256M",
			  "--flush-rate", "64K", NULL);
		CHECK(!left_over(rig), "%u left after a start", n_left);
		CHECK(n_alive == 1, "%u live", n_alive);
		CHECK_STATUS(rank_open(&r, rig, &(struct rank_options){
			.job = "halfway", .world = 1, .rows = 1000 }), 0,
			&r.msg);
		rank_snapshot(&r, 1);
		/* Not only its directory, which has a name soon. */
		AWAIT(snapshot_flags(r.sock, "halfway", 1) &&
		      left_over(rig) && n_images, "nothing is written");
		CHECK(kill(rig->agent, SIGKILL) == 0, "kill");
		(void)rig_wait(rig);
		rank_close(&r);
		CHECK(left_over(rig), "nothing is left");
	}
	rig_start(rig, "--store", rig->store, "--memory", "256M", NULL);
	CHECK(!left_over(rig), "%u left after a start", n_left);
	CHECK(rig_stop(rig) == 0, "exit status");
	CHECK(!left_over(rig) && !n_alive, "%u left, %u live", n_left,
	      n_alive);
}

/* The store goes, and is there again: flushes go on. */
static void test_store_anew(struct rig *rig)
{
	char aside[sizeof(rig->store) + 8];
	struct rank r;

	snprintf(aside, sizeof(aside), "%s.aside", rig->store);
	rig_start(rig, "--store", rig->store, "--memory", "256M", NULL);
	CHECK_STATUS(rank_open(&r, rig, &(struct rank_options){
		.job = "anew", .world = 1 }), 0, &r.msg);
	rank_snapshot(&r, 1);
	CHECK_STATUS(rank_wait(&r, 1, 3, WAIT_MS), 0, &r.msg);
	CHECK(rename(rig->store, aside) == 0, "rename");
	CHECK(mkdir(rig->store, 0700) == 0, "mkdir");
	rank_snapshot(&r, 2);
	CHECK_STATUS(rank_wait(&r, 2, 3, WAIT_MS), 0, &r.msg);
	CHECK(exists(rig, "anew", 2, 0, 1), "step 2 is not there");
	CHECK(snapshot_flags(r.sock, "anew", 2) & SK_SNAP_DURABLE, "step 2");
	rank_close(&r);
	CHECK(rig_stop(rig) == 0, "exit status");
}

/* Any number of files that are no images: each is named once. */
static void test_many_foreign(struct rig *rig)
{
	const int world = 5000;
	char path[256];
	int fd, sock;

	snprintf(path, sizeof(path), "%s/foreign", rig->store);
	CHECK(mkdir(path, 0700) == 0, "mkdir");
	snprintf(path, sizeof(path), "%s/foreign/step-000000000003",
		 rig->store);
	CHECK(mkdir(path, 0700) == 0, "mkdir");
	for (int i = 0; i < world; i++) {
		fd = open(file_of(rig, "foreign", 3, i, world, path,
				  sizeof(path)), O_WRONLY | O_CREAT, 0600);
		CHECK(fd >= 0, "%s", path);
		close(fd);
	}
	rig_start(rig, "--store", rig->store, "--memory", "256M",
		  "--log-level", "error", NULL);
	sock = rig_connect(rig);
	for (int i = 0; i < 3; i++) {
		CHECK(!snapshot_flags(sock, "foreign", 3), "a snapshot");
		CHECK(stat_value(sock, "shardkeep_ignored_files_total") ==
		      world, "look %d: %g", i, stat_value(sock,
					"shardkeep_ignored_files_total"));
	}
	/* One is another file by now, and one is gone. */
	fd = open(file_of(rig, "foreign", 3, 7, world, path, sizeof(path)),
		  O_WRONLY);
	CHECK(fd >= 0 && write(fd, "x", 1) == 1, "%s", path);
	close(fd);
	CHECK(unlink(file_of(rig, "foreign", 3, 9, world, path,
			     sizeof(path))) == 0, "%s", path);
	for (int i = 0; i < 2; i++) {
		CHECK(!snapshot_flags(sock, "foreign", 3), "a snapshot");
		CHECK(stat_value(sock, "shardkeep_ignored_files_total") ==
		      world + 1, "look %d", i);
	}
	/* What one job has is not forgotten for another one's sake. */
	(void)snapshot_flags(sock, "order", 3);
	(void)snapshot_flags(sock, "foreign", 3);
	CHECK(stat_value(sock, "shardkeep_ignored_files_total") == world + 1,
	      "after another job");
	close(sock);
	CHECK(rig_stop(rig) == 0, "exit status");
}

/* The oldest first, so that its slot becomes free. */
static void test_order(struct rig *rig)
{
	struct rank r;

	rig_start(rig, "--store", rig->store, "--memory", "256M",
		  "--flush-rate", "16M", NULL);
	CHECK_STATUS(rank_open(&r, rig, &(struct rank_options){
		.job = "order", .world = 1, .rows = 1000, .slots = 3,
		.flush_every = UINT32_MAX }), 0, &r.msg);
	for (int64_t step = 1; step < 4; step++)
		rank_snapshot(&r, step);
	for (int64_t step = 1; step < 4; step++)
		CHECK_STATUS(manage(r.sock, SK_MSG_FLUSH, "order", step, 0,
				    &r.msg), 0, &r.msg);
	CHECK_STATUS(rank_wait(&r, 3, 3, WAIT_MS), 0, &r.msg);
	for (int64_t step = 1; step < 3; step++)
		CHECK(snapshot_flags(r.sock, "order", step) & SK_SNAP_DURABLE,
		      "step %d comes after step 3", (int)step);
	CHECK(stat_value(r.sock, "shardkeep_bytes_flushed_total") ==
	      3.0 * (double)r.layouts[0]->image_bytes, "bytes");
	rank_close(&r);
	CHECK(rig_stop(rig) == 0, "exit status");
}

int main(int argc, char **argv)
{
	struct rig rig;

	rig_init(&rig, argc > 1 ? argv[1] : NULL);
	rig_start(&rig, "--store", rig.store, "--memory", "256M", NULL);
	test_flush(&rig);
	test_job_end(&rig);
	test_restart(&rig);
	test_known(&rig);
	test_failure(&rig);
	test_damaged_owner(&rig);
	test_taken(&rig);
	test_superseded(&rig);
	test_kill(&rig);
	test_stop_fails(&rig);
	test_killed_agent(&rig);
	test_store_anew(&rig);
	test_order(&rig);
	test_many_foreign(&rig);
	rig_remove(&rig);
	return 0;
}
