/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of the store. */
#include "checks.h"

#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "base/size.h"
#include "needs.h"
#include "store/store.h"

#define XFS_MAGIC 0x58465342
#define NFS_KERNEL_MAGIC 0x6969
#define LUSTRE_MAGIC 0x0bd00bd0
#define FUSE_MAGIC 0x65735546
#define HANGS_NS UINT64_C(5000000000)
#define KEEP_LAST 4u		/* where nobody has said anything */

#define IN_MEMORY "a power loss empties it; give --store a directory on a disk"
#define IN_LAYERS "it goes with its container, and steps of a lower layer "	\
	"cannot be deleted; give --store a volume"
#define NO_LARGE_FILES "it takes no file of 4 GiB and knows no users; give "	\
	"--store a directory on ext4 or XFS"

static const struct {
	unsigned magic;
	const char *name;
	const char *remedy;	/* NULL: nothing is wrong with it */
} filesystems[] = {
	{ EXT4_SUPER_MAGIC, "ext4", NULL }, { XFS_MAGIC, "XFS", NULL },
	{ BTRFS_SUPER_MAGIC, "Btrfs", NULL },
	{ TMPFS_MAGIC, "tmpfs", IN_MEMORY },
	{ RAMFS_MAGIC, "ramfs", IN_MEMORY }, { NFS_KERNEL_MAGIC, "NFS", NULL },
	{ LUSTRE_MAGIC, "Lustre", NULL }, { FUSE_MAGIC, "FUSE", NULL },
	{ OVERLAYFS_SUPER_MAGIC, "overlayfs", IN_LAYERS },
	{ MSDOS_SUPER_MAGIC, "FAT", NO_LARGE_FILES },
};

/* An agent of another user writes there, and we need not be able to. */
static bool is_anothers(const struct doctor *d)
{
	return d->has_agent && d->ctx->conn.agent.uid != geteuid();
}

/* As far as modes tell, groups and lists included: root may write anywhere,
 * which says nothing of the agent. */
static bool may_agent_write(const struct doctor *d, int dir)
{
	const struct sk_os *os = d->ctx->os;
	struct stat st;

	if (!is_anothers(d) || !d->ctx->conn.agent.uid ||
	    os->fstat(os, dir, &st) < 0)
		return true;
	return st.st_uid == d->ctx->conn.agent.uid ? st.st_mode & S_IWUSR :
	       st.st_mode & (S_IWGRP | S_IWOTH);
}

static void say_filesystem(struct doctor *d, const struct statfs *fs,
			   const char *what)
{
	for (size_t i = 0; i < SK_ARRAY_SIZE(filesystems); i++) {
		if ((unsigned)fs->f_type != filesystems[i].magic)
			continue;
		doctor_say(d, "store", filesystems[i].remedy ? VERDICT_WARN :
			   VERDICT_OK, filesystems[i].remedy, "%s %s, on %s",
			   d->store, what, filesystems[i].name);
		return;
	}
	doctor_say(d, "store", VERDICT_OK, NULL, "%s %s, on a filesystem of "
		   "type %#x", d->store, what, (unsigned)fs->f_type);
}

/* By a file that never has a name. */
static void check_direct(struct doctor *d, int dir)
{
	const struct sk_os *os = d->ctx->os;
	int fd = os->openat(os, dir, ".", O_TMPFILE | O_WRONLY | O_DIRECT,
			    0600);
	bool refused = fd == -EINVAL;

	if (fd < 0 && !refused)
		return;		/* it has no such files; writing will tell */
	if (fd >= 0)
		(void)os->close(os, fd);
	doctor_say(d, "direct io", refused ? VERDICT_WARN : VERDICT_OK,
		   refused ? "flushes pass the page cache; ext4 and XFS take "
		   "it" : NULL, refused ? "the store's filesystem takes no "
		   "O_DIRECT" : "the store's filesystem takes O_DIRECT");
}

/* ---- one that does not answer ---- */

/* All that is asked of it below, as far as it could keep us. */
static void look_at(const struct doctor *d)
{
	const struct sk_os *os = d->ctx->os;
	struct statfs fs;
	int dir = os->openat(os, AT_FDCWD, d->store, O_RDONLY | O_DIRECTORY,
			     0);
	int fd;

	if (dir < 0)
		return;
	(void)os->fstatfs(os, dir, &fs);
	(void)sk_store_probe(os, dir);
	fd = os->openat(os, dir, ".", O_TMPFILE | O_WRONLY | O_DIRECT, 0600);
	if (fd >= 0)
		(void)os->close(os, fd);
}

/* By another process: whoever asks may be held for as long as it hangs. One
 * that is cannot even be ended, and is not waited for. */
static bool answers(const struct doctor *d)
{
	const struct sk_os *os = d->ctx->os;
	struct pollfd p = { .events = POLLIN };
	int pid = os->fork(os), status, r;

	if (pid < 0)
		return true;	/* and we are held */
	if (!pid) {
		look_at(d);
		_exit(0);
	}
	p.fd = os->pidfd_open(os, pid);
	r = p.fd < 0 ? 0 : os->poll(os, &p, 1, os->now_ns(os) + HANGS_NS);
	if (p.fd >= 0)
		(void)os->close(os, p.fd);
	if (r == -ETIMEDOUT)
		(void)os->kill(os, pid, SIGKILL);
	else
		(void)os->waitpid(os, pid, &status);
	return r != -ETIMEDOUT;
}

