/* SPDX-License-Identifier: Apache-2.0 */
#include "cachectl.h"

#include <stdio.h>
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

static void show_bytes(const struct progress *p, uint64_t done,
		       uint64_t spent_ns)
{
	char have[32], all[32], rate[32];

	fprintf(stderr, "\r%s %s of %s (%d %%), %s/s\033[K", p->verb,
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
	    !isatty(STDERR_FILENO))
		return;
	p->shown_ns = t;
	if (!p->what)
		show_bytes(p, done, spent);
	else if (p->total)
		fprintf(stderr, "\r%s %llu of %llu %s\033[K", p->verb,
			(unsigned long long)done,
			(unsigned long long)p->total, p->what);
	else
		fprintf(stderr, "\r%s %s, %llu s\033[K", p->verb, p->what,
			(unsigned long long)(spent / SECOND));
	(void)fflush(stderr);
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
		fprintf(stderr, "\r%s, %llu s\033[K", w->what,
			(unsigned long long)((now() - begun) / SECOND));
		(void)fflush(stderr);
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
	if (!isatty(STDERR_FILENO))
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
