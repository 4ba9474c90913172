/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks that nothing but a fork has started meet by a file and by a port, which
 * rank 0 may tell, and restore over two agents; then what may go wrong on the
 * way: strangers, older files, ranks that come twice, count otherwise, leave,
 * or do not come. Each time all ranks end alike, and nothing is left in the
 * directory.
 */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "comm/links.h"
#include "comm/notice.h"
#include "comm/seek.h"
#include "libclient/restore/common.h"

#define RANKS 4
#define ROWS 900	/* of 900 F32: 3 MiB, and more than a chunk a rank */
#define NOBODY (-1)

static const int home[RANKS] = { 0, 0, 1, 1 }, away[RANKS] = { 0, 1, 0, 1 };

struct ends {
	/* What rank 0 told; and that it did. */
	char told[SK_NOTICE_TEXT];
	int has_told;
	/* Of who came before rank 0 looked, and did not wait for it. */
	int gave_up;
	/* And of a second rank 0, and of who has come to the first. */
	int results[RANKS + 2];
	char why[RANKS + 2][300];
	uint64_t remote;
};

struct trial {
	const char *at, *secret, *other_secret;
	uint32_t timeout_ms;
	/* What this rank does wrong: */
	int culprit;
	int absent;			/* and who does not come; 0: nobody */
	int world, as;			/* what it says; 0: as it is */
	void (*instead)(struct rank *rank);
	void (*before)(struct rank *rank);
	bool die;			/* once it has met */
	struct ends *ends;
};

static int meet(const struct rank *rank, struct sk_comm *ret_comm)
{
	const struct trial *t = rank->arg;
	bool wrong = rank->rank == t->culprit;

	return sk_comm_meet(rank->sk, &(struct sk_meeting){
		.at = t->at, .timeout_ms = t->timeout_ms,
		.secret = wrong && t->other_secret ? t->other_secret :
						     t->secret,
		.rank = wrong && t->as ? t->as : rank->rank,
		.world = wrong && t->world ? t->world : rank->world,
	}, ret_comm);
}

/* ---- restores ---- */

static void save(struct rank *rank)
{
	struct sk_comm comm;
	int r;

	CHECK(!meet(rank, &comm), "%s", sk_error());
	rank_model(rank, ROWS);
	r = sk_restore(rank->state, SK_LATEST, &comm, NULL, NULL);
	CHECK(r == -ENOENT, "%d %s", r, sk_error());
	rank_write(rank, 7);
	rank_snapshot(rank, 7, SK_SEALED);
	sk_comm_meet_free(&comm);
}

static void load(struct rank *rank)
{
	const struct trial *t = rank->arg;
	struct sk_report report;
	struct sk_comm comm;

	CHECK(!meet(rank, &comm), "%s", sk_error());
	rank_model(rank, ROWS);
	for (int i = 0; i < 2; i++) {
		CHECK(!sk_restore(rank->state, SK_LATEST, &comm, NULL,
				  &report), "%s", sk_error());
		CHECK(report.step == 7 && !rank_wrong(rank, 7, rank->rank));
	}
	__atomic_fetch_add(&t->ends->remote, report.bytes_remote,
			   __ATOMIC_RELAXED);
	sk_comm_meet_free(&comm);
}

/* Rank 2 does not come to the restore; with so few ranks all see that. */
static void miss_one(struct rank *rank)
{
	struct sk_restore_options o = { .timeout_ms = 1500 };
	struct sk_comm comm;
	int r;

	CHECK(!meet(rank, &comm), "%s", sk_error());
	rank_model(rank, ROWS);
	if (rank->rank != 2) {
		r = sk_restore(rank->state, SK_LATEST, &comm, &o, NULL);
		CHECK(r == -ETIMEDOUT && strstr(sk_error(), "and rank "),
		      "%d %s", r, sk_error());
		/* Who is the first to give up has others see that. */
		CHECK(strstr(sk_error(), "rank 2 did not answer") ||
		      strstr(sk_error(), "given up: Connection reset"), "%s",
		      sk_error());
	}
	rank_ready(rank);
}

