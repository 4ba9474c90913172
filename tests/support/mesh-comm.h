/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A comm of sockets between the processes of a test: made before they are
 * forked, joined by each. What the library asks of a comm is checked.
 */
#ifndef SK_TESTS_MESH_COMM_H
#define SK_TESTS_MESH_COMM_H

#include <stdbool.h>
#include <sys/types.h>

#include "shardkeep.h"

struct mesh_comm {
	int world, rank;
	int *fds;		/* [a * world + b]: a's end towards b */
	int failed;		/* the first error; then all fail */
	bool aborted;
	/* For tests of what goes wrong: */
	int calls;		/* so far */
	int die_at, stop_at;	/* the call in which it does; 0: never */
	int kill_at;		/* the call before which it kills */
	pid_t victim;		/* this process */
	unsigned slow_ms;	/* each call takes so much longer */
	int odd_at;		/* the call that fails as those of MPI do */
	int lose_at;		/* the call that the others had, and it has
				 * not, for all it can tell */
	bool lies;		/* flips a bit of each large part it sends */
	/* What passed, between which others: [rank], bytes of parts. */
	uint64_t *sent;
};

/** -1: no sockets. */
int mesh_comm_new(struct mesh_comm *mesh, int world);
/** In the process of that rank. The comm's ctx is @mesh. */
void mesh_comm_join(struct mesh_comm *mesh, int rank, struct sk_comm *ret);
/** In any process, once for each of the above. */
void mesh_comm_free(struct mesh_comm *mesh);

#endif
