/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Trainers that were started with little: what the system refuses them is an
 * error with its sentence, never their end, and once they have more it works.
 * Argument: path of shardkeepd.
 */
#include "libclient/restore/common.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static void limit(int what, rlim_t n)
{
	struct rlimit limit;

	CHECK(!getrlimit(what, &limit));
	limit.rlim_cur = n < limit.rlim_max ? n : limit.rlim_max;
	CHECK(!setrlimit(what, &limit));
}

/* Whoever writes more to a file than that is ended by a signal. */
static void no_file_size(struct rank *rank)
{
	char place[128];
	struct sk_meeting meeting = { .at = place, .rank = rank->rank,
				      .world = rank->world };
	struct sk_comm comm;

	(void)snprintf(place, sizeof(place), "%s/met", rank->scene->dir);
	rank_model(rank, 60);
	limit(RLIMIT_FSIZE, 0);
	CHECK(sk_prepare(rank->state, 60000) == -EFBIG, "%s", sk_error());
	CHECK(strstr(sk_error(), "cannot hand over"), "%s", sk_error());
	CHECK(sk_snapshot(rank->state, 1, NULL) == -EFBIG, "%s", sk_error());
	CHECK(sk_restore(rank->state, SK_LATEST, NULL, NULL, NULL) == -EFBIG,
	      "%s", sk_error());
	if (!rank->rank) {	/* alone, as it does not get that far */
		meeting.timeout_ms = 1;
		CHECK(sk_comm_meet(rank->sk, &meeting, &comm) == -EFBIG, "%s",
		      sk_error());
	}
	limit(RLIMIT_FSIZE, RLIM_INFINITY);
	rank_write(rank, 1);
	rank_snapshot(rank, 1, SK_COMPLETE);
	limit(RLIMIT_FSIZE, 0);	/* what is registered needs no more */
	rank_snapshot(rank, 2, SK_COMPLETE);
	limit(RLIMIT_FSIZE, RLIM_INFINITY);
	rank_write(rank, 9);
	CHECK(!rank_restore(rank, 2, 0, NULL), "%s", sk_error());
	CHECK(!rank_wrong(rank, 1, rank->rank));
}

static void print_loss(void)
{
	static const char text[] = "step 7, loss 0.07\n";

	for (int fd = 0; fd < 3; fd++)
		CHECK(write(fd, text, sizeof(text) - 1) < 0 && errno == EBADF,
		      "%d is open", fd);
}

/* What it prints goes nowhere, and not to the agent. */
static void no_standard_files(struct rank *rank)
{
	rank_model(rank, 60);
	for (int64_t step = 1; step < 5; step++) {
		rank_write(rank, step);
		CHECK(!sk_snapshot(rank->state, step,
				   &(struct sk_snapshot_options){
			.wait_ms = 60000 }), "%s", sk_error());
		print_loss();
		CHECK(!sk_wait(rank->state, step, SK_COMPLETE, 60000), "%s",
		      sk_error());
	}
	rank_write(rank, 99);
	CHECK(!rank_restore(rank, SK_LATEST, 0, NULL), "%s", sk_error());
	CHECK(!rank_wrong(rank, 4, rank->rank));
	print_loss();
}

/* Checks still have where to say what is wrong. */
static void close_standard_files(void)
{
	int high = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 100);

	CHECK(high >= 100);
	stderr = fdopen(high, "w");
	CHECK(stderr && !setvbuf(stderr, NULL, _IONBF, 0));
	for (int fd = 0; fd < 3; fd++)
		(void)close(fd);
}

int main(int argc, char **argv)
{
	struct scene scene;

	scene_open(&scene, argc, argv);
	scene_ranks(&scene, "file-size", 2, no_file_size, NULL);
	close_standard_files();
	scene_ranks(&scene, "printing", 2, no_standard_files, NULL);
	scene_close(&scene);
	return 0;
}