static void restore_over(struct scene *scene, const char *job, const char *at,
			 struct ends *ends)
{
	struct trial t = { .at = at, .secret = "attempt 1", .ends = ends,
			   .culprit = NOBODY };

	ends->remote = 0;
	scene->node_of = home;
	scene_ranks(scene, job, RANKS, save, &t);
	scene->node_of = away;
	scene_ranks(scene, job, RANKS, load, &t);
	scene->node_of = NULL;
	CHECK(ends->remote, "%s: nothing came from the other node", at);
}

/* ---- meetings ---- */

static void gather_alike(const struct rank *rank, struct sk_comm *comm,
			 bool die)
{
	const struct trial *t = rank->arg;
	int32_t all[RANKS];
	int r;

	if (die && rank->rank == t->culprit)
		_exit(0);
	r = comm->allgather(comm->ctx, &rank->rank, sizeof(*all), all, 30000);
	CHECK(die ? r == -ECONNRESET : !r, "%d", r);
	for (int32_t i = 0; i < RANKS && !die; i++)
		CHECK(all[i] == i);
	if (die) {
		r = comm->allgather(comm->ctx, &rank->rank, sizeof(*all), all,
				    30000);
		CHECK(r == -EIO, "%d", r);
		comm->abort(comm->ctx);
	}
}

static void come(struct rank *rank)
{
	const struct trial *t = rank->arg;
	struct sk_comm comm;
	int r;

	if (t->absent && rank->rank == t->absent)
		return;
	if (rank->rank == t->culprit && t->before)
		t->before(rank);
	if (rank->rank == t->culprit && t->instead) {
		t->instead(rank);
		return;
	}
	r = meet(rank, &comm);
	t->ends->results[rank->rank] = r;
	if (r < 0) {
		(void)snprintf(t->ends->why[rank->rank],
			       sizeof(t->ends->why[0]), "%s", sk_error());
		return;
	}
	gather_alike(rank, &comm, t->die);
	sk_comm_meet_free(&comm);
}

static bool nothing_left(const char *at)
{
	char begun[200];

	(void)snprintf(begun, sizeof(begun), "%s.begun", at);
	return access(at, F_OK) && access(begun, F_OK);
}

/* All ranks but one that does something else end with @r and that word. */
static void check_meeting(struct scene *scene, struct trial t, int r,
			  const char *word)
{
	*t.ends = (struct ends){ 0 };
	scene_ranks(scene, "meet", RANKS, come, &t);
	for (int i = 0; i < RANKS; i++) {
		if ((i == t.culprit && (t.instead || t.die)) ||
		    (t.absent && i == t.absent))
			continue;
		CHECK(t.ends->results[i] == r &&
		      (!r || strstr(t.ends->why[i], word)),
		      "rank %d, %s: %d, %s", i, word, t.ends->results[i],
		      t.ends->why[i]);
	}
	CHECK(nothing_left(t.at), "%s", t.at);
}

/* ---- what ranks do instead ---- */

static void stay_away(struct rank *rank)
{
	(void)rank;
}

static void await_end(const struct ends *ends, int i)
{
	while (!__atomic_load_n(&ends->results[i], __ATOMIC_ACQUIRE))
		(void)sk_os_linux()->poll(sk_os_linux(), NULL, 0,
					  sk_until_ms(sk_os_linux(), 5));
}

static void join(const struct rank *rank, uint16_t port)
{
	const struct trial *t = rank->arg;
	struct sk_hello hello = { .magic = SK_HELLO_MAGIC,
		.kind = SK_HELLO_JOIN, .rank = rank->rank, .world = RANKS,
		.place = { .port = port } };
	struct sk_err err = { "" };
	struct sk_answer answer;
	struct sk_spot root;
	int fd;

	CHECK(!sk_seek(sk_os_linux(), t->at,
		       sk_until_ms(sk_os_linux(), 30000), &hello, &fd, &root,
		       &answer, &err), "%s", err.text);
}

