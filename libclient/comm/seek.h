/* SPDX-License-Identifier: Apache-2.0 */
/* How another rank is found: by a name and a port, or by a notice. */
#ifndef SK_LIBCLIENT_COMM_SEEK_H
#define SK_LIBCLIENT_COMM_SEEK_H

#include "comm/door.h"

/** What rank 0 says, each time: all is well, or why it is not. */
struct sk_answer {
	uint64_t magic;
	int32_t result;
	uint32_t reserved;
	uint8_t nonce[16];	/* of the links between the others */
	char why[224];
};

/** "HOST:PORT" or "[ADDRESS]:PORT", the first of several where commas are
 * between them; the host without brackets. Port 0 is one as well. How many
 * bytes of @at that is, without the comma. */
int sk_seek_parse(const char *at, char ret_host[256], uint16_t *ret_port,
		  struct sk_err *err);

/** A connection to it; *ret_fd is the caller's. */
int sk_seek_connect(const struct sk_os *os, const struct sk_spot *place,
		    uint64_t until_ns, int *ret_fd);

/**
 * Rank 0, who has let in whoever says @hello; tries until then, anew each
 * time, as it may not be there yet or the notice be of an older run. The
 * nonce of a notice, and the place the caller is met at, are filled in; its
 * port is the caller's to say. *ret_root is where rank 0 was met. 1: it was,
 * and said no, as in *ret_answer.
 */
int sk_seek(const struct sk_os *os, const char *at, uint64_t until_ns,
	    struct sk_hello *hello, int *ret_fd, struct sk_spot *ret_root,
	    struct sk_answer *ret_answer, struct sk_err *err);

#endif
