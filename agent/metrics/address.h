/* SPDX-License-Identifier: Apache-2.0 */
/* Where figures are served: a port of this machine, or a socket's path. */
#ifndef SK_AGENT_METRICS_ADDRESS_H
#define SK_AGENT_METRICS_ADDRESS_H

#include <stdbool.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "base/error.h"
#include "base/os.h"

struct address {
	union {
		struct sockaddr any;
		struct sockaddr_storage room;
		struct sockaddr_un local;
	};
	socklen_t bytes;
};

/**
 * PORT, 127.0.0.1:PORT, localhost:PORT, [::1]:PORT, or a path that begins with
 * a slash; port 0: any that is free. No name is looked up. -EINVAL with a
 * sentence; -EPERM: others than this machine reach it, and @public is not
 * said.
 */
int address_parse(const char *text, bool public_too, struct address *ret,
		  struct sk_err *err);
/** Listens there; the descriptor, the caller's. A path has mode 0600, and one
 * where nobody answers any more is taken over. -EADDRINUSE: it is taken. With
 * a sentence. */
int address_listen(const struct sk_os *os, const struct address *at,
		   struct sk_err *err);
/** Where @sock listens, for people: "http://127.0.0.1:9477/metrics". */
void address_format(const struct sk_os *os, int sock, char *ret, size_t size);
/** Removes a socket's path. */
void address_leave(const struct sk_os *os, const struct address *at);

#endif
