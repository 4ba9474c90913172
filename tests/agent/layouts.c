/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What descriptions of tensors take: counted, bounded for each user, and
 * given back when their ranks have gone or described themselves anew.
 */
#include <errno.h>
#include <grp.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/rig.h"
#include "layout/recall.h"

#define TENSORS 5000
#define RANKS 8
#define RESIDENT_MOST_KIB (long)(SK_RECALL_BYTES / 1024 + 65536)
#define NOBODY 65534

/* Sanitizers keep what is freed. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define OWN_HEAP true
#define LIVES 8
#else
#define OWN_HEAP false
#define LIVES 50
#endif

static struct rank_options many(const char *job, unsigned salt)
{
	return (struct rank_options){ .job = job, .world = 1, .rows = 1,
				      .more = TENSORS, .salt = salt };
}

static double layouts(const struct rank *r)
{
	return stat_value(r->sock, "shardkeep_layouts_bytes");
}

static double remembered(const struct rank *r)
{
	return stat_value(r->sock, "shardkeep_layouts_remembered_bytes");
}

/* Described anew again and again, one layout counts. */
static void test_replaced(struct rig *rig)
{
	struct rank_options o = many("anew", 0);
	struct rank r;
	double one;

	CHECK_STATUS(rank_open(&r, rig, &o), 0, &r.msg);
	one = layouts(&r);
	CHECK(one > (double)r.layouts[0]->header_bytes, "%.0f bytes", one);
	for (o.salt = 1; o.salt < 10; o.salt++) {
		CHECK_STATUS(rank_again(&r, &o), 0, &r.msg);
		CHECK(layouts(&r) < 1.5 * one, "%.0f bytes, of one %.0f",
		      layouts(&r), one);
	}
	rank_close(&r);
}

static long resident_kib(pid_t pid)
{
	char path[64], line[128];
	long kib = 0;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
	f = fopen(path, "re");
	CHECK(f, "fopen");
	while (fgets(line, sizeof(line), f))
		(void)sscanf(line, "VmRSS: %ld", &kib);
	fclose(f);
	return kib;
}

/* One after another, all others: what is remembered is bounded, and the rest
 * goes back to the system. */
static void test_ended(struct rig *rig)
{
	struct rank_options o = many("ended", 100);
	struct rank watcher, r;
	double one = 0;

	CHECK_STATUS(rank_open(&watcher, rig, &(struct rank_options){
		.job = "watcher", .world = 1, .rows = 1 }), 0, &watcher.msg);
	for (int life = 0; life < LIVES; life++, o.salt++) {
		CHECK_STATUS(rank_open(&r, rig, &o), 0, &r.msg);
		one = one ? one : layouts(&watcher);
		rank_close(&r);
	}
	/* The last one's free slots wait for a successor. */
	AWAIT(layouts(&watcher) < 1.5 * one, "%.0f bytes, of one %.0f",
	      layouts(&watcher), one);
	CHECK(remembered(&watcher) > 1e6 &&
	      remembered(&watcher) <= SK_RECALL_BYTES,
	      "%.0f bytes remembered", remembered(&watcher));
	AWAIT(OWN_HEAP || (layouts(&watcher) > 0 &&
			   resident_kib(rig->agent) < RESIDENT_MOST_KIB),
	      "%ld KiB are resident", resident_kib(rig->agent));
	rank_close(&watcher);
}

static bool is_within_bound(struct rank *r, const struct rig *rig,
			    const struct rank_options *o)
{
	if (rank_open(r, rig, o) != -EDQUOT)
		return true;
	rank_close(r);
	return false;
}

/* A user has so much and no more, until some of it ends. */
static void be_nobody(struct rig *rig)
{
	struct rank_options o = many("a", 1), p = many("b", 2);
	struct rank first, second;

	CHECK(setgroups(0, NULL) == 0 && setgid(NOBODY) == 0 &&
	      setuid(NOBODY) == 0, "setuid");
	CHECK_STATUS(rank_open(&first, rig, &o), 0, &first.msg);
	/* As who restored and then wants slots: nothing more is taken. */
	CHECK_STATUS(rank_again(&first, &o), 0, &first.msg);
	CHECK_STATUS(rank_open(&second, rig, &p), -EDQUOT, &second.msg);
	CHECK(strstr(rig_why(&second.msg), "--user-layouts"), "%s",
	      rig_why(&second.msg));
	rank_close(&second);
	rank_close(&first);
	AWAIT(is_within_bound(&second, rig, &p), "it is never let in");
	CHECK_STATUS(second.msg.status, 0, &second.msg);
	rank_close(&second);
	_exit(0);
}