/* It is let in, and dies. */
static void join_and_leave(struct rank *rank)
{
	join(rank, 0);
	_exit(0);
}

/* The same, but that it stops: its connections stand. */
static void join_and_stop(struct rank *rank)
{
	const struct trial *t = rank->arg;
	struct sk_err err = { "" };
	struct sk_door door;

	CHECK(!sk_door_open(sk_os_linux(), 0, &door, &err), "%s", err.text);
	join(rank, door.port);
	for (int i = 0; i < RANKS; i++)
		if (i != t->culprit)
			await_end(t->ends, i);
	sk_door_close(&door);
}

static struct sk_notice wait_for_notice(const struct trial *t)
{
	const struct sk_os *os = sk_os_linux();
	uint64_t until = sk_until_ms(os, 30000);
	struct sk_notice notice;

	while (sk_notice_read(os, t->at, &notice)) {
		CHECK(os->now_ns(os) < until);
		(void)os->poll(os, NULL, 0, os->now_ns(os) + 5000000);
	}
	return notice;
}

/* More than there is room for: who says nothing, who says something else, who
 * has another nonce. None of them goes by itself. */
static void bring_strangers(struct rank *rank)
{
	const struct sk_os *os = sk_os_linux();
	uint64_t until = sk_until_ms(os, 30000);
	struct sk_notice notice = wait_for_notice(rank->arg);
	struct sk_hello hello = { .magic = SK_HELLO_MAGIC,
		.kind = SK_HELLO_JOIN, .rank = 1, .world = RANKS + 1 };

	for (int i = 0; i < SK_DOOR_ROOM * 3; i++) {
		int fd;

		CHECK(!sk_seek_connect(os, &notice.places[notice.n - 1],
				       until, &fd));
		if (i % 3 == 1)
			CHECK(!sk_link_send(os, fd, "GET / HTTP/1.0\r\n\r\n",
					    18, until));
		if (i % 3 == 2)
			CHECK(!sk_link_send(os, fd, &hello, sizeof(hello),
					    until));
	}
}

/* For its door and the links to ranks 0 and 1. */
static void leave_three_descriptors(struct rank *rank)
{
	int fd = dup(STDERR_FILENO);
	struct rlimit few = { (rlim_t)fd + 3, (rlim_t)fd + 3 };

	(void)rank;
	CHECK(fd >= 0 && !close(fd) && !setrlimit(RLIMIT_NOFILE, &few));
}

/* Another rank 0 has come since. */
static void replace_notice(struct rank *rank)
{
	const struct trial *t = rank->arg;
	struct sk_notice notice = wait_for_notice(t);
	struct sk_err err = { "" };
	struct stat st;

	CHECK(!sk_notice_put(sk_os_linux(), t->at, &notice, &st, &err));
	while (!t->ends->results[0])
		(void)sk_os_linux()->poll(sk_os_linux(), NULL, 0,
					  sk_until_ms(sk_os_linux(), 5));
	sk_notice_remove(sk_os_linux(), t->at, &st);
}

/* ---- what is there before ---- */

/* Of a rank 0 that was killed: where it was met, nobody is any more. */
static void leave_old_notice(const char *at)
{
	struct sk_notice notice = { 0 };
	struct sk_err err = { "" };
	struct sk_door door;
	struct stat st;
	char begun[200];

	CHECK(!sk_door_open(sk_os_linux(), 0, &door, &err));
	sk_notice_fill(&notice, door.port);
	sk_door_close(&door);
	(void)snprintf(begun, sizeof(begun), "%s.begun", at);
	CHECK(!sk_notice_put(sk_os_linux(), begun, &notice, &st, &err));
	CHECK(!sk_notice_put(sk_os_linux(), at, &notice, &st, &err));
	CHECK(!sk_notice_put(sk_os_linux(), begun, &notice, &st, &err));
}

