/* SPDX-License-Identifier: Apache-2.0 */
#include "disk/watch.h"

#include <fcntl.h>
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

/* Shared by the loop and the thread that looks; whoever lets go of it last
 * frees it. */
struct look {
	int refs;			/* atomic */
	int done;			/* atomic: what stands below is so */
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
};

static void unref(struct look *l)
{
	if (!l || __atomic_sub_fetch(&l->refs, 1, __ATOMIC_ACQ_REL))
		return;
	free(l->path);
	free(l);
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
	__atomic_store_n(&l->done, 1, __ATOMIC_RELEASE);
	unref(l);
	return NULL;
}

static int begin(struct agent *a)
{
	struct look *l = calloc(1, sizeof(*l));
	pthread_t thread;
	int r;

	if (l)
		l->path = strdup(sk_store_path(a->store));
	if (!l || !l->path) {
		free(l);
		return -ENOMEM;
	}
	l->os = a->os;
	l->place = sk_store_place(a->store);
	l->refs = 2;
	r = sk_thread_start(&thread, look, l);
	if (r < 0) {
		free(l->path);
		free(l);
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

void watch_turn(struct agent *a)
{
	struct watch *w = a->watch;
	uint64_t now = agent_now(a);

	if (!w)
		return;
	if (w->look && __atomic_load_n(&w->look->done, __ATOMIC_ACQUIRE)) {
		see(a, w->look);
		unref(w->look);
		w->look = NULL;
		w->next_ns = now + (is_wrong(a) ? CLOSE_NS : CALM_NS);
	}
	if (w->look && now - w->began_ns > a->opts->hangs_s * SECOND_NS)
		see_hang(a);
	if (!w->look && now >= w->next_ns && begin(a) < 0)
		w->next_ns = now + CALM_NS;
}

void watch_soon(struct agent *a)
{
	if (a->watch)
		a->watch->next_ns = 0;
}

int watch_open(struct agent *a)
{
	struct sk_store_place place;
	struct watch_found found;

	if (!a->store)
		return 0;
	place = sk_store_place(a->store);
	a->watch = calloc(1, sizeof(*a->watch));
	if (!a->watch)
		return -ENOMEM;
	/* It has just been opened: who asks first is told already. */
	if (watch_measure(a->os, sk_store_path(a->store), &place,
			  &found) == 0) {
		watch_seen(a, &found);
		a->watch->next_ns = agent_now(a) + CLOSE_NS;
	}
	watch_turn(a);
	return 0;
}

void watch_close(struct agent *a)
{
	if (a->watch)
		unref(a->watch->look);
	free(a->watch);
	a->watch = NULL;
}
