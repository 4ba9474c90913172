/* SPDX-License-Identifier: Apache-2.0 */
#include "disk/watch.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "agent.h"
#include "base/thread.h"
#include "disk/faults.h"
#include "disk/flush.h"
#include "disk/stored.h"

#define SECOND_NS UINT64_C(1000000000)
#define CALM_NS (10 * SECOND_NS)
#define CLOSE_NS (2 * SECOND_NS)	/* while something is wrong */
#define WAITING_NS (SECOND_NS / 2)	/* of somebody, until it is looked */
#define FIRST_NS (2 * SECOND_NS)	/* for the first look, at the start */

/* Shared by the loop and the thread that looks; whoever lets go of it last
 * frees it. */
struct look {
	int refs;			/* atomic */
	int done;			/* atomic: what stands below is so; it
					 * is set under the lock, and told */
	pthread_mutex_t lock;
	pthread_cond_t told;
	const struct sk_os *os;
	char *path;
	struct sk_store_place place;
	int result;
	struct watch_found found;
};

struct watch {
	struct look *look;		/* under way; NULL: none */
	uint64_t began_ns, next_ns;
	uint64_t seen_ns;		/* what is known was so then */
	uint64_t back_ns;		/* the last look was */
};

static void unref(struct look *l)
{
	if (!l || __atomic_sub_fetch(&l->refs, 1, __ATOMIC_ACQ_REL))
		return;
	pthread_mutex_destroy(&l->lock);
	pthread_cond_destroy(&l->told);
	free(l->path);
	free(l);
}

static bool is_done(const struct look *l)
{
	return __atomic_load_n(&l->done, __ATOMIC_ACQUIRE);
}

int watch_measure(const struct sk_os *os, const char *path,
		  const struct sk_store_place *place,
		  struct watch_found *ret)
{
	struct stat st;
	int fd, r;

	ret->at_ns = os->now_ns(os);
	fd = os->openat(os, AT_FDCWD, path, O_RDONLY | O_DIRECTORY, 0);
	if (fd < 0)
		return fd;
	r = os->fstat(os, fd, &st);
	if (r == 0 && sk_store_is_below(place, st.st_dev))
		r = -ENODEV;
	if (r == 0)
		r = os->fstatfs(os, fd, &ret->fs);
	if (r == 0 && sk_store_probe(os, fd) < 0)
		ret->fs.f_flags |= ST_RDONLY;
	ret->denied = os->faccessat(os, fd, ".", W_OK | X_OK) == -EACCES;
	(void)os->close(os, fd);
	return r;
}

static void *look(void *arg)
{
	struct look *l = arg;

	l->result = watch_measure(l->os, l->path, &l->place, &l->found);
	pthread_mutex_lock(&l->lock);
	__atomic_store_n(&l->done, 1, __ATOMIC_RELEASE);
	pthread_cond_signal(&l->told);
	pthread_mutex_unlock(&l->lock);
	unref(l);
	return NULL;
}

static void await(struct look *l, uint64_t until_ns)
{
	int r = 0;

	pthread_mutex_lock(&l->lock);
	while (!l->done && r != -ETIMEDOUT)
		r = l->os->cond_wait(l->os, &l->told, &l->lock, until_ns);
	pthread_mutex_unlock(&l->lock);
}

static struct look *new_look(const struct agent *a)
{
	struct look *l = calloc(1, sizeof(*l));

	if (!l)
		return NULL;
	*l = (struct look){ .refs = 1, .os = a->os,
			    .place = sk_store_place(a->store),
			    .path = strdup(sk_store_path(a->store)) };
	pthread_mutex_init(&l->lock, NULL);
	sk_cond_init(&l->told);
	if (l->path)
		return l;
	unref(l);
	return NULL;
}

static int begin(struct agent *a)
{
	struct look *l = new_look(a);
	pthread_t thread;
	int r;

	if (!l)
		return -ENOMEM;
	l->refs = 2;
	r = sk_thread_start(&thread, look, l);
	if (r < 0) {
		l->refs = 1;
		unref(l);
		return r;
	}
	(void)pthread_detach(thread);
	a->watch->look = l;
	a->watch->began_ns = agent_now(a);
	return 0;
}

/* What the flusher could not do it may try at once. */
static void heal(struct agent *a, enum degraded_id id)
{
	if (!degraded_on(&a->degraded, id))
		return;
	degraded_clear(a, id);
	flush_try_anew(a);
	faults_mended(a);
}

/* Known before anything is to be written. */
static void see_rights(struct agent *a, bool denied)
{
	bool came = a->store_denied && !denied;

	a->store_denied = denied;
	if (came) {
		flush_try_anew(a);
		faults_mended(a);
	}
	faults_look(a);
}