static void test_bound(struct rig *rig)
{
	struct rank_options o = many("a", 1);
	struct rank r, s;
	int status;
	pid_t pid;

	if (geteuid() == 0) {
		pid = fork();
		CHECK(pid >= 0, "fork");
		if (!pid)
			be_nobody(rig);
		CHECK(waitpid(pid, &status, 0) == pid && status == 0,
		      "status %#x", status);
	}
	/* The agent's own user is not bounded. */
	CHECK_STATUS(rank_open(&r, rig, &o), 0, &r.msg);
	o.job = "b";
	CHECK_STATUS(rank_open(&s, rig, &o), 0, &s.msg);
	rank_close(&r);
	rank_close(&s);
}

static void save_all(const struct rig *rig)
{
	struct rank_options o = many("opened", 0);
	struct rank r[RANKS];

	o.world = RANKS;
	for (o.rank = 0; o.rank < RANKS; o.rank++)
		CHECK_STATUS(rank_open(&r[o.rank], rig, &o), 0,
			     &r[o.rank].msg);
	for (int i = 0; i < RANKS; i++)
		rank_snapshot(&r[i], 1);
	CHECK_STATUS(rank_wait(&r[0], 1, 3, WAIT_MS), 0, &r[0].msg);
	for (int i = 0; i < RANKS; i++)
		rank_close(&r[i]);
}

static void open_one(int sock, const struct sk_wire_image *image,
		     uint32_t flags)
{
	struct sk_msg msg = { .type = SK_MSG_OPEN, .body.open = {
		.image = image->image, .place = image->place,
		.flags = flags } };
	int fds[SK_MSG_FDS], n = 0;

	CHECK_STATUS(rig_call(sock, &msg, NULL, 0, fds, &n), 0, &msg);
	while (n > 0)
		close(fds[--n]);
}

/* A rank may take its tensors out of thousands of images: for their checksums
 * no layout is needed, and else one of what describes the same is remembered.
 */
static void test_opened(const struct rig *rig)
{
	struct sk_wire_image *images;
	struct rank r = { .sock = rig_connect(rig) };
	double few;
	size_t n;

	images = list_images(r.sock, "opened", 1, &n);
	CHECK(n == RANKS, "%zu images", n);
	few = remembered(&r);
	for (size_t i = 0; i < n; i++)
		open_one(r.sock, &images[i], SK_OPEN_SUMS);
	CHECK(remembered(&r) == few, "%.0f bytes, then %.0f", few,
	      remembered(&r));
	for (size_t i = 0; i < 2; i++)
		open_one(r.sock, &images[i], 0);
	few = remembered(&r);
	for (size_t i = 2; i < n; i++)
		open_one(r.sock, &images[i], 0);
	CHECK(few > 0 && remembered(&r) <= few, "%.0f bytes, then %.0f", few,
	      remembered(&r));
	free(images);
	close(r.sock);
}

int main(int argc, char **argv)
{
	struct rig rig;

	rig_init(&rig, argc > 1 ? argv[1] : NULL);
	rig_start(&rig, "--memory", "256M", "--log-level", "error", NULL);
	test_replaced(&rig);
	test_ended(&rig);
	CHECK(rig_stop(&rig) == 0, "exit status");
	rig_start(&rig, "--memory", "256M", "--log-level", "error",
		  "--user-layouts", "7M", NULL);
	test_bound(&rig);
	CHECK(rig_stop(&rig) == 0, "exit status");
	for (int life = 0; life < 2; life++) {
		rig_start(&rig, "--memory", "256M", "--log-level", "error",
			  "--store", rig.store, NULL);
		if (life)
			test_opened(&rig);
		else
			save_all(&rig);
		CHECK(rig_stop(&rig) == 0, "exit status");
	}
	rig_remove(&rig);
	return 0;
}
