/* SPDX-License-Identifier: Apache-2.0 */
#include "cachectl.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>

#include "base/size.h"

#define SECOND 1000000000u
#define REDRAW (SECOND / 5)

static uint64_t now(void)
{
	return sk_os_linux()->now_ns(sk_os_linux());
}

void progress_start(struct progress *p, const char *verb, const char *what,
		    uint64_t total)
{
	*p = (struct progress){ .verb = verb, .what = what, .total = total,
				.started_ns = now() };
}

/* It is drawn over itself: a line that goes on in the next one would stay. */
static void draw_line(const char *fmt, ...)
{
	struct winsize w = { 0 };
	char line[256];
	size_t room = sizeof(line) - 1;
	va_list ap;

	va_start(ap, fmt);
	(void)vsnprintf(line, sizeof(line), fmt, ap);
	va_end(ap);
	if (ioctl(STDERR_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_col > 1)
		room = w.ws_col - 1u;
	fprintf(stderr, "\r%.*s\033[K", (int)room, line);
	(void)fflush(stderr);
}

static bool can_draw(void)
{
	const char *term = getenv("TERM");

	return isatty(STDERR_FILENO) && !(term && strcmp(term, "dumb") == 0);
}

static void show_bytes(const struct progress *p, uint64_t done,
		       uint64_t spent_ns)
{
	char have[32], all[32], rate[32];

	draw_line("%s %s of %s (%d %%), %s/s", p->verb,
		  sk_size_format(done, have, sizeof(have)),
		  sk_size_format(p->total, all, sizeof(all)),
		  p->total ? (int)(100.0 * (double)done / (double)p->total) :
			     100,
		  sk_size_format((uint64_t)((double)done * 1e9 /
					    (double)spent_ns),
				 rate, sizeof(rate)));
}

void progress_at(struct progress *p, uint64_t done)
{
	uint64_t t = now(), spent = t - p->started_ns;

	if (spent < SECOND || t - p->shown_ns < REDRAW ||
	    !can_draw())
		return;
	p->shown_ns = t;
	if (!p->what)
		show_bytes(p, done, spent);
	else if (p->total)
		draw_line("%s %llu of %llu %s", p->verb,
			  (unsigned long long)done,
			  (unsigned long long)p->total, p->what);
	else
		draw_line("%s %s, %llu s", p->verb, p->what,
			  (unsigned long long)(spent / SECOND));
}

void progress_end(struct progress *p)
{
	if (p->shown_ns)
		fputs("\r\033[K", stderr);
}

/* ---- waiting ---- */

static void wait_shown(struct waiting *w)
{
	uint64_t begun = now();
	struct timespec at;

	clock_gettime(CLOCK_MONOTONIC, &at);
	while (!w->ended) {
		at.tv_sec++;
		if (pthread_cond_timedwait(&w->over, &w->lock, &at) == 0)
			continue;
		draw_line("%s, %llu s", w->what,
			  (unsigned long long)((now() - begun) / SECOND));
		w->shown = true;
	}
}

static void *wait_thread(void *arg)
{
	struct waiting *w = arg;

	(void)pthread_mutex_lock(&w->lock);
	wait_shown(w);
	(void)pthread_mutex_unlock(&w->lock);
	return NULL;
}

void waiting_begin(struct waiting *w, const char *what)
{
	pthread_condattr_t attr;

	*w = (struct waiting){ .what = what };
	if (!can_draw())
		return;
	(void)pthread_condattr_init(&attr);
	(void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	(void)pthread_cond_init(&w->over, &attr);
	(void)pthread_condattr_destroy(&attr);
	(void)pthread_mutex_init(&w->lock, NULL);
	w->running = !pthread_create(&w->thread, NULL, wait_thread, w);
}

void waiting_end(struct waiting *w)
{
	if (!w->running)
		return;
	(void)pthread_mutex_lock(&w->lock);
	w->ended = true;
	(void)pthread_cond_signal(&w->over);
	(void)pthread_mutex_unlock(&w->lock);
	(void)pthread_join(w->thread, NULL);
	if (w->shown)
		fputs("\r\033[K", stderr);
}
