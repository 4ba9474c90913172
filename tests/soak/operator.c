/* SPDX-License-Identifier: Apache-2.0 */
#include "soak/operator.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "base/util.h"
#include "conn/list.h"
#include "support/await.h"

#define ARGS_MOST 12
#define LOOK_MS 60000u
#define OLD_MOST 12		/* steps, of those that it takes up */

/* ---- commands ---- */

/* What it said last, for whom its exit status was none that may be. */
static char said_last[1024];

static void keep_said(int fd)
{
	ssize_t n = pread(fd, said_last, sizeof(said_last) - 1, 0);

	said_last[n > 0 ? n : 0] = 0;
}

static int run_args(const struct scene *scene, const char *const *args)
{
	int said = memfd_create("said", MFD_CLOEXEC), status;
	int nothing = open("/dev/null", O_WRONLY | O_CLOEXEC);
	pid_t pid;

	CHECK(scene->cachectl, "say --cachectl PATH");
	CHECK(said >= 0 && nothing >= 0);
	pid = fork();
	CHECK(pid >= 0);
	if (!pid) {
		(void)dup2(nothing, STDOUT_FILENO);
		(void)dup2(said, STDERR_FILENO);
		(void)setenv("SHARDKEEP_SOCKET", scene->socket, 1);
		(void)execv(scene->cachectl, (char **)args);
		_exit(127);
	}
	CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status), "%s: %#x",
	      args[1], status);
	status = WEXITSTATUS(status);
	keep_said(said);
	CHECK(status != 127 && status != 5, "cachectl %s %s: exit status %d: "
	      "%s", args[1], args[2] ? args[2] : "", status, said_last);
	close(said);
	close(nothing);
	return status;
}

int operator_run(const struct scene *scene, ...)
{
	const char *args[ARGS_MOST] = { "cachectl" };
	va_list ap;
	int n = 1;

	va_start(ap, scene);
	do
		args[n] = va_arg(ap, const char *);
	while (args[n++] && n < ARGS_MOST);
	va_end(ap);
	CHECK(!args[n - 1], "too many arguments");
	return run_args(scene, args);
}

void operator_show(const struct scene *scene, const char *job)
{
	pid_t pid = fork();

	if (!pid) {
		(void)dup2(STDERR_FILENO, STDOUT_FILENO);
		(void)execl(scene->cachectl, "cachectl", "--socket",
			    scene->socket, "list", "-v", job, NULL);
		_exit(127);
	}
	(void)waitpid(pid, NULL, 0);
}

/* ---- looking ---- */

static void connect_to(const struct scene *scene, struct sk_conn *conn)
{
	struct sk_err err = { "" };
	int r;

	do
		r = sk_conn_open(sk_os_linux(), scene->socket,
				 sk_until_ms(sk_os_linux(), LOOK_MS), conn,
				 &err);
	while (r == -ECONNRESET);
	CHECK(!r, "%s", err.text);
}

/* Snapshots that @id names; malloc'ed. */
static struct sk_wire_snapshot *look(const struct scene *scene,
				     const struct sk_wire_id *id, size_t *ret_n)
{
	struct sk_wire_snapshot *all = NULL;
	struct sk_list_gaps gaps = { 0 };
	struct sk_err err = { "" };
	int r;

	do {
		struct sk_conn conn = SK_CONN_NULL;

		connect_to(scene, &conn);
		r = sk_list_snapshots(&conn, id, 0,
				      sk_until_ms(conn.os, LOOK_MS), &all,
				      ret_n, &gaps, &err);
		sk_conn_close(&conn);
	} while (r == -ECONNRESET);
	CHECK(!r, "list: %s", err.text);
	CHECK(!gaps.n, "unreadable: %s", gaps.first);
	return all;
}

/* Of a step; 0: there is none. */
static uint32_t flags_of(const struct scene *scene, const char *job,
			 int64_t step)
{
	struct sk_wire_id id = { .run = 1, .step = step, .rank = -1 };
	_cleanup_free_ struct sk_wire_snapshot *all = NULL;
	size_t n = 0;

	(void)snprintf(id.job, sizeof(id.job), "%s", job);
	all = look(scene, &id, &n);
	return n ? all[0].flags : 0;
}

