/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A small HTTP server with one page, on a thread of its own. It knows no
 * agent: who makes the page says how.
 *
 * Whoever connects is a stranger: no more than HTTP_CLIENTS at once, of which
 * the one that has kept us waiting longest makes room for the next; a request
 * has 8 KiB at most, and a connection one request.
 */
#ifndef SK_AGENT_METRICS_HTTP_H
#define SK_AGENT_METRICS_HTTP_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"
#include "base/os.h"

#define HTTP_CLIENTS 16u

struct http;

struct http_page {
	/** malloc'ed; NULL: it cannot be had now. On the server's thread,
	 * which it may keep for a moment. */
	char *(*make)(void *ctx, size_t *ret_bytes);
	void *ctx;
};

/** Whether this program was built with it. */
bool http_built(void);
/** Serves GET /metrics at @sock, which it closes in the end; in any case where
 * it fails. -ENOSYS: not built; a negative errno comes with a sentence. */
int http_open(const struct sk_os *os, int sock, const struct http_page *page,
	      struct http **ret, struct sk_err *err);
/** Ends the thread. NULL is fine. Returns NULL. */
struct http *http_close(struct http *h);

#endif
