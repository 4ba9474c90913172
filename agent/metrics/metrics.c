/* SPDX-License-Identifier: Apache-2.0 */
#include "metrics/metrics.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "agent.h"
#include "metrics/address.h"
#include "metrics/http.h"
#include "metrics/sample.h"
#include "metrics/text.h"

#define SECOND_NS UINT64_C(1000000000)
#define TRY_AGAIN_NS (5 * SECOND_NS)
#define FILE_NS (10 * SECOND_NS)
#define PATIENCE_NS SECOND_NS

/* Figures that several threads may be reading. */
struct figures {
	struct samples samples;
	unsigned refs;			/* under the lock */
};

struct metrics {
	struct agent *agent;
	struct address at;
	struct http *http;
	char where[160];		/* "": nowhere */
	struct timer again;		/* the port was taken */
	struct source ask;		/* the server's thread asks the loop */
	pthread_mutex_t lock;
	pthread_cond_t given;
	struct figures *last;		/* under the lock, as is: */
	uint64_t n_given;
	bool is_over;
	/* The file, which is written in the background. */
	struct sk_pool *writer;
	struct timer file_timer;
	struct work write;
	struct samples written;
	int result;			/* of the last time */
	dev_t dev;			/* of what was written; inode 0: */
	ino_t ino;			/* nothing was */
};

/* ---- figures from hand to hand ---- */

static void unref(struct metrics *m, struct figures *f)
{
	bool last;

	if (!f)
		return;
	(void)pthread_mutex_lock(&m->lock);
	last = --f->refs == 0;
	(void)pthread_mutex_unlock(&m->lock);
	if (!last)
		return;
	samples_free(&f->samples);
	free(f);
}

/* On the loop's thread. Without memory the last ones stay. */
static void give(struct metrics *m)
{
	struct figures *f = calloc(1, sizeof(*f)), *old;

	if (f && samples_take(m->agent, NULL, &f->samples) < 0) {
		free(f);
		f = NULL;
	}
	(void)pthread_mutex_lock(&m->lock);
	old = f ? m->last : NULL;
	if (f) {
		f->refs = 1;
		m->last = f;
	}
	m->n_given++;
	(void)pthread_cond_broadcast(&m->given);
	(void)pthread_mutex_unlock(&m->lock);
	unref(m, old);
}

static void asked(struct source *s, uint32_t events)
{
	struct metrics *m = sk_link_object(s, struct metrics, ask);
	uint64_t n;

	(void)events;
	(void)m->agent->os->read(m->agent->os, s->fd, &n, sizeof(n));
	give(m);
}

/* On the server's thread. */
static struct figures *take(struct metrics *m)
{
	const struct sk_os *os = m->agent->os;
	uint64_t until = os->now_ns(os) + PATIENCE_NS, one = 1, want;
	struct figures *f;
	int r = 0;

	(void)pthread_mutex_lock(&m->lock);
	want = m->n_given + 1;
	if (os->write(os, m->ask.fd, &one, sizeof(one)) < 0)
		r = -EIO;
	while (r == 0 && m->n_given < want && !m->is_over)
		r = os->cond_wait(os, &m->given, &m->lock, until);
	f = m->last;
	if (f)
		f->refs++;
	(void)pthread_mutex_unlock(&m->lock);
	return f;
}

static char *make_page(void *ctx, size_t *ret_bytes)
{
	struct metrics *m = ctx;
	struct figures *f = take(m);
	char *text = f ? metrics_text(&f->samples, ret_bytes) : NULL;

	unref(m, f);
	return text;
}

/* ---- the port ---- */

static int serve(struct metrics *m, struct sk_err *err)
{
	const struct http_page page = { .make = make_page, .ctx = m };
	const struct sk_os *os = m->agent->os;
	int sock = address_listen(os, &m->at, err);

	if (sock < 0)
		return sock;
	address_format(m->agent->os, sock, m->where,
		       sizeof(m->where));
	return http_open(os, sock, &page, &m->http, err);
}

