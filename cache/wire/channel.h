/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Channel: how messages travel. AF_UNIX, SOCK_SEQPACKET, one message a
 * packet; descriptors by SCM_RIGHTS.
 *
 * Thread-safety: as the socket's; two threads that receive from one socket get
 * each other's messages.
 */
#ifndef SK_CACHE_WIRE_CHANNEL_H
#define SK_CACHE_WIRE_CHANNEL_H

#include "base/os.h"
#include "wire/message.h"

/**
 * Sends one message with @n_fds descriptors (they stay the caller's); sets
 * magic, bytes, n_fds, and the version where that is 0: ours. Never raises
 * SIGPIPE.
 * Errors: -EAGAIN (non-blocking), -EPIPE, -ECONNRESET, ...
 */
int sk_channel_send(const struct sk_os *os, int sock, struct sk_msg *msg,
		    const int *fds, int n_fds);

/** 0 when there is something to receive; -ETIMEDOUT, on the clock of
 * os->now_ns(). */
int sk_channel_wait(const struct sk_os *os, int sock, uint64_t until_ns);

/** Most descriptors that the kernel lets a packet carry (SCM_MAX_FD). */
#define SK_CHANNEL_FDS 253

/**
 * Receives one message and its descriptors (close-on-exec, the caller's now;
 * *ret_n_fds of them, at most SK_MSG_FDS). Blocks as the socket does.
 * A message of the wrong size, magic, reserved bytes or number of descriptors,
 * or of a version that is none of ours and no HELLO: -EPROTO, all received
 * descriptors closed. Whether it is the connection's is the caller's to check.
 * Errors: -EAGAIN, -ECONNRESET the other side closed, -EPROTO; -EMFILE its
 * descriptors are more than this process may open: they are closed, and the
 * channel is in order.
 */
int sk_channel_recv(const struct sk_os *os, int sock, struct sk_msg *ret_msg,
		    int *ret_fds, int *ret_n_fds);

/**
 * The same from a stranger, whose descriptors may hang whoever closes them:
 * the caller gets all that came, with -EPROTO too. *ret_n_fds is always set,
 * and there is room for SK_CHANNEL_FDS: of more room than a packet can need
 * nothing is left to the kernel to close here and now.
 */
int sk_channel_recv_all(const struct sk_os *os, int sock,
			struct sk_msg *ret_msg, int *ret_fds,
			int *ret_n_fds);

#endif
