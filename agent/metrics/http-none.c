/* SPDX-License-Identifier: Apache-2.0 */
/* Built without libmicrohttpd. */
#include "metrics/http.h"

#include <errno.h>

bool http_built(void)
{
	return false;
}

int http_open(const struct sk_os *os, int sock, const struct http_page *page,
	      struct http **ret, struct sk_err *err)
{
	(void)page;
	(void)ret;
	(void)os->close(os, sock);
	return sk_err_set(err, -ENOSYS, "shardkeepd was built without "
			  "libmicrohttpd; --metrics-file needs none");
}

struct http *http_close(struct http *h)
{
	return h;
}
