/* SPDX-License-Identifier: Apache-2.0 */
/* Sockets between the ranks of a job, one to each other rank, and what a comm
 * does over them. Every call has a deadline; none raises SIGPIPE. One that has
 * failed shuts them down, so that no other rank waits for this one. */
#ifndef SK_LIBCLIENT_COMM_LINKS_H
#define SK_LIBCLIENT_COMM_LINKS_H

#include <stdbool.h>

#include "conn/conn.h"
#include "shardkeep.h"

struct sk_half;

struct sk_links {
	const struct sk_os *os;
	pid_t pid;		/* whose they are: fork is noticed */
	int32_t rank, world;
	bool failed;		/* then every call fails; atomic */
	int32_t missed;		/* for whom the call that failed waited; -1:
				 * nobody */
	bool passes;		/* rank 0 passed on what others said in it */
	int *fds;		/* [world], non-blocking; -1: none */
	struct sk_half *halves;	/* room for two per rank */
	struct pollfd *polls;	/* [world] */
	short *events;		/* [world]; 0 between two calls */
};

/** Without any link yet. -ENOMEM. */
int sk_links_new(const struct sk_os *os, int32_t rank, int32_t world,
		 struct sk_links **ret_links);
/** Closes them all. NULL is nothing. */
void sk_links_free(struct sk_links *links);

/** The comm of @links, which are its ctx: allgather, exchange, abort. */
void sk_links_comm(struct sk_links *links, struct sk_comm *ret_comm);
/** Those of a comm that the above made; NULL of any other. */
struct sk_links *sk_links_of(const struct sk_comm *comm);

/** @data of rank @root, on all, by way of each other: the words that a root
 * has for many do not all leave by its link. Else as a comm's. */
int sk_links_broadcast(struct sk_links *links, int32_t root, void *data,
		       size_t bytes, uint32_t timeout_ms);
/** As sk_comm.abort; from any thread. */
void sk_links_abort(struct sk_links *links);
/** Whether no call can succeed any more, on this rank. */
bool sk_links_failed(const struct sk_links *links);

/** For whom the call of that comm that failed waited; -1: nobody, or it is no
 * comm of links. *ret_passes: it is rank 0, which may itself wait for another,
 * for words of many ranks go by it. */
int32_t sk_links_missed(const struct sk_comm *comm, bool *ret_passes);

/** All @bytes of one socket, by then. -ECONNRESET: it was closed. */
int sk_link_send(const struct sk_os *os, int fd, const void *data,
		 size_t bytes, uint64_t until_ns);
int sk_link_receive(const struct sk_os *os, int fd, void *ret_data,
		    size_t bytes, uint64_t until_ns);

#endif
