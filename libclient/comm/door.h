/* SPDX-License-Identifier: Apache-2.0 */
/* The port that a rank is met at. Anybody may connect to it: who does not say
 * at once what ranks say is let go, and keeps nobody else waiting. */
#ifndef SK_LIBCLIENT_COMM_DOOR_H
#define SK_LIBCLIENT_COMM_DOOR_H

#include <stdbool.h>

#include "base/os.h"
#include "base/error.h"

/* Who knocked and has not said all of it yet; the next one puts the oldest
 * of them out. */
#define SK_DOOR_ROOM 64

#define SK_SECRET_MAX 63

enum sk_hello_kind { SK_HELLO_JOIN = 1, SK_HELLO_LINK };

/** Where another rank is met. */
struct sk_spot {
	uint16_t family;	/* AF_INET, AF_INET6; 0: on rank 0's node */
	uint16_t port;
	uint8_t ip[16];
};

/** What a rank says first; the same on both sides but for rank and place. */
struct sk_hello {
	uint64_t magic;
	char secret[SK_SECRET_MAX + 1];
	uint8_t nonce[16];	/* of the notice, or of the meeting */
	uint32_t kind;
	int32_t rank, world;	/* rank 0: met another rank 0's notice */
	struct sk_spot place;	/* where it is met; of rank 0, the port is how
				 * many ranks it has told of that */
};

#define SK_HELLO_MAGIC UINT64_C(0x314d4f43504b4853)	/* "SHKPCOM1" */

struct sk_door {
	const struct sk_os *os;
	int fd;
	uint16_t port;
	int n;
	struct sk_guest {
		int fd;
		size_t got;
		struct sk_hello hello;
	} guests[SK_DOOR_ROOM];
};

/** At all addresses of this node, by IPv6 and IPv4 where there are both;
 * port 0: one that is free. The door need not be initialised. */
int sk_door_open(const struct sk_os *os, uint16_t port, struct sk_door *door,
		 struct sk_err *err);
void sk_door_close(struct sk_door *door);

/** Of an error: this process lacks something, descriptors or memory, and the
 * other end has no part in it. */
bool sk_door_lacks(int r);

/** The next who says what @like says, rank and place aside, its world
 * as well where @like has none, and is still there; its socket is the
 * caller's. Others are put out. 1: none of it, but one of the @n of @watch
 * (-1s are passed over) has something to read, or is gone; *ret_at is its
 * place there. -ETIMEDOUT: nothing by then. */
int sk_door_next(struct sk_door *door, const struct sk_hello *like,
		 const int *watch, int n, uint64_t until_ns,
		 struct sk_hello *ret_hello, int *ret_fd, int *ret_at);

#endif
