/* SPDX-License-Identifier: Apache-2.0 */
#include "loop/closer.h"

#include <assert.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

#include "base/array.h"
#include "base/link.h"
#include "base/util.h"

#define GRACE_NS UINT64_C(1000000000)	/* at the end, for all together */

/* There while it has something to close, or its thread runs. */
struct user {
	struct sk_link link;
	struct closer *closer;
	uid_t uid;
	int *fds;
	size_t n, room;
	size_t under_way;		/* taken by the thread */
};

struct closer {
	const struct sk_os *os;
	pthread_mutex_t lock;
	pthread_cond_t idle;		/* a user's thread has ended */
	struct sk_link users;
	bool left;			/* the last thread frees it */
};

int closer_new(const struct sk_os *os, struct closer **ret_closer)
{
	struct closer *c = calloc(1, sizeof(*c));

	if (!c)
		return -ENOMEM;
	c->os = os;
	pthread_mutex_init(&c->lock, NULL);
	sk_cond_init(&c->idle);
	sk_link_init(&c->users);
	*ret_closer = c;
	return 0;
}

static struct user *user_of(const struct closer *c, uid_t uid)
{
	struct user *u;

	sk_link_each(u, &c->users, link) {
		if (u->uid == uid)
			return u;
	}
	return NULL;
}

static void destroy(struct closer *c)
{
	pthread_cond_destroy(&c->idle);
	pthread_mutex_destroy(&c->lock);
	free(c);
}

static void user_free(struct user *u)
{
	sk_link_remove(&u->link);
	free(u->fds);
	free(u);
}

/* Closes what there is, and what comes meanwhile; then the thread ends. */
static void *close_all(void *arg)
{
	struct user *u = arg;
	struct closer *c = u->closer;
	bool last;

	pthread_mutex_lock(&c->lock);
	while (u->n) {
		int *fds = sk_take_ptr(u->fds);
		size_t n = u->n;

		u->under_way = n;
		u->n = u->room = 0;
		pthread_mutex_unlock(&c->lock);
		while (n)
			(void)c->os->close(c->os, fds[--n]);
		free(fds);
		pthread_mutex_lock(&c->lock);
		u->under_way = 0;
	}
	user_free(u);
	/* Within the lock: who waits for this may free the closer after it. */
	last = c->left && sk_link_empty(&c->users);
	pthread_cond_signal(&c->idle);
	pthread_mutex_unlock(&c->lock);
	if (last)
		destroy(c);
	return NULL;
}

static bool start_thread(struct user *u)
{
	pthread_attr_t attr;
	pthread_t thread;
	int r;

	/* None of these two fails on Linux. */
	(void)pthread_attr_init(&attr);
	(void)pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	r = pthread_create(&thread, &attr, close_all, u);
	(void)pthread_attr_destroy(&attr);
	return r == 0;
}

/* The user, new with its thread, and @fd with it; false: no memory. */
static bool hand_over(struct closer *c, uid_t uid, int fd)
{
	struct user *u = user_of(c, uid);
	bool fresh = !u;

	if (fresh) {
		u = calloc(1, sizeof(*u));
		if (!u)
			return false;
		u->closer = c;
		u->uid = uid;
		sk_link_init(&u->link);
		sk_link_insert(&c->users, &u->link);
	}
	if (sk_array_fit(u->fds, u->room, u->n + 1) < 0) {
		if (fresh)
			user_free(u);
		return false;
	}
	u->fds[u->n++] = fd;
	if (!fresh || start_thread(u))
		return true;
	user_free(u);
	return false;
}

void closer_close(struct closer *c, uid_t uid, int fd)
{
	bool taken;

	if (fd < 0)
		return;
	pthread_mutex_lock(&c->lock);
	taken = hand_over(c, uid, fd);
	pthread_mutex_unlock(&c->lock);
	if (!taken)
		(void)c->os->close(c->os, fd);
}

size_t closer_pending(struct closer *c, uid_t uid)
{
	const struct user *u;
	size_t n;

	pthread_mutex_lock(&c->lock);
	u = user_of(c, uid);
	n = u ? u->n + u->under_way : 0;
	pthread_mutex_unlock(&c->lock);
	return n;
}

struct closer *closer_free(struct closer *c)
{
	uint64_t until;
	bool idle;

	if (!c)
		return NULL;
	until = c->os->now_ns(c->os) + GRACE_NS;
	pthread_mutex_lock(&c->lock);
	while (!sk_link_empty(&c->users)) {
		if (c->os->cond_wait(c->os, &c->idle, &c->lock, until) < 0)
			break;
	}
	/* Threads that hang still have it. */
	idle = sk_link_empty(&c->users);
	c->left = !idle;
	pthread_mutex_unlock(&c->lock);
	if (idle)
		destroy(c);
	return NULL;
}