static void check_stays(const struct trial *t, const char *what)
{
	struct sk_notice notice = { 0 };
	struct sk_err err = { "" };
	struct stat st, before, after;

	CHECK(!lstat(t->at, &before), "%s", what);
	sk_notice_fill(&notice, 1);
	CHECK(sk_notice_put(sk_os_linux(), t->at, &notice, &st, &err) ==
	      -EEXIST, "%s", what);
	CHECK(strstr(err.text, "not there yet"), "%s: %s", what, err.text);
	CHECK(!lstat(t->at, &after) && after.st_ino == before.st_ino, "%s",
	      what);
	CHECK(!unlink(t->at) || !rmdir(t->at), "%s", what);
}

/* A path may be a wrong one: what is there is somebody's. */
static void test_others(const struct trial *t)
{
	int fd = open(t->at, O_WRONLY | O_CREAT | O_EXCL, 0600);

	CHECK(fd >= 0 && write(fd, "precious", 8) == 8 && !close(fd), "file");
	check_stays(t, "a file");
	CHECK(!symlink("nowhere", t->at), "symlink");
	check_stays(t, "a link");
	CHECK(!mkfifo(t->at, 0600), "mkfifo");
	check_stays(t, "a pipe");
	CHECK(!mkdir(t->at, 0700), "mkdir");
	check_stays(t, "a directory");
}

static void test_meetings(struct scene *scene, const struct trial *base)
{
	struct trial t = *base;

	check_meeting(scene, t, 0, "");
	leave_old_notice(t.at);
	check_meeting(scene, t, 0, "");
	t.culprit = 2;
	t.die = true;
	check_meeting(scene, t, 0, "");
	t.die = false;
	t.before = bring_strangers;
	check_meeting(scene, t, 0, "");
	t.culprit = 3;
	t.before = leave_three_descriptors;
	check_meeting(scene, t, -EMFILE, "rank 3: cannot reach rank 2: Too");
	t.culprit = 2;
	t.before = NULL;
	t.world = RANKS + 1;
	check_meeting(scene, t, -EINVAL, "counts 5 ranks, and rank 0 4");
	t.world = 0;
	t.as = 3;
	check_meeting(scene, t, -EEXIST, "rank 3 came twice");
	t.as = 0;
	t.instead = join_and_leave;
	check_meeting(scene, t, -ETIMEDOUT, "rank 2");
	/* Rank 0 waits its time out, to tell the late one. */
	t.timeout_ms = 4000;
	t.absent = 1;
	check_meeting(scene, t, -ETIMEDOUT, "rank 1 ");
	t.absent = 0;
	t.timeout_ms = 4000;
	t.instead = stay_away;
	check_meeting(scene, t, -ETIMEDOUT, "rank 2 did not come");
	t.instead = join_and_stop;
	check_meeting(scene, t, -ETIMEDOUT, "rank 2 did not meet the others");
	t.instead = NULL;
	t.secret = "attempt 2";
	t.other_secret = "attempt 1";
	check_meeting(scene, t, -ETIMEDOUT, "rank ");
	t.instead = stay_away;
	t.culprit = 0;
	check_meeting(scene, t, -ETIMEDOUT, "rank 0 was not met at");
}

/* Who had not come by then waits for the other one. */
static void test_replaced(struct scene *scene, const struct trial *base)
{
	struct trial t = *base;
	const struct ends *e = t.ends;

	t.culprit = 2;
	t.instead = replace_notice;
	t.timeout_ms = 20000;
	*t.ends = (struct ends){ 0 };
	scene_ranks(scene, "meet", RANKS, come, &t);
	CHECK(e->results[0] == -EEXIST &&
	      strstr(e->why[0], "rank 0 came twice"), "%d %s", e->results[0],
	      e->why[0]);
	CHECK(e->results[1] < 0 && e->results[3] < 0 && nothing_left(t.at));
}

