/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the steps that a job has kept cost those who do not ask for them: what
 * the agent opens, reads and lists is counted, with few steps and with many.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <semaphore.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "agent/whole.h"
#include "bytes/checksum.h"
#include "store/private.h"

#define JOB "old"
#define WORLD 2
#define LIMIT 8u
#define FEW 20
#define MANY 300
#define LISTS 8
#define AN_HOUR_NS (UINT64_C(3600) * 1000000000)

/* ---- a store with a history ---- */

static int make_dir(const char *path, const char *name)
{
	char full[256];

	(void)snprintf(full, sizeof(full), "%s/%s", path, name);
	CHECK(mkdir(full, 0700) == 0, "mkdir %s", full);
	return open(full, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

static void write_file(int dir, const char *name, const void *bytes, size_t n,
		       uint64_t size)
{
	int fd = openat(dir, name, O_WRONLY | O_CREAT | O_EXCL, 0600);

	CHECK(fd >= 0 && write(fd, bytes, n) == (ssize_t)n &&
	      ftruncate(fd, (off_t)size) == 0, "write %s", name);
	close(fd);
}

static void write_image(int dir, const struct sk_layout *l,
			const struct sk_store_run *run, uint64_t step)
{
	uint64_t *sums = calloc(l->n_sums + 1u, sizeof(*sums));
	const struct sk_stamp stamp = { .run = run->number, .run_id = run->id,
					.step = step, .sums = sums };
	char *header = malloc(l->header_bytes), name[SK_STORE_NAME_MAX];

	sums[0] = step;
	sk_layout_stamp(l, &stamp, header);
	sk_image_name_format(name, l->rank, l->world);
	write_file(dir, name, header, l->header_bytes, l->image_bytes);
	free(header);
	free(sums);
}

static void write_step(const char *job, const struct rank *ranks,
		       const struct sk_store_run *run, uint64_t step)
{
	char name[SK_STORE_NAME_MAX], text[SK_RUN_TEXT_MAX + 1];
	int dir;

	sk_step_name_format(name, step);
	dir = make_dir(job, name);
	sk_run_text_format(text, run);
	strcat(text, "\n");
	write_file(dir, SK_RUN_FILE, text, strlen(text), strlen(text));
	for (int i = 0; i < WORLD; i++)
		write_image(dir, ranks[i].layouts[0], run, step);
	close(dir);
}

static void enter(struct whole *w, struct rank *ranks)
{
	for (int i = 0; i < WORLD; i++) {
		struct rank_options o = { .job = JOB, .rank = i,
					  .world = WORLD };

		CHECK_STATUS(rank_open(&ranks[i], &w->rig, &o), 0,
			     &ranks[i].msg);
	}
}

static void leave(struct rank *ranks)
{
	for (int i = 0; i < WORLD; i++)
		rank_close(&ranks[i]);
}

static void start(struct whole *w)
{
	struct timespec now;

	/* What was written is an hour old. */
	clock_gettime(CLOCK_REALTIME, &now);
	sk_fault_os_init(w->fault, sk_os_linux());
	sk_fault_os_clock(w->fault, 1, (uint64_t)now.tv_sec * 1000000000 +
				       AN_HOUR_NS);
	whole_start(w);
	CHECK(w->serves, "%s", whole_log(w));
}

static void stop(struct whole *w)
{
	CHECK(kill(w->rig.agent, SIGTERM) == 0, "kill");
	CHECK(whole_wait(w) == 0, "%s", whole_log(w));
}

static void make_history(struct whole *w, int steps)
{
	const struct sk_store_run run = { 3, 77 };
	struct rank ranks[WORLD];
	char job[128];

	start(w);
	enter(w, ranks);
	close(make_dir(w->rig.store, JOB));
	(void)snprintf(job, sizeof(job), "%s/" JOB, w->rig.store);
	for (int step = 1; step <= steps; step++)
		write_step(job, ranks, &run, (uint64_t)step);
	leave(ranks);
	stop(w);
}

/* An agent that has that many steps on disk, and a connection to it. */
static int begin(struct whole *w, int steps)
{
	whole_init(w);
	make_history(w, steps);
	start(w);
	return rig_connect(&w->rig);
}

static void end(struct whole *w, int sock)
{
	close(sock);
	stop(w);
	whole_remove(w);
}

/* ---- what is asked ---- */

static size_t list(int sock, uint32_t limit, int64_t newest)
{
	struct sk_msg msg = { .type = SK_MSG_LIST, .body.list = {
		.id = { .step = -1, .rank = -1 }, .limit = limit,
		.what = SK_LIST_SNAPSHOTS } };
	int fds[SK_MSG_FDS], n_fds = 0;
	struct sk_wire_snapshot s;

	strcpy(msg.body.list.id.job, JOB);
	CHECK_STATUS(rig_call(sock, &msg, NULL, 0, fds, &n_fds), 0, &msg);
	CHECK(n_fds == 1 && pread(fds[0], &s, sizeof(s), 0) == sizeof(s),
	      "no list");
	CHECK(s.id.step == newest && s.flags & SK_SNAP_COMPLETE,
	      "step %" PRId64 ", flags %x", s.id.step, s.flags);
	close(fds[0]);
	return msg.body.list_reply.n;
}

static const enum sk_fault_op counted[] = {
	SK_FAULT_OPENAT, SK_FAULT_PREAD, SK_FAULT_FSTATAT, SK_FAULT_GETDENTS,
};

struct counts {
	uint64_t calls[4];
};

static struct counts count(const struct whole *w)
{
	struct counts c;

	for (int i = 0; i < 4; i++)
		c.calls[i] = sk_fault_os_calls(w->fault, counted[i]);
	return c;
}

/* A restart: ranks come, list, and go. What it took, apart from the wait for
 * what follows their end. */
static struct counts restart(struct whole *w, int steps)
{
	struct counts before = count(w), after;
	struct rank ranks[WORLD];

	enter(w, ranks);
	for (int i = 0; i < WORLD; i++) {
		size_t n = list(ranks[i].sock, LIMIT, steps);

		CHECK(n == LIMIT, "%zu snapshots", n);
		CHECK(ranks[i].run > 3, "run %" PRIu64, ranks[i].run);
	}
	after = count(w);
	leave(ranks);
	for (int i = 0; i < 4; i++)
		after.calls[i] -= before.calls[i];
	return after;
}

static void compare(const struct counts *few, const struct counts *many,
		    const char *what)
{
	/* Ranks that come in one moment are served by one look. */
	for (int i = 0; i < 4; i++)
		CHECK(many->calls[i] <= few->calls[i] + few->calls[i] / 2,
		      "%s: call %d: %" PRIu64 " times, then %" PRIu64, what, i,
		      few->calls[i], many->calls[i]);
}

/* ---- an agent that was killed before its index was written ---- */

static void write_one_more(const struct whole *w, struct rank *ranks,
			   uint64_t step)
{
	const struct sk_store_run run = { 3, 77 };
	char job[128];

	(void)snprintf(job, sizeof(job), "%s/" JOB, w->rig.store);
	write_step(job, ranks, &run, step);
}

/* Beside whatever it does, a portion a second. */
static uint64_t looks_since(struct whole *w, int sock, uint64_t before)
{
	sk_fault_os_advance(w->fault, UINT64_C(1100000000));
	(void)stat_value(sock, "shardkeep_snapshots");
	return sk_fault_os_calls(w->fault, SK_FAULT_FSTATAT) - before;
}

static void await_looks(struct whole *w, int sock, uint64_t least)
{
	uint64_t before = sk_fault_os_calls(w->fault, SK_FAULT_FSTATAT);

	AWAIT(looks_since(w, sock, before) >= least,
	      "%" PRIu64 " are not looked at", least);
}

/* The index is that of a step before: what a restart costs grows with nothing
 * then either, and the others are looked at all the same. */
static struct counts restart_one_step_later(struct whole *w, int steps)
{
	struct rank ranks[WORLD];
	struct counts c;
	int sock;

	start(w);
	enter(w, ranks);
	stop(w);
	write_one_more(w, ranks, (uint64_t)steps + 1);
	leave(ranks);
	start(w);
	c = restart(w, steps + 1);
	sock = rig_connect(&w->rig);
	await_looks(w, sock, (uint64_t)steps - LIMIT);
	close(sock);
	stop(w);
	return c;
}

/* ---- what is known of it ---- */

static int ask(int sock, enum sk_msg_type type, int64_t step,
	       struct sk_msg *msg)
{
	if (type != SK_MSG_WAIT)
		return manage(sock, type, JOB, step, 0, msg);
	*msg = (struct sk_msg){ .type = SK_MSG_WAIT, .body.wait = {
		.id = { .step = step, .rank = -1 }, .until = 3,
		.timeout_ms = 1000 } };
	strcpy(msg->body.wait.id.job, JOB);
	return rig_call(sock, msg, NULL, 0, NULL, NULL);
}

/* A minute later; a list may be under way meanwhile. */
static double known(struct whole *w, int sock)
{
	sk_fault_os_advance(w->fault, AN_HOUR_NS / 60);
	return stat_value(sock, "shardkeep_snapshots");
}

static void await_known(struct whole *w, int sock, double most)
{
	AWAIT(known(w, sock) <= most, "it knows %g", known(w, sock));
}

/* All that are listed are known for a while, and then the newest; the others
 * are found when somebody names them. */
static void test_old_ones_are_left(void)
{
	struct sk_msg msg;
	struct whole w;
	size_t n;
	int sock;

	sock = begin(&w, MANY);
	n = list(sock, 0, MANY);
	CHECK(n == MANY, "%zu of all", n);
	CHECK(stat_value(sock, "shardkeep_snapshots") == MANY, "known");
	CHECK_STATUS(ask(sock, SK_MSG_PIN, 7, &msg), 0, &msg);
	await_known(&w, sock, 65);
	CHECK(snapshot_flags(sock, JOB, 7) & SK_SNAP_PINNED, "pin");
	await_known(&w, sock, 65);
	/* Found, whoever asks. */
	CHECK_STATUS(ask(sock, SK_MSG_WAIT, 1, &msg), 0, &msg);
	CHECK_STATUS(ask(sock, SK_MSG_FLUSH, 2, &msg), 0, &msg);
	CHECK(stat_value(sock, "shardkeep_snapshots") <= 67, "two more");
	CHECK_STATUS(ask(sock, SK_MSG_WAIT, MANY + 1, &msg), -ENOENT, &msg);
	CHECK_STATUS(ask(sock, SK_MSG_PIN, MANY + 1, &msg), -ENOENT, &msg);
	CHECK_STATUS(manage(sock, SK_MSG_EVICT, JOB, 3, SK_EVICT_DISK, &msg),
		     0, &msg);
	CHECK(list(sock, 0, MANY) == MANY - 1, "all but one");
	CHECK(list(sock, LIMIT, MANY) == LIMIT, "the newest");
	end(&w, sock);
}

/* ---- what a snapshot costs beside them ---- */

#define SNAPSHOTS 6

struct cost {
	double visits;
	uint64_t calls;
	uint64_t names;		/* of them, for names in directories */
};

static struct cost cost_so_far(const struct whole *w, int sock)
{
	return (struct cost){
		.visits = stat_value(sock, "shardkeep_visits_total"),
		.calls = sk_fault_os_calls(w->fault, SK_FAULT_ANY),
		.names = sk_fault_os_calls(w->fault, SK_FAULT_GETDENTS),
	};
}

static void take_durable(struct rank *ranks, int64_t step)
{
	for (int i = 0; i < WORLD; i++)
		rank_snapshot(&ranks[i], step);
	CHECK_STATUS(rank_wait(&ranks[0], step, 3, WAIT_MS), 0,
		     &ranks[0].msg);
}

/* Of snapshots that are taken, and written to disk, after a restart. */
static struct cost cost_of_snapshots(int steps)
{
	struct rank ranks[WORLD];
	struct cost before, after;
	struct whole w;

	whole_init(&w);
	make_history(&w, steps);
	start(&w);
	enter(&w, ranks);
	for (int i = 0; i < WORLD; i++)
		CHECK(list(ranks[i].sock, LIMIT, steps) == LIMIT, "newest");
	take_durable(ranks, steps + 1);
	before = cost_so_far(&w, ranks[0].sock);
	for (int i = 2; i < 2 + SNAPSHOTS; i++)
		take_durable(ranks, steps + i);
	after = cost_so_far(&w, ranks[0].sock);
	leave(ranks);
	stop(&w);
	whole_remove(&w);
	return (struct cost){ after.visits - before.visits,
			      after.calls - before.calls,
			      after.names - before.names };
}

static void test_snapshots_cost_the_same_beside_many(void)
{
	struct cost few = cost_of_snapshots(FEW);
	struct cost many = cost_of_snapshots(MANY);

	CHECK(few.visits > 0 && many.visits <= few.visits * 1.1 + 2 * WORLD,
	      "%g visits with %d steps, %g with %d", few.visits, FEW,
	      many.visits, MANY);
	/* Requests and replies may meet in one turn, or not. */
	CHECK(many.calls <= few.calls + few.calls / 10,
	      "%" PRIu64 " calls with %d steps, %" PRIu64 " with %d",
	      few.calls, FEW, many.calls, MANY);
	CHECK(many.names <= few.names, "%" PRIu64 " reads of names with %d "
	      "steps, %" PRIu64 " with %d", few.names, FEW, many.names, MANY);
}

static void path_aside(const struct whole *w, int step, char path[160])
{
	(void)snprintf(path, 160, "%s/" JOB "/step-%012d.run-3", w->rig.store,
		       step);
}

static bool is_aside(const struct whole *w, int step)
{
	char path[160];

	path_aside(w, step, path);
	return access(path, F_OK) == 0;
}

static void put_aside(const struct whole *w, int step)
{
	char from[160], to[160];

	path_aside(w, step, to);
	(void)snprintf(from, sizeof(from), "%s", to);
	*strrchr(from, '.') = 0;
	CHECK(rename(from, to) == 0, "rename %s", from);
}

/* What an older run had of a step goes for the newer one's all the same:
 * another agent had moved it aside, this one does, or it does so with one that
 * came after its last look. */
static void test_an_older_runs_step_goes_for_a_newer_ones(void)
{
	struct rank ranks[WORLD];
	struct whole w;

	whole_init(&w);
	make_history(&w, FEW);
	put_aside(&w, FEW - 1);
	start(&w);
	enter(&w, ranks);
	CHECK(ranks[0].run > 3, "run %" PRIu64, ranks[0].run);
	write_one_more(&w, ranks, FEW + 1);
	for (int step = FEW - 1; step <= FEW + 1; step++) {
		take_durable(ranks, step);
		AWAIT(!is_aside(&w, step), "step %d of run 3 stays", step);
	}
	leave(ranks);
	stop(&w);
	whole_remove(&w);
}

/* ---- what ranks that come, and lists, cost where all are known ---- */

static double visits_to_list_newest(int steps)
{
	struct rank ranks[WORLD];
	struct rig_since since;
	struct whole w;
	double visits;
	int sock;

	sock = begin(&w, steps);
	for (int i = 0; i < 2; i++)
		CHECK(list(sock, 0, steps) == (size_t)steps, "all");
	since = rig_since(sock);
	for (int i = 0; i < LISTS; i++)
		CHECK(list(sock, LIMIT, steps) == LIMIT, "the newest");
	enter(&w, ranks);
	visits = rig_visits(sock, since);
	leave(ranks);
	CHECK(stat_value(sock, "shardkeep_snapshots") == steps, "known");
	end(&w, sock);
	return visits;
}

static void test_the_newest_are_listed_beside_many(void)
{
	double few = visits_to_list_newest(FEW);
	double many = visits_to_list_newest(MANY);

	CHECK(few > 0 && many <= few * 1.1, "%g visits with %d steps that are "
	      "known, %g with %d", few, FEW, many, MANY);
}

/* Of another, older run than its directory is known for: the directory stands
 * among the newer one's, the image behind them all. */
static void test_an_older_runs_image_in_a_newer_ones_directory_goes(void)
{
	const struct sk_store_run older = { 2, 66 };
	char path[160], file[300], name[SK_STORE_NAME_MAX];
	struct rank ranks[WORLD];
	struct whole w;
	int sock, dir;

	sock = begin(&w, FEW);
	enter(&w, ranks);
	for (int i = 0; i < 2; i++)
		CHECK(list(sock, 0, FEW) == FEW, "all");
	(void)snprintf(path, sizeof(path), "%s/" JOB "/step-%012d",
		       w.rig.store, 5);
	(void)snprintf(file, sizeof(file), "%s/%s", path, SK_RUN_FILE);
	CHECK(unlink(file) == 0, "unlink %s", file);
	sk_image_name_format(name, 1, WORLD);
	(void)snprintf(file, sizeof(file), "%s/%s", path, name);
	CHECK(unlink(file) == 0, "unlink %s", file);
	dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	write_image(dir, ranks[1].layouts[0], &older, 5);
	close(dir);
	CHECK(list(sock, 0, FEW) == FEW + 1, "and the older run's");
	CHECK(unlink(file) == 0, "unlink %s", file);
	CHECK(list(sock, 0, FEW) == FEW, "what is gone is listed");
	leave(ranks);
	end(&w, sock);
}

/* Nobody can have saved it, and nobody could ask for it. */
static void test_a_number_that_no_step_has_is_none(void)
{
	struct sk_wire_snapshot *all;
	struct rank ranks[WORLD];
	struct whole w;
	size_t n;
	int sock;

	sock = begin(&w, FEW);
	enter(&w, ranks);
	write_one_more(&w, ranks, (uint64_t)INT64_MAX + 1);
	write_one_more(&w, ranks, UINT64_MAX);
	write_one_more(&w, ranks, INT64_MAX);
	all = list_snapshots(sock, JOB, &n);
	CHECK(n == FEW + 1, "%zu steps", n);
	for (size_t i = 0; i < n; i++)
		CHECK(all[i].id.step >= 0, "step %" PRId64, all[i].id.step);
	free(all);
	leave(ranks);
	end(&w, sock);
}

/* ---- a look that what is taken meanwhile overtakes ---- */

struct gate {
	sem_t at, go;
};

/* False: not in time. */
static bool await_gate(sem_t *which)
{
	struct timespec end;

	clock_gettime(CLOCK_REALTIME, &end);
	end.tv_sec += WAIT_MS / 1000;
	return sem_timedwait(which, &end) == 0;
}

static void hold(void *ctx)
{
	struct gate *gate = ctx;

	(void)sem_post(&gate->at);
	(void)await_gate(&gate->go);
}

static void remove_step(const struct whole *w, int step)
{
	char command[256];

	(void)snprintf(command, sizeof(command), "rm -r %s/" JOB "/step-%012d",
		       w->rig.store, step);
	CHECK(system(command) == 0, "%s", command);
}

static bool is_there(const struct whole *w, int step)
{
	char path[160];

	(void)snprintf(path, sizeof(path), "%s/" JOB "/step-%012d",
		       w->rig.store, step);
	return access(path, F_OK) == 0;
}

static unsigned known_on_disk(int sock, int64_t step)
{
	struct sk_wire_image *images;
	unsigned found = 0;
	size_t n;

	images = list_known(sock, JOB, step, &n);
	for (size_t i = 0; i < n; i++)
		found += images[i].place == SK_PLACE_DISK;
	free(images);
	return found;
}

static void finish_list(int sock, struct sk_msg *msg)
{
	int fds[SK_MSG_FDS], n_fds = 0;

	CHECK_STATUS(rig_reply(sock, msg, fds, &n_fds), 0, msg);
	CHECK(n_fds == 1, "%d descriptors", n_fds);
	close(fds[0]);
}

/* A step becomes durable and goes while a look is about to read names: that
 * look leaves it alone, for it came later. The next one, to which nothing has
 * changed, and which is into what is newer, must not. */
static void test_what_went_before_names_were_read_is_forgotten(void)
{
	struct sk_msg msg = { .type = SK_MSG_LIST, .body.list = {
		.id = { .job = JOB, .step = -1, .rank = -1 },
		.what = SK_LIST_SNAPSHOTS } };
	struct gate *gate = mmap(NULL, sizeof(*gate), PROT_READ | PROT_WRITE,
				 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	const int gone = FEW + 1, newest = FEW + 2;
	struct rank ranks[WORLD];
	struct whole w;
	int sock;

	CHECK(gate != MAP_FAILED && sem_init(&gate->at, 1, 0) == 0 &&
	      sem_init(&gate->go, 1, 0) == 0, "no gate");
	sock = begin(&w, FEW);
	enter(&w, ranks);
	for (int i = 0; i < 2; i++)
		CHECK(list(sock, 0, FEW) == FEW, "all");
	sk_fault_os_forget(w.fault);
	sk_fault_os_meddle(w.fault, SK_FAULT_OPENAT, 1, hold, gate);
	rig_send(sock, &msg);
	CHECK(await_gate(&gate->at), "no look");
	take_durable(ranks, gone);
	take_durable(ranks, newest);
	remove_step(&w, gone);
	(void)sem_post(&gate->go);
	finish_list(sock, &msg);
	(void)list(sock, 1, newest);
	CHECK(!known_on_disk(sock, gone) || is_there(&w, gone),
	      "what is gone is known");
	leave(ranks);
	end(&w, sock);
	munmap(gate, sizeof(*gate));
}

/* ---- what one turn of the agent does ---- */

/* What is known of all steps is counted before it is told whether any goes. */
static void await_census(int sock, struct rank *ranks, int steps)
{
	struct rig_since since = rig_since(sock);

	take_durable(ranks, steps + 1);
	AWAIT(rig_visits(sock, since) >= WORLD * steps,
	      "they are not counted");
}

/* Most that any turn has looked at, of an agent that was asked for all there
 * is, twice, also image by image, whose ranks came and went meanwhile, and
 * which is to say what need not stay. */
static double longest_turn(int steps)
{
	struct rank ranks[WORLD];
	struct sk_msg msg;
	struct whole w;
	double visits;
	int sock;

	whole_init(&w);
	make_history(&w, steps);
	w.options.retention_said = true;
	w.options.retention = (struct sk_retention){ .keep_last = 2,
						     .keep_every = 1 };
	start(&w);
	sock = rig_connect(&w.rig);
	enter(&w, ranks);
	for (int i = 0; i < 2; i++)
		CHECK(list(sock, 0, steps) == (size_t)steps, "all");
	free(list_images(sock, JOB, -1, &(size_t){ 0 }));
	CHECK_STATUS(ask(sock, SK_MSG_PIN, 7, &msg), 0, &msg);
	CHECK_STATUS(ask(sock, SK_MSG_WAIT, 1, &msg), 0, &msg);
	await_census(sock, ranks, steps);
	leave(ranks);
	await_known(&w, sock, 65);
	visits = stat_value(sock, "shardkeep_longest_turn_visits");
	end(&w, sock);
	return visits;
}

/* What is more than a portion takes more turns, and no longer ones. */
static void test_turns_are_bounded(void)
{
	double some = longest_turn(2 * MANY), many = longest_turn(6 * MANY);

	CHECK(some > 0 && many <= some + some / 4,
	      "a turn looks at %g with %d steps, at %g with %d", some,
	      2 * MANY, many, 6 * MANY);
}

/* ---- an image that many open ---- */

static void open_image(int sock, uint64_t image, uint32_t flags)
{
	struct sk_msg msg = { .type = SK_MSG_OPEN, .body.open = {
		.image = image, .place = SK_PLACE_DISK, .flags = flags } };
	int fds[SK_MSG_FDS], n_fds = 0;
	uint64_t sum = 0;

	CHECK_STATUS(rig_call(sock, &msg, NULL, 0, fds, &n_fds), 0, &msg);
	CHECK(n_fds == 2, "%d descriptors", n_fds);
	CHECK(!(flags & SK_OPEN_SUMS) ||
	      pread(fds[1], &sum, sizeof(sum), 0) == sizeof(sum), "no sums");
	CHECK(!(flags & SK_OPEN_SUMS) || sum == MANY, "sum %" PRIu64, sum);
	close(fds[0]);
	close(fds[1]);
	msg.type = SK_MSG_CLOSE;
	msg.body.open = (struct sk_wire_open){ .image = image,
					       .place = SK_PLACE_DISK };
	CHECK_STATUS(rig_call(sock, &msg, NULL, 0, NULL, NULL), 0, &msg);
}

static uint64_t reads_to_open(const struct whole *w, int sock, uint64_t image,
			      uint32_t flags, int times)
{
	uint64_t before = sk_fault_os_calls(w->fault, SK_FAULT_PREAD);

	for (int i = 0; i < times; i++)
		open_image(sock, image, flags);
	return sk_fault_os_calls(w->fault, SK_FAULT_PREAD) - before;
}

/* Its header is read once, while it is the same file; and again when nobody
 * has opened any for a while. */
static void test_an_image_is_read_once(void)
{
	struct sk_wire_image *images;
	uint64_t once, again = 0, image;
	struct whole w;
	size_t n;
	int sock;

	sock = begin(&w, MANY);
	images = list_images(sock, JOB, MANY, &n);
	CHECK(n == WORLD, "%zu images", n);
	image = images[0].image;
	free(images);
	once = reads_to_open(&w, sock, image, SK_OPEN_SUMS, 1);
	CHECK(once > 0, "it was not read");
	CHECK(reads_to_open(&w, sock, image, SK_OPEN_SUMS, 50) == 0,
	      "it was read again");
	(void)reads_to_open(&w, sock, image, 0, 1);
	CHECK(reads_to_open(&w, sock, image, 0, 50) == 0,
	      "it was read again for its header");
	/* What comes in one turn is served before that turn's times. */
	for (int i = 0; i < 1000 && !again; i++) {
		sk_fault_os_advance(w.fault, AN_HOUR_NS);
		CHECK(stat_value(sock, "shardkeep_snapshots") > 0, "a turn");
		again = reads_to_open(&w, sock, image, SK_OPEN_SUMS, 1);
	}
	/* What need not stay may be looked for by then as well. */
	CHECK(again >= once, "%" PRIu64 " reads, %" PRIu64 " before", again,
	      once);
	end(&w, sock);
}

/* One that was stopped has written down what it knew. */
static struct counts first_of_next(struct whole *w, int steps)
{
	struct counts c;

	stop(w);
	start(w);
	c = restart(w, steps);
	stop(w);
	return c;
}

/* ---- an agent that comes after another one ---- */

static void path_of_image(const struct whole *w, int step, int rank,
			  char path[400])
{
	char name[SK_STORE_NAME_MAX];

	sk_image_name_format(name, rank, WORLD);
	(void)snprintf(path, 400, "%s/" JOB "/step-%012d/%s", w->rig.store,
		       step, name);
}

static void remove_index(const struct whole *w)
{
	char path[160];

	(void)snprintf(path, sizeof(path), "%s/" SK_INDEX_DIR "/" JOB,
		       w->rig.store);
	/* The one that wrote the history may not have looked at it. */
	CHECK(unlink(path) == 0 || errno == ENOENT, "unlink %s", path);
}

/* How often its first list reads: two times for a header or ".run". */
static uint64_t reads_of_first_list(struct whole *w, bool index)
{
	uint64_t reads;
	int sock;

	if (!index)
		remove_index(w);
	start(w);
	sock = rig_connect(&w->rig);
	CHECK(list(sock, LIMIT, FEW) == LIMIT, "the newest");
	reads = sk_fault_os_calls(w->fault, SK_FAULT_PREAD);
	close(sock);
	stop(w);
	return reads;
}

/* What the last one read is known by its index: of ranks that describe the
 * same, it reads one. A file that is another one by now is read. */
static void test_headers_are_read_once_in_a_stores_life(void)
{
	uint64_t first, next;
	char path[400];
	struct whole w;

	whole_init(&w);
	make_history(&w, FEW);
	first = reads_of_first_list(&w, false);
	next = reads_of_first_list(&w, true);
	CHECK(next <= 2 * LIMIT + 4 && first >= 2 * LIMIT * (WORLD + 1),
	      "%" PRIu64 " reads, and then %" PRIu64, first, next);
	path_of_image(&w, FEW, 1, path);
	CHECK(chmod(path, 0640) == 0, "chmod %s", path);
	first = reads_of_first_list(&w, true);
	CHECK(first > next, "%" PRIu64 " reads, and then %" PRIu64, next,
	      first);
	CHECK(reads_of_first_list(&w, true) == next, "it is known again");
	whole_remove(&w);
}

/* ---- an index that is not so ---- */

/* What it says of that image, of its layout or of its checksums, is another
 * one's, and its own checksum is right. */
static void forge_index(const struct whole *w, int step, int rank, bool sums)
{
	char path[400], file[65536];
	struct sk_history_brief brief;
	uint64_t sum = 0;
	struct stat st;
	ssize_t n, at;
	int fd;

	path_of_image(w, step, rank, path);
	CHECK(stat(path, &st) == 0, "stat %s", path);
	(void)snprintf(path, sizeof(path), "%s/" SK_INDEX_DIR "/" JOB,
		       w->rig.store);
	fd = open(path, O_RDWR | O_CLOEXEC);
	n = pread(fd, file, sizeof(file), 0);
	CHECK(n > 0 && n < (ssize_t)sizeof(file), "%zd bytes", n);
	for (at = 0; at + (ssize_t)sizeof(brief) <= n; at += 8) {
		memcpy(&brief, file + at, sizeof(brief));
		if (brief.rank == rank && brief.inode == st.st_ino)
			break;
	}
	CHECK(at + (ssize_t)sizeof(brief) <= n, "the image is not in it");
	if (sums)
		brief.content[0] ^= 1;
	else
		brief.digest.bytes[0] ^= 1;
	memcpy(file + at, &brief, sizeof(brief));
	memcpy(file + 8, &sum, sizeof(sum));
	sum = sk_xxh3(file, (size_t)n);
	memcpy(file + 8, &sum, sizeof(sum));
	CHECK(pwrite(fd, file, (size_t)n, 0) == n, "write %s", path);
	close(fd);
}

/* Who opens an image is never told more than its header says. */
static void test_a_wrong_index_opens_nothing(bool sums)
{
	struct sk_msg msg = { .type = SK_MSG_OPEN };
	struct sk_wire_image *images;
	int fds[SK_MSG_FDS], n_fds = 0, sock;
	struct whole w;
	size_t n;

	whole_init(&w);
	make_history(&w, FEW);
	(void)reads_of_first_list(&w, false);
	forge_index(&w, FEW, 1, sums);
	start(&w);
	sock = rig_connect(&w.rig);
	CHECK(list(sock, LIMIT, FEW) == LIMIT, "it is believed so far");
	images = list_known(sock, JOB, FEW, &n);
	CHECK(n == WORLD, "%zu images", n);
	for (int rank = 0; rank < WORLD; rank++) {
		msg = (struct sk_msg){ .type = SK_MSG_OPEN, .body.open = {
			.image = images[rank].image,
			.place = SK_PLACE_DISK, .flags = SK_OPEN_SUMS } };
		CHECK_STATUS(rig_call(sock, &msg, NULL, 0, fds, &n_fds),
			     rank != 1 ? 0 : sums ? -ENOENT : -EBADMSG, &msg);
		for (int i = 0; i < n_fds; i++)
			close(fds[i]);
		n_fds = 0;
	}
	free(images);
	end(&w, sock);
}

int main(void)
{
	static const int sizes[2] = { FEW, MANY };
	struct counts again[2], next[2], later[2];

	for (int k = 0; k < 2; k++) {
		struct whole w;

		whole_init(&w);
		make_history(&w, sizes[k]);
		start(&w);
		(void)restart(&w, sizes[k]);
		again[k] = restart(&w, sizes[k]);
		next[k] = first_of_next(&w, sizes[k]);
		later[k] = restart_one_step_later(&w, sizes[k]);
		whole_remove(&w);
	}
	compare(&again[0], &again[1], "an agent that knows them");
	compare(&next[0], &next[1], "the next agent");
	compare(&later[0], &later[1], "one that comes a step later");
	test_old_ones_are_left();
	test_turns_are_bounded();
	test_the_newest_are_listed_beside_many();
	test_an_older_runs_image_in_a_newer_ones_directory_goes();
	test_a_number_that_no_step_has_is_none();
	test_what_went_before_names_were_read_is_forgotten();
	test_snapshots_cost_the_same_beside_many();
	test_an_older_runs_step_goes_for_a_newer_ones();
	test_headers_are_read_once_in_a_stores_life();
	test_a_wrong_index_opens_nothing(false);
	test_a_wrong_index_opens_nothing(true);
	test_an_image_is_read_once();
	return 0;
}