double operator_figure(const struct scene *scene, const char *name)
{
	struct sk_msg msg = { .type = SK_MSG_STATS };
	_cleanup_free_ struct sk_wire_stat *all = NULL;
	struct sk_conn conn = SK_CONN_NULL;
	struct sk_err err = { "" };
	double value = -1;
	size_t n = 0;

	connect_to(scene, &conn);
	CHECK(!sk_list_read(&conn, &msg, sizeof(*all),
			    sk_until_ms(conn.os, LOOK_MS), &all, &n, &err),
	      "%s", err.text);
	for (size_t i = 0; i < n; i++) {
		if (!strncmp(all[i].name, name, sizeof(all[i].name)) &&
		    !all[i].job[0])
			value = all[i].value;
	}
	sk_conn_close(&conn);
	return value;
}

int operator_steps(const struct scene *scene, const char *job)
{
	struct dirent *entry;
	char path[256];
	int n = 0;
	DIR *dir;

	(void)snprintf(path, sizeof(path), "%s/%s", scene->store, job);
	dir = opendir(path);
	while (dir && (entry = readdir(dir)))
		n += !strncmp(entry->d_name, "step-", 5);
	if (dir)
		closedir(dir);
	return n;
}

void operator_evict_all(const struct scene *scene)
{
	struct sk_wire_id any = { .step = -1, .rank = -1 };
	_cleanup_free_ struct sk_wire_snapshot *all = NULL;
	size_t n = 0;

	all = look(scene, &any, &n);
	for (size_t i = 0; i < n; i++) {
		char name[256];

		if (!(all[i].flags & SK_SNAP_MEMORY))
			continue;
		(void)snprintf(name, sizeof(name), "%s@%llu/%lld",
			       all[i].id.job,
			       (unsigned long long)all[i].id.run,
			       (long long)all[i].id.step);
		/* It may still be flushed, as its last rank has left. */
		AWAIT(!operator_run(scene, "evict", "--force", name, NULL),
		      "%s stays", name);
	}
}

/* ---- the operator ---- */

struct acting {
	const struct scene *scene;
	const char *job;
	struct operating *shared;
	struct dice dice;
	int64_t pinned;		/* a step, or maybe; -1: none */
	uint32_t pinned_flags;	/* where it was then */
	char name[128];		/* of the snapshot that it takes up */
};

#define STAYS (SK_SNAP_COMPLETE | SK_SNAP_DURABLE | SK_SNAP_MEMORY | \
	       SK_SNAP_RESIDENT | SK_SNAP_DISK)

/* @may: exit codes that are no wonder, as bits. */
#define DO(o, may, ...) ({						\
	unsigned before_ = atomic_load(&(o)->shared->kills);		\
	int code_ = operator_run((o)->scene, __VA_ARGS__, NULL);	\
									\
	check_code(o, code_, may, before_, #__VA_ARGS__);		\
	code_;								\
})

static void check_code(struct acting *o, int code, unsigned may,
		       unsigned before, const char *what)
{
	/* One end is no reason; of several, each with another one in it, the
	 * last may be one too many. */
	unsigned ends = (atomic_load(&o->shared->kills) - before + 2) / 2;

	CHECK(1u << code & may || (code == 3 && ends > 1), "%s of %s ended "
	      "with %d: %s", what, o->name, code, said_last);
	atomic_fetch_add(&o->shared->commands, 1);
	atomic_fetch_add(&o->shared->refused, code != 0);
}

/* One of the newest; false: there is none. */
static bool pick(struct acting *o, int64_t *ret_step)
{
	int64_t newest = atomic_load(&o->shared->complete);
	/* An agent protects what its own ranks have sealed, which may be more
	 * than what those elsewhere have. */
	int64_t back = (int64_t)dice_below(&o->dice, OLD_MOST) +
		       o->shared->apart;

	if (newest < o->shared->apart)
		return false;
	*ret_step = newest > back ? newest - back : 0;
	(void)snprintf(o->name, sizeof(o->name), "%s@1/%lld", o->job,
		       (long long)*ret_step);
	return true;
}