static void end_as(struct ends *ends, int i, int r, const char *why)
{
	(void)snprintf(ends->why[i], sizeof(ends->why[0]), "%s", why);
	__atomic_store_n(&ends->results[i], r ? r : 1, __ATOMIC_RELEASE);
}

/* As a rank does it, but it says when it was let in. */
static void come_to_the_first(struct rank *rank)
{
	const struct trial *t = rank->arg;
	const struct sk_os *os = sk_os_linux();
	uint64_t until = sk_until_ms(os, 3600000);
	struct sk_hello hello = { .magic = SK_HELLO_MAGIC,
		.kind = SK_HELLO_JOIN, .rank = 1, .world = RANKS };
	struct sk_err err = { "" };
	struct sk_answer a;
	struct sk_spot root;
	int fd;

	CHECK(!sk_seek(os, t->at, until, &hello, &fd, &root, &a, &err), "%s",
	      err.text);
	end_as(t->ends, RANKS + 1, 0, "");
	CHECK(!sk_link_receive(os, fd, &a, sizeof(a), until));
	(void)os->close(os, fd);
	end_as(t->ends, 1, a.result, a.why);
}

/* Two of rank 0, as where a launcher starts a job twice: the second comes when
 * the first has met rank 1 (t->as) or nobody, and the others after that. Nobody
 * waits for the end of the meeting, which would be that of the test. */
static void come_twice(struct rank *rank)
{
	const struct trial *t = rank->arg;
	struct sk_comm comm;
	int r;

	if (rank->rank == RANKS) {
		(void)wait_for_notice(t);
		if (t->as)
			await_end(t->ends, RANKS + 1);
	} else if (rank->rank == 1 && t->as) {
		come_to_the_first(rank);
		return;
	} else if (rank->rank) {
		await_end(t->ends, 0);
	}
	r = sk_comm_meet(rank->sk, &(struct sk_meeting){
		.at = t->at, .rank = rank->rank % RANKS, .world = RANKS,
		.timeout_ms = 3600000 }, &comm);
	end_as(t->ends, rank->rank, r, sk_error());
	if (!r)
		sk_comm_meet_free(&comm);
}

static void test_twice(struct scene *scene, const struct trial *base)
{
	struct trial t = *base;

	for (t.as = 0; t.as < 2; t.as++) {
		*t.ends = (struct ends){ 0 };
		scene_ranks(scene, "twice", RANKS + 1, come_twice, &t);
		for (int i = 0; i <= RANKS; i++)
			CHECK(i && !t.as ? t.ends->results[i] == 1 :
			      t.ends->results[i] == -EEXIST &&
			      strstr(t.ends->why[i], "rank 0 came twice"),
			      "rank %d, %d: %d %s", i, t.as,
			      t.ends->results[i], t.ends->why[i]);
		CHECK(nothing_left(t.at), "%s", t.at);
	}
}

/* ---- what makes no sense ---- */