static bool check_answers(struct doctor *d)
{
	if (answers(d))
		return true;
	doctor_say(d, "store", VERDICT_FAIL, "see whether it is frozen "
		   "(fsfreeze -u), or what it is on gone", "%s does not answer "
		   "in 5 s: its filesystem hangs", d->store);
	d->store = NULL;
	return false;
}

void check_store(struct doctor *d)
{
	const struct sk_os *os = d->ctx->os;
	struct sk_err err = { "" };
	struct statfs fs;
	int dir, r;

	if (!d->store || !*d->store) {
		d->store = NULL;
		doctor_say(d, "store", VERDICT_WARN, "--store or "
			   "$SHARDKEEP_STORE", "there is none: what memory "
			   "holds goes with this node");
		return;
	}
	if (d->store_cut) {
		doctor_say(d, "store", VERDICT_WARN, "name it in "
			   "$SHARDKEEP_STORE", "its path is longer than an "
			   "agent tells: %s...", d->store);
		d->store = NULL;
		return;
	}
	if (!check_answers(d))
		return;
	dir = os->openat(os, AT_FDCWD, d->store, O_RDONLY | O_DIRECTORY, 0);
	if (dir < 0) {
		(void)sk_err_errno(&err, dir, "%s", d->store);
		doctor_say(d, "store", dir == -ENOENT && !d->has_agent ?
			   VERDICT_WARN : dir == -EACCES ? VERDICT_WARN :
			   VERDICT_FAIL, dir == -EACCES ? "ask as the agent's "
			   "user, or as root" : "mount it, or make it",
			   "it cannot be opened: %s", err.text);
		return;
	}
	r = os->faccessat(os, dir, ".", 2 | 1);	/* W_OK, X_OK */
	if (r == 0)
		r = sk_store_probe(os, dir);
	if (r == -EACCES && is_anothers(d) && os->fstatfs(os, dir, &fs) == 0)
		say_filesystem(d, &fs, "is for the agent's user to write to");
	else if (r < 0)
		doctor_say(d, "store", VERDICT_FAIL, "mount it for writing, "
			   "or give it to the agent's user", "%s cannot be "
			   "written to by this user", d->store);
	else if (!may_agent_write(d, dir))
		doctor_say(d, "store", VERDICT_FAIL, "give it to the agent's "
			   "user", "%s cannot be written to by the agent's "
			   "user, %u", d->store,
			   (unsigned)d->ctx->conn.agent.uid);
	else if (os->fstatfs(os, dir, &fs) == 0)
		say_filesystem(d, &fs, "can be written to");
	if (r == 0)
		check_direct(d, dir);
	(void)os->close(os, dir);
}

static uint64_t job_needs(struct doctor *d, const struct sk_wire_snapshot *all,
			  size_t n)
{
	struct sk_wire_retain is = { .retention.keep_last = KEEP_LAST };
	struct sk_retention keep;

	(void)ask_retention(d->ctx, all[0].id.job, &is);
	keep = (struct sk_retention){
		.keep_last = is.retention.keep_last,
		.keep_every = is.retention.keep_every,
		.keep_bytes = is.retention.keep_bytes,
	};
	return still_needs(&keep, all, n);
}

static uint64_t all_need(struct doctor *d)
{
	_cleanup_free_ struct sk_wire_snapshot *all = NULL;
	struct sk_wire_id any = { .step = -1, .rank = -1 };
	uint64_t need = 0;
	size_t n = 0, end;

	if (!d->has_agent || ask_snapshots(d->ctx, &any, &all, &n) < 0)
		return 0;
	for (size_t i = 0; i < n; i = end) {
		for (end = i + 1; end < n && all[end].uid == all[i].uid &&
		     strcmp(all[end].id.job, all[i].id.job) == 0; end++)
			;
		need += job_needs(d, all + i, end - i);
	}
	return need;
}

void check_room(struct doctor *d)
{
	const struct sk_os *os = d->ctx->os;
	char a[SK_SIZE_TEXT], b[SK_SIZE_TEXT];
	uint64_t need, left;
	struct statfs fs;
	int dir, r;

	if (!d->store)
		return;
	dir = os->openat(os, AT_FDCWD, d->store, O_RDONLY | O_DIRECTORY, 0);
	if (dir < 0)
		return;		/* that was said */
	r = os->fstatfs(os, dir, &fs);
	(void)os->close(os, dir);
	if (r < 0)
		return;
	left = (uint64_t)fs.f_bavail *
	       (uint64_t)(fs.f_frsize ? fs.f_frsize : fs.f_bsize);
	if (fs.f_files && !fs.f_ffree) {
		doctor_say(d, "room", VERDICT_WARN, "remove some (df -i), or "
			   "keep less: cachectl retain, unpin, evict --disk",
			   "no file can be made "
			   "on the store any more");
		return;
	}
	need = all_need(d);
	(void)sk_size_format(left, a, sizeof(a));
	(void)sk_size_format(need, b, sizeof(b));
	doctor_say(d, "room", left < need ? VERDICT_WARN : VERDICT_OK,
		   left < need ? "free some, or keep less: cachectl retain, "
		   "unpin, evict --disk" :
		   NULL, "%s are free on the store, the jobs' retention may "
		   "take %s more", a, b);
}