static void say_what_stays(struct acting *o)
{
	char last[16], every[16], age[16], bytes[24];

	(void)snprintf(last, sizeof(last), "%llu",
		       (unsigned long long)dice_below(&o->dice, 5));
	(void)snprintf(every, sizeof(every), "%llu",
		       (unsigned long long)dice_below(&o->dice, 9));
	(void)snprintf(age, sizeof(age), "%llu",
		       (unsigned long long)dice_below(&o->dice, 3));
	(void)snprintf(bytes, sizeof(bytes), "%lluK",
		       1 + (unsigned long long)dice_below(&o->dice, 16 << 10));
	switch (dice_below(&o->dice, 5)) {
	case 0:
		(void)DO(o, 1u << 0, "retain", o->job, "--last", last);
		return;
	case 1:
		(void)DO(o, 1u << 0, "retain", o->job, "--last", last,
			 "--every", every);
		return;
	case 2:
		(void)DO(o, 1u << 0, "retain", o->job, "--age", age);
		return;
	case 3:
		(void)DO(o, 1u << 0, "retain", o->job, "--bytes", bytes);
		return;
	default:
		(void)DO(o, 1u << 0, "retain", o->job, "--default");
	}
}

static void pin(struct acting *o, int64_t step)
{
	int code;

	if (o->pinned >= 0)
		return;
	/* Of a step that a later one has taken the place of there is none. */
	code = DO(o, 1u << 0 | 1u << 4, "pin", o->name);
	if (code == 4)
		return;
	o->pinned = step;
	o->pinned_flags = 0;
	/* Agents that ended before they answered may have done it. */
	if (code == 3)
		return;
	o->pinned_flags = flags_of(o->scene, o->job, step);
	CHECK(o->pinned_flags & SK_SNAP_PINNED, "%s is not pinned: %#x",
	      o->name, o->pinned_flags);
}

/* Flushes may have brought it to more places; then its memory may have gone to
 * a step that would have had none. */
static void unpin(struct acting *o)
{
	uint32_t now, gone;

	if (o->pinned < 0)
		return;
	(void)snprintf(o->name, sizeof(o->name), "%s@1/%lld", o->job,
		       (long long)o->pinned);
	now = flags_of(o->scene, o->job, o->pinned);
	gone = o->pinned_flags & (STAYS | SK_SNAP_PINNED) & ~now;
	if (now & SK_SNAP_DISK)
		gone &= ~(uint32_t)(SK_SNAP_MEMORY | SK_SNAP_RESIDENT);
	CHECK(!gone, "%s was pinned at %#x, and is at %#x", o->name,
	      o->pinned_flags, now);
	if (DO(o, 1u << 0 | (o->pinned_flags ? 0 : 1u << 4), "unpin",
	       o->name) != 3)
		o->pinned = -1;
}

/* By force only what is older than what all are to find. */
static void evict(struct acting *o, int64_t step)
{
	bool force = step != o->pinned && !dice_below(&o->dice, 3) &&
		     step < atomic_load(&o->shared->durable);
	const char *place = dice_below(&o->dice, 2) ? "--disk" : "--memory";

	(void)DO(o, 1u << 0 | 1u << 1 | 1u << 4, "evict", place, o->name,
		 force ? "--force" : NULL);
}

static void act(struct acting *o)
{
	int64_t step;

	if (!pick(o, &step))
		return;
	switch (dice_below(&o->dice, 8)) {
	case 0:
		say_what_stays(o);
		return;
	case 1:
		pin(o, step);
		return;
	case 2:
		unpin(o);
		return;
	case 3:
		(void)DO(o, 1u << 0 | 1u << 4, "flush", o->name);
		return;
	case 4:
		/* Some may be replaced each time that they are opened. */
		(void)DO(o, 1u << 0 | 1u << 1 | 1u << 4, "verify", o->name);
		return;
	default:
		evict(o, step);
	}
}

void operate(struct scene *scene, const char *job, struct operating *shared,
	     uint64_t seed)
{
	struct acting o = { .scene = scene, .job = job, .shared = shared,
			      .dice = dice_of(seed ^ 0x0be7), .pinned = -1 };

	while (!atomic_load(&shared->over))
		act(&o);
	while (o.pinned >= 0)
		unpin(&o);
}