static void refuse(struct rank *rank)
{
	const struct { const char *at; int rank, world; const char *word; }
	cases[] = {
		{ NULL, 0, 1, "says where" },
		{ "", 0, 1, "HOST:PORT" },
		{ "host", 0, 1, "HOST:PORT" },
		{ "host", 0, 2, "HOST:PORT" },
		{ "file", 1, 2, "HOST:PORT" },
		{ "::1:70", 0, 1, "HOST:PORT" },
		{ "::1:70", 0, 2, "HOST:PORT" },
		{ "host:0", 0, 1, "HOST:PORT" },
		{ "host:0", 0, 2, "HOST:PORT" },
		{ "host:65536", 0, 1, "HOST:PORT" },
		{ "host:65536", 1, 2, "HOST:PORT" },
		{ "host:7x", 1, 2, "HOST:PORT" },
		{ "/tmp/", 0, 1, "name of a directory" },
		{ "/tmp/", 1, 2, "name of a directory" },
		{ "host:7", 2, 2, "no rank 2 of 2" },
		{ "host:7", -1, 2, "no rank -1 of 2" },
		{ "host:7", 0, 0, "no rank 0 of 0" },
	};
	struct sk_err err = { "" };
	struct sk_comm comm;
	struct sk_door door;
	char port[64];

	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		struct sk_meeting m = { .at = cases[i].at,
			.rank = cases[i].rank, .world = cases[i].world };

		CHECK(sk_comm_meet(rank->sk, &m, &comm) == -EINVAL &&
		      strstr(sk_error(), cases[i].word), "%zu: %s", i,
		      sk_error());
	}
	CHECK(sk_comm_meet(rank->sk, &(struct sk_meeting){
		.at = "/nowhere/at/all", .world = 2 }, &comm) == -ENOENT);
	CHECK(sk_comm_meet(rank->sk, &(struct sk_meeting){
		.at = "[fe80::1]:7", .rank = 1, .world = 2, .timeout_ms = 10,
	}, &comm) == -ETIMEDOUT && strstr(sk_error(), "one link alone"), "%s",
	      sk_error());
	/* Another rank 0 of this node stands there. */
	CHECK(!sk_door_open(sk_os_linux(), 0, &door, &err), "%s", err.text);
	(void)snprintf(port, sizeof(port), "localhost:%u", door.port);
	CHECK(sk_comm_meet(rank->sk, &(struct sk_meeting){
		.at = port, .world = 2 }, &comm) == -EADDRINUSE, "%s",
	      sk_error());
	sk_door_close(&door);
}

/* ---- what rank 0 tells ---- */

static int tell(void *ctx, const char *at)
{
	struct ends *ends = ctx;

	(void)snprintf(ends->told, sizeof(ends->told), "%s", at);
	__atomic_store_n(&ends->has_told, 1, __ATOMIC_RELEASE);
	return 0;
}

static void await(const int *flag)
{
	const struct sk_os *os = sk_os_linux();

	while (!__atomic_load_n(flag, __ATOMIC_ACQUIRE))
		(void)os->poll(os, NULL, 0, sk_until_ms(os, 5));
}

/* Takes so long that who came at once has no patience left. */
static int tell_slowly(void *ctx, const char *at)
{
	struct ends *ends = ctx;

	(void)tell(ctx, at);
	await(&ends->gave_up);
	return 0;
}

/* As a rank that has no answer in time: it is to come again. */
static void give_up_once(struct rank *rank)
{
	const struct trial *t = rank->arg;
	const struct sk_os *os = sk_os_linux();
	struct sk_spot spot = { .family = AF_INET, .ip = { 127, 0, 0, 1 } };
	struct sk_hello hello = { .magic = SK_HELLO_MAGIC, .secret = "s",
		.kind = SK_HELLO_JOIN, .rank = rank->rank, .world = RANKS };
	struct sk_err err = { "" };
	char host[256];
	int fd;

	CHECK(sk_seek_parse(t->ends->told, host, &spot.port, &err) > 0);
	CHECK(!sk_seek_connect(os, &spot, sk_until_ms(os, 30000), &fd));
	CHECK(!sk_link_send(os, fd, &hello, sizeof(hello),
			    sk_until_ms(os, 30000)));
	(void)os->close(os, fd);
	__atomic_store_n(&t->ends->gave_up, 1, __ATOMIC_RELEASE);
}

static int tell_nobody(void *ctx, const char *at)
{
	(void)ctx;
	return at[0] ? -EPIPE : 0;
}

/* With the port that it told; @t->at is put before that, as places that
 * are not rank 0's. No handle is needed. */
