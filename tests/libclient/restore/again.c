/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Between a list of snapshots and the opening of what it names, the store and
 * memory go on: files are replaced, images go. Who restores lists again, and
 * never takes what is left for the whole.
 * Argument: path of shardkeepd.
 */
#include "libclient/restore/common.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/util.h"
#include "support/await.h"
#include "support/fault-os.h"

#define OLD 10
#define NEW 20
#define NEWEST 30
#define MEETINGS 12		/* of a restore that passes one over */
#define TRIES 10

/* What happens before ranks meet; the number of the meeting, from 1. */
struct plan;
typedef void (*meanwhile_fn)(struct rank *rank, int meeting);

struct plan {
	int64_t step;
	uint32_t flags;
	int result;
	int64_t got;
	meanwhile_fn meanwhile;
	bool *found;		/* set where the newest may be, and is */
	int at;			/* the meeting at which it happens */
	bool older;		/* what is there at the end, or OLD */
	int link[2];		/* between the two ranks */
};

static void save(struct rank *rank)
{
	rank_whole(rank);
	for (int64_t step = OLD; step <= NEW; step += NEW - OLD) {
		rank_write(rank, step);
		rank_snapshot(rank, step, SK_DURABLE);
	}
}

static void save_one(struct rank *rank)
{
	rank_whole(rank);
	rank_write(rank, NEW);
	rank_snapshot(rank, NEW, SK_DURABLE);
}

/* ---- what happens meanwhile ---- */

static void path_of(const struct rank *rank, int64_t step, char *ret,
		    size_t size)
{
	int n = snprintf(ret, size, "%s/%s/step-%012lld/rank-00001-of-00002"
			 ".safetensors", rank->scene->store, rank->job,
			 (long long)step);

	CHECK(n > 0 && (size_t)n < size);
}

