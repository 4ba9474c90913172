/* SPDX-License-Identifier: Apache-2.0 */
/* By libmicrohttpd, with one thread. */
#include "metrics/http.h"

#include <errno.h>
#include <microhttpd.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/link.h"

#define REQUEST_BYTES ((size_t)8192)
#define IDLE_S 10u
/* A few more than may stay, so that one who comes can make room. */
#define ACCEPTED (HTTP_CLIENTS + 16u)
#define CONTENT "text/plain; version=0.0.4; charset=utf-8"

struct client {
	struct sk_link link;		/* the longest connected first */
	int fd;
	bool over;			/* it was shut down */
};

/* All of it is the server's thread's; that ends before it is freed. */
struct http {
	const struct sk_os *os;
	struct http_page page;
	struct MHD_Daemon *daemon;
	struct sk_link clients;
	unsigned n_clients;		/* that were not shut down */
};

bool http_built(void)
{
	return true;
}

/* ---- connections ---- */

static void make_room(struct http *h)
{
	struct client *c;

	if (h->n_clients <= HTTP_CLIENTS)
		return;
	sk_link_each(c, &h->clients, link) {
		if (c->over)
			continue;
		c->over = true;
		h->n_clients--;
		(void)h->os->shutdown(h->os, c->fd, SHUT_RDWR);
		return;
	}
}

static void begin_client(struct http *h, struct MHD_Connection *connection,
			 void **ret)
{
	const union MHD_ConnectionInfo *info =
		MHD_get_connection_info(connection,
					MHD_CONNECTION_INFO_CONNECTION_FD);
	struct client *c = calloc(1, sizeof(*c));

	*ret = c;
	if (!c || !info) {	/* its time ends it */
		free(c);
		*ret = NULL;
		return;
	}
	c->fd = info->connect_fd;
	sk_link_insert(&h->clients, &c->link);
	h->n_clients++;
	make_room(h);
}

static void notify(void *ctx, struct MHD_Connection *connection,
		   void **client, enum MHD_ConnectionNotificationCode code)
{
	struct http *h = ctx;
	struct client *c = *client;

	if (code == MHD_CONNECTION_NOTIFY_STARTED) {
		begin_client(h, connection, client);
		return;
	}
	if (!c)
		return;
	h->n_clients -= !c->over;
	sk_link_remove(&c->link);
	free(c);
	*client = NULL;
}

/* ---- answers ---- */

static enum MHD_Result send_text(struct MHD_Connection *connection,
				 unsigned status, char *text, size_t bytes,
				 enum MHD_ResponseMemoryMode mode)
{
	struct MHD_Response *response =
		MHD_create_response_from_buffer(bytes, text, mode);
	enum MHD_Result r;

	if (!response) {
		if (mode == MHD_RESPMEM_MUST_FREE)
			free(text);
		return MHD_NO;
	}
	(void)MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE,
				      CONTENT);
	/* One request a connection: nobody keeps a place. */
	(void)MHD_add_response_header(response, MHD_HTTP_HEADER_CONNECTION,
				      "close");
	if (status == MHD_HTTP_METHOD_NOT_ALLOWED)
		(void)MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW,
					      "GET, HEAD");
	r = MHD_queue_response(connection, status, response);
	MHD_destroy_response(response);
	return r;
}

static enum MHD_Result send_line(struct MHD_Connection *connection,
				 unsigned status, const char *line)
{
	return send_text(connection, status, (char *)line, strlen(line),
			 MHD_RESPMEM_PERSISTENT);
}

static enum MHD_Result answer(void *ctx, struct MHD_Connection *connection,
			      const char *url, const char *method,
			      const char *version, const char *upload,
			      size_t *upload_bytes, void **request)
{
	struct http *h = ctx;
	size_t bytes = 0;
	char *text;

	(void)version;
	(void)upload;
	(void)upload_bytes;
	(void)request;
	if (strcmp(method, MHD_HTTP_METHOD_GET) != 0 &&
	    strcmp(method, MHD_HTTP_METHOD_HEAD) != 0)
		return send_line(connection, MHD_HTTP_METHOD_NOT_ALLOWED,
				 "GET and HEAD only\n");
	if (strcmp(url, "/metrics") != 0)
		return send_line(connection, MHD_HTTP_NOT_FOUND,
				 "shardkeepd has /metrics\n");
	text = h->page.make(h->page.ctx, &bytes);
	if (!text)
		return send_line(connection, MHD_HTTP_SERVICE_UNAVAILABLE,
				 "no memory for it now\n");
	return send_text(connection, MHD_HTTP_OK, text, bytes,
			 MHD_RESPMEM_MUST_FREE);
}

/* What strangers do wrong is no line of the log. */
static void drop_line(void *ctx, const char *fmt, va_list ap)
{
	(void)ctx;
	(void)fmt;
	(void)ap;
}

static struct MHD_Daemon *start(struct http *h, int sock)
{
	return MHD_start_daemon(MHD_USE_POLL_INTERNAL_THREAD |
				MHD_USE_ERROR_LOG, 0, NULL, NULL, answer, h,
				MHD_OPTION_EXTERNAL_LOGGER, drop_line, NULL,
				MHD_OPTION_LISTEN_SOCKET, sock,
				MHD_OPTION_CONNECTION_LIMIT, ACCEPTED,
				MHD_OPTION_CONNECTION_MEMORY_LIMIT,
				REQUEST_BYTES,
				MHD_OPTION_CONNECTION_TIMEOUT, IDLE_S,
				MHD_OPTION_NOTIFY_CONNECTION, notify, h,
				MHD_OPTION_END);
}

int http_open(const struct sk_os *os, int sock, const struct http_page *page,
	      struct http **ret, struct sk_err *err)
{
	struct http *h = calloc(1, sizeof(*h));

	if (h) {
		h->os = os;
		h->page = *page;
		sk_link_init(&h->clients);
		h->daemon = start(h, sock);
	}
	if (!h || !h->daemon) {
		free(h);
		(void)os->close(os, sock);
		return sk_err_set(err, -ENOMEM, "the server of metrics does "
				  "not start; no memory, or no thread");
	}
	*ret = h;
	return 0;
}

struct http *http_close(struct http *h)
{
	if (h)
		MHD_stop_daemon(h->daemon);
	free(h);
	return NULL;
}