static void try_port(struct timer *timer);

static void try_later(struct metrics *m)
{
	struct agent *a = m->agent;

	m->where[0] = 0;
	m->again.fire = try_port;
	timer_set(&a->loop.timers, &m->again, agent_now(a) + TRY_AGAIN_NS);
}

static void try_port(struct timer *timer)
{
	struct metrics *m = sk_link_object(timer, struct metrics, again);
	struct sk_err err = { "" };

	if (serve(m, &err) == 0) {
		log_info(m->agent, "metrics at %s", m->where);
		degraded_clear(m->agent, DEGRADED_METRICS_PORT);
		return;
	}
	degraded_set(m->agent, DEGRADED_METRICS_PORT, err.text);
	try_later(m);
}

static int open_port(struct metrics *m, struct sk_err *err)
{
	struct agent *a = m->agent;
	int r;

	m->again.fire = try_port;
	r = address_parse(a->opts->metrics, a->opts->metrics_public, &m->at,
			  err);
	if (r < 0)
		return r;
	m->ask = (struct source){ .ready = asked, .fd = a->os->eventfd(a->os) };
	r = m->ask.fd < 0 ? m->ask.fd :
			    loop_watch(&a->loop, &m->ask, EPOLLIN);
	if (r < 0)
		return sk_err_errno(err, r, "cannot serve metrics");
	give(m);
	try_port(&m->again);
	return 0;
}

/* ---- the file ---- */

static int write_all(const struct sk_os *os, int fd, const char *text,
		     size_t bytes)
{
	while (bytes) {
		ssize_t n = os->write(os, fd, text, bytes);

		if (n <= 0)
			return n < 0 ? (int)n : -EIO;
		text += n;
		bytes -= (size_t)n;
	}
	return 0;
}

/* Who replaces a device, and removes it at the end, has taken it from all. */
static bool is_no_file(const struct sk_os *os, const char *path)
{
	struct stat st;

	return os->fstatat(os, AT_FDCWD, path, AT_SYMLINK_NOFOLLOW, &st) == 0 &&
	       !S_ISREG(st.st_mode) && !S_ISLNK(st.st_mode);
}

/* A reader sees one whole file or the other. -EEXIST: what is there is none. */
static int replace(const struct sk_os *os, const char *path, const char *text,
		   size_t bytes, struct stat *ret_st)
{
	_cleanup_free_ char *fresh = NULL;
	int fd, r;

	if (is_no_file(os, path))
		return -EEXIST;
	if (asprintf(&fresh, "%s.new", path) < 0) {
		fresh = NULL;
		return -ENOMEM;
	}
	fd = os->openat(os, AT_FDCWD, fresh, O_WRONLY | O_CREAT | O_TRUNC |
			O_NOFOLLOW, 0644);
	if (fd < 0)
		return fd;
	r = write_all(os, fd, text, bytes);
	if (r == 0)
		r = os->fstat(os, fd, ret_st);
	(void)os->close(os, fd);
	if (r == 0)
		r = os->renameat(os, AT_FDCWD, fresh, AT_FDCWD, path, 0);
	if (r < 0)
		(void)os->unlinkat(os, AT_FDCWD, fresh, 0);
	return r;
}

static void write_file(struct work *work)
{
	struct metrics *m = sk_link_object(work, struct metrics, write);
	const struct agent *a = m->agent;
	size_t bytes = 0;
	_cleanup_free_ char *text = metrics_text(&m->written, &bytes);
	struct stat st;

	m->result = text ? replace(a->os, a->opts->metrics_file, text, bytes,
				   &st) : -ENOMEM;
	if (m->result < 0)
		return;
	m->dev = st.st_dev;
	m->ino = st.st_ino;
}

/* Figures of an agent that has ended are nobody's; those of one that has taken
 * its place are in another file. */