static void see_size(struct agent *a, const struct statfs *fs)
{
	uint64_t unit = (uint64_t)(fs->f_frsize ? fs->f_frsize : fs->f_bsize);

	a->store_free = (uint64_t)fs->f_bavail * unit;
	a->store_bytes = (uint64_t)fs->f_blocks * unit;
	/* Of a filesystem that counts none there are any number. */
	a->store_files = fs->f_files ? (uint64_t)fs->f_ffree : UINT64_MAX;
}

/* A look may take long, and the flusher have been there since. */
static bool is_newer(struct agent *a, const struct watch_found *found)
{
	if (!a->watch || found->at_ns < a->watch->seen_ns)
		return false;
	a->watch->seen_ns = found->at_ns;
	return true;
}

void watch_seen(struct agent *a, const struct watch_found *found)
{
	if (!is_newer(a, found))
		return;
	see_size(a, &found->fs);
	/* Another one may have been mounted there. */
	a->store_volatile = sk_store_is_volatile(&found->fs);
	degraded_is(a, DEGRADED_STORE_VOLATILE, a->store_volatile, NULL);
	heal(a, DEGRADED_STORE_GONE);
	if (found->fs.f_flags & ST_RDONLY)
		degraded_set(a, DEGRADED_STORE_READ_ONLY, NULL);
	else
		heal(a, DEGRADED_STORE_READ_ONLY);
	see_rights(a, found->denied);
	faults_see_room(a);
}

static void see(struct agent *a, const struct look *l)
{
	struct sk_err err = { "" };

	heal(a, DEGRADED_STORE_HANGS);
	if (l->result < 0 && !is_newer(a, &l->found))
		return;
	if (l->result < 0) {
		a->store_free = a->store_bytes = 0;
		if (l->result == -ENODEV)
			(void)sk_err_set(&err, l->result, "%s: its filesystem "
					 "is not mounted", l->path);
		else
			(void)sk_err_errno(&err, l->result, "%s", l->path);
		degraded_set(a, DEGRADED_STORE_GONE, err.text);
		return;
	}
	watch_seen(a, &l->found);
}

static void see_hang(struct agent *a)
{
	bool new = !degraded_on(&a->degraded, DEGRADED_STORE_HANGS);

	a->store_free = a->store_bytes = 0;
	degraded_set(a, DEGRADED_STORE_HANGS, NULL);
	if (new)
		stored_hangs(a);
}

static bool is_wrong(const struct agent *a)
{
	for (int id = DEGRADED_STORE_FULL; id < DEGRADED_STORE_VOLATILE; id++)
		if (degraded_on(&a->degraded, (enum degraded_id)id))
			return true;
	return false;
}

/* Who could go on with what memory has is not kept for as long as a client
 * waits for an answer, ten seconds; but a disk that is behind may take some. */
static bool hangs(struct agent *a, uint64_t took_ns)
{
	const uint64_t most_ns = a->opts->hangs_s * SECOND_NS;

	return took_ns > most_ns || (took_ns > most_ns / 6 &&
				     stored_kept_waiting(a, most_ns / 6));
}

bool watch_is_out(const struct agent *a)
{
	return a->watch && a->watch->look;
}

static bool is_due(struct agent *a, uint64_t now)
{
	const struct watch *w = a->watch;

	return now >= w->next_ns || (now - w->back_ns >= CLOSE_NS &&
				     stored_kept_waiting(a, WAITING_NS));
}

void watch_turn(struct agent *a)
{
	struct watch *w = a->watch;
	uint64_t now = agent_now(a);

	if (!w)
		return;
	if (w->look && is_done(w->look)) {
		see(a, w->look);
		unref(w->look);
		w->look = NULL;
		w->back_ns = now;
		w->next_ns = now + (is_wrong(a) ? CLOSE_NS : CALM_NS);
	}
	if (w->look && hangs(a, now - w->began_ns))
		see_hang(a);
	if (!w->look && is_due(a, now) && begin(a) < 0)
		w->next_ns = now + CALM_NS;
}

void watch_soon(struct agent *a)
{
	if (a->watch)
		a->watch->next_ns = 0;
}

int watch_open(struct agent *a)
{
	struct watch *w;

	if (!a->store)
		return 0;
	w = a->watch = calloc(1, sizeof(*w));
	if (!w)
		return -ENOMEM;
	/* Who asks first is told already; but memory waits for no disk. */
	if (begin(a) == 0)
		await(w->look, agent_now(a) + FIRST_NS);
	watch_turn(a);
	if (!w->look)
		w->next_ns = agent_now(a) + CLOSE_NS;
	return 0;
}

void watch_close(struct agent *a)
{
	if (a->watch)
		unref(a->watch->look);
	free(a->watch);
	a->watch = NULL;
}
