/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Trainers that were started with little: what the system refuses them is an
 * error with its sentence, never their end, and once they have more it works.
 * Argument: path of shardkeepd.
 */
#include "libclient/restore/common.h"

#include <errno.h>
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

int main(int argc, char **argv)
{
	struct scene scene;

	scene_open(&scene, argc, argv);
	scene_ranks(&scene, "file-size", 2, no_file_size, NULL);
	scene_close(&scene);
	return 0;
}