/* The same bytes, in a file of their own, as a backup brings them. */
static void replace(struct rank *rank, int64_t step)
{
	char path[256], temporary[264];
	struct stat st;
	int from, to;

	path_of(rank, step, path, sizeof(path));
	(void)snprintf(temporary, sizeof(temporary), "%s.back", path);
	from = open(path, O_RDONLY | O_CLOEXEC);
	to = open(temporary, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	CHECK(from >= 0 && to >= 0 && !fstat(from, &st), "%s", path);
	CHECK(sendfile(to, from, NULL, (size_t)st.st_size) == st.st_size);
	close(from);
	close(to);
	CHECK(!rename(temporary, path));
}

static void replace_once(struct rank *rank, int meeting)
{
	if (meeting == 1)
		replace(rank, NEW);
}

static void replace_always(struct rank *rank, int meeting)
{
	(void)meeting;
	replace(rank, NEW);
}

static void replace_when_planned(struct rank *rank, int meeting)
{
	if (meeting == 2)
		replace(rank, NEW);
}

static void evict_when_planned(struct rank *rank, int meeting)
{
	if (meeting == 2)
		rank_evict(rank, NEW);
}

/* It goes from disk between the two lists, and is back before the next: what
 * memory has is complete all the while. */
static void leave_disk_for_a_while(struct rank *rank, int meeting)
{
	if (meeting == 1)
		rank_manage(rank, NEW, SK_MSG_EVICT,
			    SK_EVICT_FORCE | SK_EVICT_DISK);
	if (meeting != 2)
		return;
	rank_manage(rank, NEW, SK_MSG_FLUSH, 0);
	AWAIT(rank_flags_of(rank, NEW) & SK_SNAP_DURABLE, "not flushed");
}

static void dir_of(const struct rank *rank, int64_t step, bool aside,
		   char *ret, size_t size)
{
	int n = snprintf(ret, size, "%s/%s/%sstep-%012lld",
			 rank->scene->store, rank->job, aside ? "aside-" : "",
			 (long long)step);

	CHECK(n > 0 && (size_t)n < size);
}

static void move_step(const struct rank *rank, int64_t step, bool aside)
{
	char from[256], to[256];

	dir_of(rank, step, !aside, from, sizeof(from));
	dir_of(rank, step, aside, to, sizeof(to));
	CHECK(!rename(from, to), "%s: %m", from);
}

/* What there is to fall back to goes when a newer one has come. */
static void come_and_go(struct rank *rank, int meeting)
{
	const struct plan *p = rank->arg;

	if (meeting != p->at)
		return;
	move_step(rank, NEWEST, false);
	rank_manage(rank, OLD, SK_MSG_EVICT, SK_EVICT_FORCE | SK_EVICT_DISK);
}

/* ---- meeting ---- */

struct meeting {
	struct rank *rank;
	const struct plan *plan;
	int n;
};

static void send_all(int fd, const char *data, size_t bytes)
{
	while (bytes) {
		ssize_t n = TEMP_FAILURE_RETRY(write(fd, data, bytes));

		CHECK(n > 0);
		data += n;
		bytes -= (size_t)n;
	}
}

static void receive_all(int fd, char *data, size_t bytes)
{
	while (bytes) {
		ssize_t n = TEMP_FAILURE_RETRY(read(fd, data, bytes));

		CHECK(n > 0, "the other rank went away: %m");
		data += n;
		bytes -= (size_t)n;
	}
}

/* Rank 1 goes on once rank 0 has done what happens meanwhile. */
static int meet(void *ctx, const void *in, size_t bytes, void *all,
		uint32_t timeout_ms)
{
	struct meeting *m = ctx;
	int me = m->rank->rank, fd = m->plan->link[me];
	char *parts = all;

	(void)timeout_ms;
	m->n++;
	memcpy(parts + (size_t)me * bytes, in, bytes);
	if (me) {
		send_all(fd, in, bytes);
		receive_all(fd, parts, bytes);
		return 0;
	}
	receive_all(fd, parts + bytes, bytes);
	if (m->plan->meanwhile)
		m->plan->meanwhile(m->rank, m->n);
	send_all(fd, in, bytes);
	return 0;
}

static void load(struct rank *rank)
{
	const struct plan *p = rank->arg;
	struct meeting m = { .rank = rank, .plan = p };
	struct sk_comm comm = { .ctx = &m, .allgather = meet };
	struct sk_restore_options o = { .flags = p->flags };
	struct sk_report report = { 0 };
	int r;

	rank_whole(rank);
	r = sk_restore(rank->state, p->step, &comm, &o, &report);
	if (p->found && r >= 0 && report.step == NEW) {
		CHECK(!rank_wrong(rank, NEW, rank->rank), "%d", rank->rank);
		*p->found = true;
		return;
	}
	CHECK(r == p->result, "%d, wanted %d: %s", r, p->result, sk_error());
	if (r < 0)
		return;
	CHECK(report.step == p->got || (p->older && report.step == OLD),
	      "step %lld", (long long)report.step);
	CHECK(!rank_wrong(rank, report.step, rank->rank), "rank %d",
	      rank->rank);
}

static void try(struct scene *scene, const char *job, const struct plan *plan)
{
	const struct timeval bound = { .tv_sec = 60 };
	struct plan p = *plan;

	CHECK(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, p.link));
	for (int i = 0; i < 2; i++)
		CHECK(!setsockopt(p.link[i], SOL_SOCKET, SO_RCVTIMEO, &bound,
				  sizeof(bound)));
	scene_ranks(scene, job, 2, load, &p);
	close(p.link[0]);
	close(p.link[1]);
}

/* ---- what is promised ---- */

/* The newest is still the newest; one that is named is still there. */
static void replaced(struct scene *scene)
{
	static const meanwhile_fn when[] = { replace_once,
					     replace_when_planned };

	scene_ranks(scene, "replaced", 2, save, NULL);
	for (size_t i = 0; i < SK_ARRAY_SIZE(when); i++) {
		try(scene, "replaced", &(struct plan){
			.step = SK_LATEST, .flags = SK_RESTORE_DISK_ONLY,
			.got = NEW, .meanwhile = when[i] });
		try(scene, "replaced", &(struct plan){
			.step = NEW, .flags = SK_RESTORE_DISK_ONLY,
			.got = NEW, .meanwhile = when[i] });
	}
}

