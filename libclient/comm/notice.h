/* SPDX-License-Identifier: Apache-2.0 */
/* The file by which rank 0 says where it is met. It is there while it waits,
 * and goes with the meeting; one of a rank that was killed is replaced. */
#ifndef SK_LIBCLIENT_COMM_NOTICE_H
#define SK_LIBCLIENT_COMM_NOTICE_H

#include <stdbool.h>
#include <sys/socket.h>

#include "comm/door.h"

#define SK_NOTICE_PLACES 16
/* What sk_notice_print() needs for all of them. */
#define SK_NOTICE_TEXT (SK_NOTICE_PLACES * 56)

struct sk_notice {
	uint64_t magic;
	uint8_t nonce[16];
	uint32_t n, reserved;
	struct sk_spot places[SK_NOTICE_PLACES];
};

/** All addresses of this node with @port, loopback last. */
void sk_notice_fill(struct sk_notice *notice, uint16_t port);
/** The same; those by which this node reaches @host are the first (NULL: none
 * is), and only those of the @interfaces ("eth0,ib0"; NULL: of all). */
void sk_notice_fill_for(const struct sk_os *os, const char *host,
			const char *interfaces, uint16_t port,
			struct sk_notice *notice);
/** "10.0.0.1:4711,[fd00::1]:4711"; as much as there is room for. */
void sk_notice_print(const struct sk_notice *notice, char *buf, size_t size);

/** Written whole, for the own user alone; *ret_st tells it from others.
 * -EEXIST: what stands there is no notice of this user's, and stays. */
int sk_notice_put(const struct sk_os *os, const char *path,
		  const struct sk_notice *notice, struct stat *ret_st,
		  struct sk_err *err);
/** Whether that one is still there: another rank 0 puts its own. */
bool sk_notice_stands(const struct sk_os *os, const char *path,
		      const struct stat *st);
/** Removes it, and no other one. */
void sk_notice_remove(const struct sk_os *os, const char *path,
		      const struct stat *st);

/** -ENOENT: there is none; -EPERM: another user's, or others can read or
 * write it; -EPROTO: it is something else. */
int sk_notice_read(const struct sk_os *os, const char *path,
		   struct sk_notice *ret_notice);

#endif