static void come_where_told(struct rank *rank)
{
	const struct trial *t = rank->arg;
	struct sk_meeting m = { .at = "localhost:0", .secret = "s",
		.rank = rank->rank, .world = RANKS, .timeout_ms = 30000,
		.tell = rank->rank ? NULL : t->before ? tell_slowly : tell,
		.tell_ctx = t->ends,
		.interfaces = rank->rank ? NULL : "none0,lo" };
	char at[sizeof(t->ends->told) + 100];
	struct sk_comm comm;

	if (rank->rank) {
		await(&t->ends->has_told);
		if (t->before && rank->rank == t->culprit)
			t->before(rank);
		(void)snprintf(at, sizeof(at), "%s%s", t->at, t->ends->told);
		m.at = at;
	}
	CHECK(!sk_comm_meet(NULL, &m, &comm), "%s: %s", m.at, sk_error());
	gather_alike(rank, &comm, false);
	sk_comm_meet_free(&comm);
}

/* The second is of a net for documents: nobody is there to refuse. */
static void test_told(struct scene *scene, const struct trial *base)
{
	const char *const before[] = { "", "no.such.name.invalid:1,localhost:1,",
				       "192.0.2.77:9," };
	struct trial t = *base;

	for (size_t i = 0; i < sizeof(before) / sizeof(*before); i++) {
		t.at = before[i];
		*t.ends = (struct ends){ 0 };
		scene_ranks(scene, "told", RANKS, come_where_told, &t);
		CHECK(!strncmp(t.ends->told, "127.0.0.1:", 10) &&
		      !strstr(t.ends->told, ":0"), "%s", t.ends->told);
	}
	t.at = "";
	t.culprit = 1;
	t.before = give_up_once;
	*t.ends = (struct ends){ 0 };
	scene_ranks(scene, "slow", RANKS, come_where_told, &t);
}

/* Loopback is the last, also where the host is said to be that. */
static void check_order(struct rank *rank)
{
	const struct sk_os *os = sk_os_linux();
	struct sk_notice all, of_lo, first;
	char text[SK_NOTICE_TEXT];

	(void)rank;
	sk_notice_fill_for(os, "localhost", NULL, 7, &all);
	sk_notice_fill_for(os, NULL, "lo", 7, &of_lo);
	CHECK(all.n >= of_lo.n && of_lo.n);
	CHECK(!memcmp(&all.places[all.n - of_lo.n], of_lo.places,
		      of_lo.n * sizeof(of_lo.places[0])));
	/* Each of the others comes first where it is asked for. */
	for (uint32_t i = 0; i + of_lo.n < all.n; i++) {
		struct sk_notice one = { .n = 1, .places = { all.places[i] } };

		sk_notice_print(&one, text, sizeof(text));
		*strrchr(text, ':') = '\0';
		if (text[0] == '[')
			memmove(text, text + 1, strcspn(text + 1, "]") + 1);
		text[strcspn(text, "]")] = '\0';
		sk_notice_fill_for(os, text, NULL, 7, &first);
		CHECK(first.n == all.n && !memcmp(&first.places[0],
						  &one.places[0],
						  sizeof(one.places[0])),
		      "%s", text);
	}
	sk_notice_fill_for(os, "localhost", "lo0,l,", 7, &first);
	CHECK(!first.n);
}

static void refuse_to_tell(struct rank *rank)
{
	struct sk_meeting m = { .at = "*:0", .world = 2, .timeout_ms = 30000,
				.tell = tell_nobody };
	struct sk_comm comm;

	CHECK(sk_comm_meet(rank->sk, &m, &comm) == -EPIPE);
	m.interfaces = "none0";
	CHECK(sk_comm_meet(rank->sk, &m, &comm) == -EADDRNOTAVAIL &&
	      strstr(sk_error(), "none0"), "%s", sk_error());
	m.at = "host:7,other:7";
	CHECK(sk_comm_meet(rank->sk, &m, &comm) == -EINVAL &&
	      strstr(sk_error(), "at one port"), "%s", sk_error());
	m.at = "/tmp/x";
	CHECK(sk_comm_meet(rank->sk, &m, &comm) == -EINVAL &&
	      strstr(sk_error(), "is for ports"), "%s", sk_error());
	m.at = "host:7,other:0";
	m.rank = 1;
	CHECK(sk_comm_meet(rank->sk, &m, &comm) == -EINVAL &&
	      strstr(sk_error(), "is 0"), "%s", sk_error());
}