/* A look of the agent's own, as after ranks have gone, may come between a
 * replacement and the opening: then the newest is there. Not each time. */
static void try_unseen(struct scene *scene, const char *job, struct plan p)
{
	bool *found = mmap(NULL, sizeof(*found), PROT_READ | PROT_WRITE,
			   MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int tries = 0;

	CHECK(found != MAP_FAILED);
	p.found = found;
	do {
		*found = false;
		try(scene, job, &p);
	} while (*found && ++tries < TRIES);
	CHECK(!*found, "the newest each time");
	munmap(found, sizeof(*found));
}

/* It ends, and with something older if there is any. */
static void replaced_without_end(struct scene *scene)
{
	scene_ranks(scene, "restless", 2, save, NULL);
	try_unseen(scene, "restless", (struct plan){
		.step = SK_LATEST, .flags = SK_RESTORE_DISK_ONLY,
		.got = OLD, .meanwhile = replace_always });
	try_unseen(scene, "restless", (struct plan){
		.step = NEW, .flags = SK_RESTORE_DISK_ONLY,
		.result = -ENOENT, .meanwhile = replace_always });
	try(scene, "restless", &(struct plan){
		.step = SK_LATEST, .got = NEW,
		.meanwhile = replace_always });
	/* No first run, of which nothing would be taken. */
	scene_ranks(scene, "only", 2, save_one, NULL);
	try_unseen(scene, "only", (struct plan){
		.step = SK_LATEST, .flags = SK_RESTORE_DISK_ONLY,
		.result = -EIO, .meanwhile = replace_always });
}

/* What is on disk is the same; memory alone has the one before it. */
static void evicted(struct scene *scene)
{
	scene_ranks(scene, "evicted", 2, save, NULL);
	try(scene, "evicted", &(struct plan){
		.step = SK_LATEST, .flags = SK_RESTORE_MEMORY_ONLY,
		.got = OLD, .meanwhile = evict_when_planned });
	try(scene, "evicted", &(struct plan){
		.step = SK_LATEST, .got = NEW });
	scene_ranks(scene, "evicted-too", 2, save, NULL);
	try(scene, "evicted-too", &(struct plan){
		.step = SK_LATEST, .got = NEW,
		.meanwhile = evict_when_planned });
}

/* One place alone counts where nothing else may be looked at. */
static void away_from_disk(struct scene *scene)
{
	scene_ranks(scene, "away", 2, save, NULL);
	try(scene, "away", &(struct plan){
		.step = SK_LATEST, .flags = SK_RESTORE_DISK_ONLY,
		.got = NEW, .meanwhile = leave_disk_for_a_while });
	try(scene, "away", &(struct plan){
		.step = NEW, .flags = SK_RESTORE_DISK_ONLY,
		.got = NEW, .meanwhile = leave_disk_for_a_while });
}

/* ---- those who look ---- */

static void evict(void *arg)
{
	evict_when_planned(arg, 2);
}

static void look(struct rank *rank)
{
	struct rank other = *rank;
	struct sk_fault_os fault;
	const struct sk_os *os = rank->sk->os;
	char *json = NULL;

	other.sk = NULL;
	CHECK(!sk_open(&(struct sk_options){
		.socket = rank->scene->socket }, &other.sk), "%s",
	      sk_error());
	/* Hello, the snapshots, the images; the fourth opens one. */
	sk_fault_os_init(&fault, os);
	sk_fault_os_meddle(&fault, SK_FAULT_SENDMSG, 4, evict, &other);
	rank->sk->os = &fault.os;
	CHECK(!sk_inspect(rank->sk, rank->job, NEW, 0, 0, &json), "%s",
	      sk_error());
	rank->sk->os = os;
	CHECK(sk_fault_os_hits(&fault) && strstr(json, "\"w\""));
	free(json);
	sk_close(other.sk);
}

static void inspected(struct scene *scene)
{
	scene_ranks(scene, "inspected", 2, save, NULL);
	scene_ranks(scene, "inspected", 1, look, NULL);
}

static void save_three(struct rank *rank)
{
	save(rank);
	rank_write(rank, NEWEST);
	rank_snapshot(rank, NEWEST, SK_DURABLE);
	/* It would be written again. */
	if (!rank->rank)
		rank_evict(rank, NEWEST);
}

/* One byte of its data. */
static void damage(const char *path)
{
	int fd = open(path, O_RDWR | O_CLOEXEC);
	off_t end;
	char c;

	CHECK(fd >= 0, "%s", path);
	end = lseek(fd, 0, SEEK_END);
	CHECK(pread(fd, &c, 1, end - 1) == 1);
	c = (char)~c;
	CHECK(pwrite(fd, &c, 1, end - 1) == 1);
	close(fd);
}

/* One is damaged and is passed over; what is older than that goes, when what is
 * newer than that is there. */
static void passed_over(struct scene *scene)
{
	for (int at = 1; at <= MEETINGS; at++) {
		struct rank rank = { .scene = scene };
		char job[20], path[256];

		(void)snprintf(job, sizeof(job), "passed-%d", at);
		rank.job = job;
		scene_ranks(scene, job, 2, save_three, NULL);
		path_of(&rank, NEW, path, sizeof(path));
		damage(path);
		move_step(&rank, NEWEST, true);
		try(scene, job, &(struct plan){
			.step = SK_LATEST, .flags = SK_RESTORE_DISK_ONLY,
			.got = NEWEST, .older = true, .at = at,
			.meanwhile = come_and_go });
	}
}

static void save_on_disk(struct rank *rank)
{
	save(rank);
	if (rank->rank)
		return;
	rank_evict(rank, OLD);
	rank_evict(rank, NEW);
}

static void move_image(const struct rank *rank, int64_t step, bool aside)
{
	char here[256], there[264];

	path_of(rank, step, here, sizeof(here));
	(void)snprintf(there, sizeof(there), "%s.aside", here);
	CHECK(!rename(aside ? here : there, aside ? there : here), "%s: %m",
	      here);
}

static void become_whole(struct rank *rank, int meeting)
{
	if (meeting == 1)
		move_image(rank, NEW, false);
}

/* What was listed is half a step, and the one before it has gone for it. */
static void between_two(struct scene *scene)
{
	struct rank rank = { .scene = scene, .job = "between" };

	scene_ranks(scene, "between", 2, save_on_disk, NULL);
	move_step(&rank, OLD, true);
	move_image(&rank, NEW, true);
	try(scene, "between", &(struct plan){
		.step = SK_LATEST, .flags = SK_RESTORE_DISK_ONLY,
		.got = NEW, .meanwhile = become_whole });
	move_image(&rank, NEW, true);
	try(scene, "between", &(struct plan){
		.step = SK_LATEST, .flags = SK_RESTORE_DISK_ONLY,
		.result = -ENOENT });
}

/* Complete it is, but not there: what rank 1 had of its own is in memory. */
static void half_on_disk(struct scene *scene)
{
	struct rank rank = { .scene = scene, .job = "half" };
	char path[256];

	scene_ranks(scene, "half", 2, save, NULL);
	path_of(&rank, NEW, path, sizeof(path));
	/* Nor can it be written anew. */
	CHECK(!unlink(path) && !mkdir(path, 0700));
	try(scene, "half", &(struct plan){
		.step = SK_LATEST, .flags = SK_RESTORE_DISK_ONLY,
		.got = OLD });
	try(scene, "half", &(struct plan){
		.step = NEW, .flags = SK_RESTORE_DISK_ONLY,
		.result = -ENOENT });
	try(scene, "half", &(struct plan){ .step = SK_LATEST, .got = NEW });
	CHECK(!rmdir(path));
}

int main(int argc, char **argv)
{
	struct scene scene;

	scene_open(&scene, argc, argv);
	half_on_disk(&scene);
	passed_over(&scene);
	between_two(&scene);
	replaced(&scene);
	replaced_without_end(&scene);
	evicted(&scene);
	away_from_disk(&scene);
	inspected(&scene);
	scene_close(&scene);
	return 0;
}