static void remove_file(struct metrics *m)
{
	const struct sk_os *os = m->agent->os;
	const char *path = m->agent->opts->metrics_file;
	struct stat st;

	if (m->ino && os->fstatat(os, AT_FDCWD, path, AT_SYMLINK_NOFOLLOW,
				  &st) == 0 &&
	    st.st_dev == m->dev && st.st_ino == m->ino)
		(void)os->unlinkat(os, AT_FDCWD, path, 0);
}

static void was_written(struct work *work)
{
	struct metrics *m = sk_link_object(work, struct metrics, write);
	struct agent *a = m->agent;
	struct sk_err err = { "" };

	samples_free(&m->written);
	if (m->result == -EEXIST)
		(void)sk_err_set(&err, m->result, "cannot write metrics: %s is "
				 "there, and no file", a->opts->metrics_file);
	else if (m->result < 0)
		(void)sk_err_errno(&err, m->result, "cannot write metrics to "
				   "%s", a->opts->metrics_file);
	degraded_is(a, DEGRADED_METRICS_FILE, m->result < 0, err.text);
	if (!m->is_over)
		timer_set(&a->loop.timers, &m->file_timer,
			  agent_now(a) + FILE_NS);
}

static void file_due(struct timer *timer)
{
	struct metrics *m = sk_link_object(timer, struct metrics, file_timer);
	struct agent *a = m->agent;

	if (samples_take(a, NULL, &m->written) < 0) {
		timer_set(&a->loop.timers, timer, agent_now(a) + FILE_NS);
		return;
	}
	m->write.run = write_file;
	m->write.finish = was_written;
	work_submit(&a->loop.works, m->writer, &m->write);
}

static int open_file(struct metrics *m, struct sk_err *err)
{
	int r = sk_pool_new(1, -1, "sk-metrics", &m->writer, err);

	if (r < 0)
		return r;
	m->file_timer.fire = file_due;
	file_due(&m->file_timer);
	return 0;
}

/* ---- both ---- */

int metrics_open(struct agent *a, struct sk_err *err)
{
	struct metrics *m;
	int r = 0;

	if (!a->opts->metrics && !a->opts->metrics_file)
		return 0;
	m = calloc(1, sizeof(*m));
	if (!m)
		return sk_err_set(err, -ENOMEM, "no memory for metrics");
	m->agent = a;
	m->ask.fd = -1;
	(void)pthread_mutex_init(&m->lock, NULL);
	sk_cond_init(&m->given);
	a->metrics = m;
	if (a->opts->metrics)
		r = open_port(m, err);
	if (r == 0 && a->opts->metrics_file)
		r = open_file(m, err);
	return r;
}

void metrics_close(struct agent *a)
{
	struct metrics *m = a->metrics;

	if (!m)
		return;
	(void)pthread_mutex_lock(&m->lock);
	m->is_over = true;
	(void)pthread_cond_broadcast(&m->given);
	(void)pthread_mutex_unlock(&m->lock);
	if (m->http)
		address_leave(a->os, &m->at);
	m->http = http_close(m->http);
	timer_clear(&a->loop.timers, &m->again);
	timer_clear(&a->loop.timers, &m->file_timer);
	if (m->ask.fd >= 0)
		(void)loop_watch(&a->loop, &m->ask, 0);
	m->ask.fd = sk_close_fd(m->ask.fd);
}

void metrics_free(struct agent *a)
{
	struct metrics *m = a->metrics;

	if (!m)
		return;
	m->writer = sk_pool_free(m->writer);
	remove_file(m);
	unref(m, m->last);
	(void)pthread_mutex_destroy(&m->lock);
	(void)pthread_cond_destroy(&m->given);
	free(m);
	a->metrics = NULL;
}

const char *metrics_address(const struct agent *a)
{
	return a->metrics ? a->metrics->where : "";
}