/* A fork's child has no comm, and does not end its parent's. */
static void fork_one(struct rank *rank)
{
	struct sk_comm comm;
	int status, out[RANKS];
	pid_t pid;

	CHECK(!meet(rank, &comm), "%s", sk_error());
	pid = fork();
	CHECK(pid >= 0);
	if (!pid) {
		comm.abort(comm.ctx);
		_exit(comm.allgather(comm.ctx, out, sizeof(*out), out,
				     1000) != -EOWNERDEAD);
	}
	CHECK(waitpid(pid, &status, 0) == pid && !status);
	CHECK(!comm.allgather(comm.ctx, &rank->rank, sizeof(*out), out,
			      30000));
	sk_comm_meet_free(&comm);
}

/* Nobody has it at the moment, and it was given to us. */
static uint16_t free_port(void)
{
	struct sk_err err = { "" };
	struct sk_door door;

	CHECK(!sk_door_open(sk_os_linux(), 0, &door, &err), "%s", err.text);
	sk_door_close(&door);
	return door.port;
}

/* Where there is IPv6. */
static void test_ipv6(struct scene *scene, const struct trial *base)
{
	const struct sk_os *os = sk_os_linux();
	struct sk_spot spot = { .family = AF_INET6, .ip = { [15] = 1 } };
	struct trial t = *base;
	struct sk_err err = { "" };
	struct sk_door door;
	char at[64];
	int fd, r;

	CHECK(!sk_door_open(os, 0, &door, &err), "%s", err.text);
	spot.port = door.port;
	r = sk_seek_connect(os, &spot, sk_until_ms(os, 1000), &fd);
	sk_door_close(&door);
	if (r < 0)
		return;
	(void)os->close(os, fd);
	(void)snprintf(at, sizeof(at), "[::1]:%u", door.port);
	t.at = at;
	check_meeting(scene, t, 0, "");
}

int main(int argc, char **argv)
{
	struct ends *ends = mmap(NULL, sizeof(*ends), PROT_READ | PROT_WRITE,
				 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	struct scene scene, nodes[2];
	char file[96], port[64];
	struct trial base = { .at = file, .culprit = NOBODY, .ends = ends };

	CHECK(ends != MAP_FAILED);
	scene_open(&scene, argc, argv);
	scene_add_nodes(&scene, nodes, 2, true);
	(void)snprintf(file, sizeof(file), "%s/meeting", scene.dir);
	(void)snprintf(port, sizeof(port), "localhost:%u", free_port());
	restore_over(&scene, "file", file, ends);
	CHECK(nothing_left(file));
	restore_over(&scene, "port", port, ends);
	scene_ranks_killed(&scene, "missed", RANKS, miss_one, &base);
	test_ipv6(&scene, &base);
	test_told(&scene, &base);
	scene_ranks(&scene, "order", 1, check_order, &base);
	scene_ranks(&scene, "silent", 1, refuse_to_tell, &base);
	test_others(&base);
	test_meetings(&scene, &base);
	test_replaced(&scene, &base);
	test_twice(&scene, &base);
	scene_ranks(&scene, "fork", RANKS, fork_one, &base);
	scene_ranks(&scene, "refuse", 1, refuse, &base);
	scene_close(&scene);
	CHECK(!munmap(ends, sizeof(*ends)));
	return 0;
}
