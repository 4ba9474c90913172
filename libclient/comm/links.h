/* SPDX-License-Identifier: Apache-2.0 */
/* Sockets between the ranks of a job, one to each other rank, and what a comm
 * does over them. Every call has a deadline; none raises SIGPIPE. */
#ifndef SK_LIBCLIENT_COMM_LINKS_H
#define SK_LIBCLIENT_COMM_LINKS_H

#include "conn/client.h"

struct sk_half;

struct sk_links {
	struct sk *sk;
	int32_t rank, world;
	bool failed;		/* then every call fails */
	int *fds;		/* [world], non-blocking; -1: none */
	struct sk_half *halves;	/* room for two per rank */
	struct pollfd *polls;	/* as many */
};

/** Without any link yet. -ENOMEM. */
int sk_links_new(struct sk *sk, int32_t rank, int32_t world,
		 struct sk_links **ret_links);
/** Closes them all. NULL is nothing. */
void sk_links_free(struct sk_links *links);

/** The comm of @links, which are its ctx: allgather, exchange, abort. */
void sk_links_comm(struct sk_links *links, struct sk_comm *ret_comm);

/** All @bytes of one socket, by then. -ECONNRESET: it was closed. */
int sk_link_send(const struct sk_os *os, int fd, const void *data,
		 size_t bytes, uint64_t until_ns);
int sk_link_receive(const struct sk_os *os, int fd, void *ret_data,
		    size_t bytes, uint64_t until_ns);

#endif
