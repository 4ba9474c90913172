/* SPDX-License-Identifier: Apache-2.0 */
/* What lists say of what is under way: images that are being filled, how far a
 * flush has come, and jobs that come and go while all are listed. Argument:
 * path of shardkeepd. */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/rig.h"

#define WORLD 2
#define JOB "under-way"
#define STAY 250		/* jobs: a list of them takes portions */
#define LISTS 20

static void open_all(struct rank *r, const struct rig *rig, int64_t rows)
{
	for (int i = 0; i < WORLD; i++) {
		const struct rank_options o = {
			.job = JOB, .rank = i, .world = WORLD, .rows = rows,
			.flush_every = UINT32_MAX };

		CHECK_STATUS(rank_open(&r[i], rig, &o), 0, &r[i].msg);
	}
}

static void close_all(struct rank *r)
{
	for (int i = 0; i < WORLD; i++)
		rank_close(&r[i]);
}

static void check_filling(const struct sk_wire_image *image,
			  const struct rank *r)
{
	CHECK(image->state == SK_IMAGE_FILLING, "state %d", image->state);
	CHECK(image->place == SK_PLACE_MEMORY && image->id.rank == r->rank &&
	      image->id.step == 5 && image->id.run == r->run &&
	      !strcmp(image->id.job, JOB), "rank %d", image->id.rank);
	CHECK(image->bytes == r->layouts[0]->image_bytes, "its bytes");
	CHECK(!memcmp(&image->digest, &r->layouts[0]->digest,
		      sizeof(image->digest)), "its layout");
}

static void test_filling(const struct rig *rig)
{
	struct sk_wire_image *images;
	struct rank r[WORLD];
	size_t n;
	int slot;

	open_all(r, rig, 0);
	slot = rank_slot(&r[1], 5, 0);
	CHECK(slot >= 0, "%s", rig_why(&r[1].msg));
	images = list_images(r[0].sock, JOB, 5, &n);
	CHECK(n == 1, "%zu images", n);
	check_filling(&images[0], &r[1]);
	free(images);
	/* Of another step they are none of its images. */
	rank_snapshot(&r[0], 6);
	images = list_images(r[0].sock, JOB, 6, &n);
	CHECK(n == 1 && images[0].state == SK_IMAGE_SEALED &&
	      !images[0].id.rank, "%zu images", n);
	free(images);
	rank_fill(&r[1], slot, 5);
	CHECK(rank_seal(&r[1], slot, 5) >= 0, "%s", rig_why(&r[1].msg));
	images = list_images(r[0].sock, JOB, 5, &n);
	CHECK(n == 1 && images[0].state == SK_IMAGE_SEALED, "%zu images", n);
	free(images);
	close_all(r);
}

/* At a rate that takes a while for all of it. */
static void test_flushing(struct rig *rig)
{
	struct sk_wire_snapshot *s;
	struct rank r[WORLD];
	struct sk_msg msg;
	size_t n;
	uint64_t done, all;

	open_all(r, rig, 2048);
	for (int i = 0; i < WORLD; i++)
		rank_snapshot(&r[i], 7);
	CHECK_STATUS(manage(r[0].sock, SK_MSG_FLUSH, JOB, 7, 0, &msg), 0,
		     &msg);
	do {
		s = list_snapshots(r[0].sock, JOB, &n);
		CHECK(n == 1, "%zu snapshots", n);
		CHECK(!(s->flags & SK_SNAP_DURABLE), "it was not seen");
		done = s->flushed_bytes;
		all = s->bytes_memory;
		free(s);
	} while (!done);
	CHECK(done <= all, "%llu of %llu bytes", (unsigned long long)done,
	      (unsigned long long)all);
	close_all(r);
}

static void come(const struct rig *rig, const char *job, bool stays)
{
	const struct rank_options o = { .job = job, .world = 1, .rows = 1 };
	struct rank r;

	CHECK_STATUS(rank_open(&r, rig, &o), 0, &r.msg);
	rank_snapshot(&r, 1);
	CHECK_STATUS(rank_unregister(&r), 0, &r.msg);
	if (!stays)
		CHECK_STATUS(manage(r.sock, SK_MSG_EVICT, job, 1,
				    SK_EVICT_FORCE, &r.msg), 0, &r.msg);
	rank_close(&r);
}

/* Before, between and behind those that stay. */
static pid_t come_and_go(const struct rig *rig)
{
	static const char *const kinds[] = { "a", "stay1", "z" };
	pid_t pid = fork();
	char name[32];

	CHECK(pid >= 0, "fork");
	if (pid)
		return pid;
	for (unsigned i = 0;; i++) {
		(void)snprintf(name, sizeof(name), "%s-%u", kinds[i % 3],
			       i % 7);
		come(rig, name, false);
	}
}

static void check_all(int sock)
{
	struct sk_wire_snapshot *s;
	int stay = 0;
	size_t n;

	s = list_snapshots(sock, "", &n);
	for (size_t i = 0; i < n; i++) {
		int order = i ? strcmp(s[i].id.job, s[i - 1].id.job) : -1;

		CHECK(order < 0 || (!order && s[i].id.step <
					      s[i - 1].id.step),
		      "%s after %s", s[i].id.job, s[i - 1].id.job);
		stay += !strchr(s[i].id.job, '-');
	}
	CHECK(stay == STAY, "%d of %d", stay, STAY);
	free(s);
}

static void test_jobs_come_and_go(const struct rig *rig)
{
	int sock = rig_connect(rig), status;
	char name[32];
	pid_t pid;

	for (int i = 0; i < STAY; i++) {
		(void)snprintf(name, sizeof(name), "stay%d", i);
		come(rig, name, true);
	}
	pid = come_and_go(rig);
	for (int i = 0; i < LISTS; i++)
		check_all(sock);
	CHECK(kill(pid, SIGKILL) == 0 && waitpid(pid, &status, 0) == pid &&
	      WIFSIGNALED(status), "it ended by itself");
	close(sock);
}

int main(int argc, char **argv)
{
	struct rig rig;

	CHECK(argc == 2, "usage: listed AGENT");
	rig_init(&rig, argv[1]);
	rig_start(&rig, NULL);
	test_filling(&rig);
	test_jobs_come_and_go(&rig);
	CHECK(!rig_stop(&rig), "the agent");
	rig_start(&rig, "--store", rig.store, "--flush-rate", "1M",
		  "--stop-timeout", "0", NULL);
	test_flushing(&rig);
	(void)kill(rig.agent, SIGKILL);
	CHECK(rig_wait(&rig) == 128 + SIGKILL, "the agent");
	rig_remove(&rig);
	return 0;
}
