/* SPDX-License-Identifier: Apache-2.0 */
/* Where an agent is found that nobody said a place for, and whose directories
 * it does not trust. */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "fault-os.h"
#include "loop/endpoint.h"
#include "store/private.h"
#include "support/files.h"

#define NOBODY 65534

struct user {
	char run[64];		/* its XDG_RUNTIME_DIR */
	char dir[96], path[128];
	struct sk_fault_os fault;	/* /run/shardkeep is not ours */
};

/* Each test is a process of its own: what it becomes, it stays. */
static void user_init(struct user *u)
{
	if (geteuid() == 0) {
		cr_assert_eq(setresgid(NOBODY, NOBODY, NOBODY), 0);
		cr_assert_eq(setresuid(NOBODY, NOBODY, NOBODY), 0);
	}
	strcpy(u->run, "/tmp/shardkeep-endpoint-XXXXXX");
	cr_assert(mkdtemp(u->run));
	(void)snprintf(u->dir, sizeof(u->dir), "%s/shardkeep", u->run);
	(void)snprintf(u->path, sizeof(u->path), "%s/agent.sock", u->dir);
	cr_assert_eq(setenv("XDG_RUNTIME_DIR", u->run, 1), 0);
	sk_fault_os_init(&u->fault, sk_os_linux());
	sk_fault_os_fail(&u->fault, SK_FAULT_FACCESSAT, 1, SK_FAULT_ALWAYS,
			 EACCES);
}

static void user_end(const struct user *u)
{
	cr_assert_eq(sk_dir_remove(sk_os_linux(), AT_FDCWD, u->run), 0);
}

/* @said: what is to stand in the sentence. */
static void expect_refused(struct user *u, int error, const char *said)
{
	int fds = count_fds();
	struct sk_err err = { "" };
	struct endpoint e;

	cr_assert_eq(endpoint_open(&u->fault.os, NULL, &e, &err), -error,
		     "%s", err.text);
	cr_assert(strstr(err.text, said) && strstr(err.text, u->dir), "%s",
		  err.text);
	cr_assert_eq(count_fds(), fds);
}

/* Where nothing can be locked nobody knows who serves. */
Test(endpoint, without_a_lock_is_refused)
{
	struct user u;

	user_init(&u);
	sk_fault_os_fail(&u.fault, SK_FAULT_FLOCK, 1, SK_FAULT_ALWAYS, ENOLCK);
	expect_refused(&u, ENOLCK, strerror(ENOLCK));
	user_end(&u);
}

Test(endpoint, is_the_users)
{
	struct user u;
	struct sk_err err = { "" };
	struct endpoint e;

	user_init(&u);
	cr_assert_eq(endpoint_find(&u.fault.os, NULL, &e, &err), 0);
	cr_assert_str_eq(e.path, u.path);
	cr_assert_eq(endpoint_open(&u.fault.os, NULL, &e, &err), 0, "%s",
		     err.text);
	cr_assert(endpoint_is_there(&u.fault.os, &e));
	endpoint_close(&u.fault.os, &e);
	cr_assert_neq(access(u.path, F_OK), 0);
	user_end(&u);
}

/* A lock that was taken over and whose file is gone keeps nobody out. */
Test(endpoint, takes_the_lock_that_others_would_try)
{
	struct endpoint e, next;
	struct sk_err err = { "" };
	struct stat is, held;
	struct user u;
	char lock[136];

	user_init(&u);
	cr_assert_eq(endpoint_open(&u.fault.os, NULL, &e, &err), 0);
	(void)snprintf(lock, sizeof(lock), "%s.lock", u.path);
	cr_assert_eq(unlink(lock), 0);
	cr_assert_geq(close(open(lock, O_WRONLY | O_CREAT, 0600)), 0);
	cr_assert_eq(endpoint_adopt(&u.fault.os, NULL, e.lock, e.sock, &next,
				    &err), 0, "%s", err.text);
	cr_assert_eq(stat(lock, &is), 0);
	cr_assert_eq(fstat(next.lock, &held), 0);
	cr_assert_eq(is.st_ino, held.st_ino);
	endpoint_close(&u.fault.os, &next);
	user_end(&u);
}

/* None is there by half: it listens, or says why not and leaves nothing. */
Test(endpoint, each_call_may_fail)
{
	struct user u;

	user_init(&u);
	for (unsigned n = 1; ; n++) {
		int fds = count_fds(), r;
		struct sk_err err = { "" };
		struct endpoint e;
		struct stat st;

		sk_fault_os_init(&u.fault, sk_os_linux());
		sk_fault_os_fail(&u.fault, SK_FAULT_ANY, n, 1, EIO);
		r = endpoint_open(&u.fault.os, u.path, &e, &err);
		cr_assert(r == 0 || r == -EIO, "call %u: %d", n, r);
		cr_assert_eq(r < 0, err.text[0] != 0, "call %u", n);
		cr_assert(r < 0 || (fstat(e.sock, &st) == 0 &&
				    access(u.path, F_OK) == 0), "call %u", n);
		if (r == 0)
			endpoint_close(sk_os_linux(), &e);
		cr_assert_eq(count_fds(), fds, "call %u", n);
		if (!sk_fault_os_hits(&u.fault))
			break;
		cr_assert_lt(n, 100);
	}
	user_end(&u);
}

Test(endpoint, is_in_tmp_where_the_user_has_no_place)
{
	char path[64];
	struct user u;
	struct endpoint e;

	user_init(&u);
	(void)snprintf(path, sizeof(path), "/tmp/shardkeep-%u/agent.sock",
		       (unsigned)geteuid());
	for (int i = 0; i < 3; i++) {
		/* Not there, empty, not from the root. */
		(void)unsetenv("XDG_RUNTIME_DIR");
		if (i)
			(void)setenv("XDG_RUNTIME_DIR", i == 1 ? "" : "run", 1);
		cr_assert_eq(endpoint_find(&u.fault.os, NULL, &e, NULL), 0);
		cr_assert_str_eq(e.path, path);
	}
	user_end(&u);
}

Test(endpoint, has_a_name_that_a_socket_may_have)
{
	struct sk_err err = { "" };
	char run[200] = "/";
	struct user u;
	struct endpoint e;

	user_init(&u);
	memset(run + 1, 'x', sizeof(run) - 2);
	(void)setenv("XDG_RUNTIME_DIR", run, 1);
	cr_assert_eq(endpoint_find(&u.fault.os, NULL, &e, &err),
		     -ENAMETOOLONG);
	cr_assert(strstr(err.text, "use --socket"), "%s", err.text);
	user_end(&u);
}

Test(endpoint, trusts_no_directory_that_others_write)
{
	static const mode_t modes[] = { 0777, 0770, 0720, 0702 };
	struct user u;

	user_init(&u);
	cr_assert_eq(mkdir(u.dir, 0700), 0);
	for (size_t i = 0; i < sizeof(modes) / sizeof(*modes); i++) {
		cr_assert_eq(chmod(u.dir, modes[i]), 0);
		expect_refused(&u, EPERM, "ours alone");
	}
	user_end(&u);
}

/* Made anew while it serves: a directory that was said may be shared. */
static int renewed_where_others_write(struct user *u, const char *said)
{
	struct sk_err err = { "" };
	struct endpoint e;
	int r;

	cr_assert_eq(endpoint_open(&u->fault.os, said, &e, &err), 0, "%s",
		     err.text);
	cr_assert_eq(sk_dir_remove(sk_os_linux(), AT_FDCWD, u->dir), 0);
	cr_assert(mkdir(u->dir, 0700) == 0 && chmod(u->dir, 0777) == 0);
	r = endpoint_renew(&u->fault.os, &e, &err);
	cr_assert(r == 0 || strstr(err.text, "ours alone"), "%s", err.text);
	endpoint_close(&u->fault.os, &e);
	(void)sk_dir_remove(sk_os_linux(), AT_FDCWD, u->dir);
	return r;
}

Test(endpoint, trusts_none_that_others_made_meanwhile)
{
	struct user u;

	user_init(&u);
	cr_assert_eq(renewed_where_others_write(&u, NULL), -EPERM);
	cr_assert_eq(renewed_where_others_write(&u, u.path), 0);
	user_end(&u);
}

Test(endpoint, takes_no_file_or_link_for_a_directory)
{
	struct user u;
	int fd;

	user_init(&u);
	fd = open(u.dir, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
	cr_assert(fd >= 0 && close(fd) == 0);
	expect_refused(&u, ENOTDIR, "not a directory");
	cr_assert(unlink(u.dir) == 0 && symlink("/tmp", u.dir) == 0);
	expect_refused(&u, ENOTDIR, "not a directory");
	user_end(&u);
}

static void let_time_pass(void *ctx)
{
	sk_fault_os_advance(ctx, UINT64_C(1000000000000));
}

/* One that is there and cannot be reached is waited for, and not for ever. */
/* A name that was mistyped. */
static void expect_kept(struct user *u, const char *path, mode_t kind,
			const char *said)
{
	struct sk_err err = { "" };
	struct endpoint e;
	struct stat before, now;

	cr_assert(!lstat(path, &before) && (before.st_mode & S_IFMT) == kind);
	cr_assert_lt(endpoint_open(&u->fault.os, path, &e, &err), 0);
	cr_assert(strstr(err.text, said) && strstr(err.text, path), "%s",
		  err.text);
	cr_assert(!lstat(path, &now) && now.st_ino == before.st_ino);
}

Test(endpoint, takes_no_name_that_something_else_has)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	struct sk_err err = { "" };
	struct endpoint e;
	struct user u;
	int fd;

	user_init(&u);
	cr_assert_eq(mkdir(u.dir, 0700), 0);
	fd = open(u.path, O_CREAT | O_WRONLY, 0600);
	cr_assert_geq(fd, 0);
	cr_assert_eq(write(fd, "mine", 4), 4);
	close(fd);
	expect_kept(&u, u.path, S_IFREG, "is no socket");
	cr_assert_eq(unlink(u.path), 0);
	cr_assert_eq(symlink("/etc/passwd", u.path), 0);
	expect_kept(&u, u.path, S_IFLNK, "is no socket");
	cr_assert_eq(unlink(u.path), 0);
	/* Another service's; once it is dead nobody can say whose it was. */
	strcpy(a.sun_path, u.path);
	fd = socket(AF_UNIX, SOCK_STREAM, 0);
	cr_assert_eq(bind(fd, (struct sockaddr *)&a, sizeof(a)), 0);
	cr_assert_eq(listen(fd, 1), 0);
	expect_kept(&u, u.path, S_IFSOCK, "another service");
	close(fd);
	cr_assert_eq(endpoint_open(&u.fault.os, u.path, &e, &err), 0, "%s",
		     err.text);
	endpoint_close(&u.fault.os, &e);
	user_end(&u);
}

Test(endpoint, is_another_ones_who_does_not_answer, .timeout = 300)
{
	struct endpoint first, second;
	struct sk_err err = { "" };
	struct user u;

	user_init(&u);
	cr_assert_eq(endpoint_open(&u.fault.os, NULL, &first, &err), 0, "%s",
		     err.text);
	sk_fault_os_clock(&u.fault, 1, 1);
	sk_fault_os_fail(&u.fault, SK_FAULT_CONNECT, 1, SK_FAULT_ALWAYS,
			 ECONNREFUSED);
	for (uint64_t n = 2; n < 8; n++)
		sk_fault_os_meddle(&u.fault, SK_FAULT_FLOCK, n, let_time_pass,
				   &u.fault);
	cr_assert_eq(endpoint_open(&u.fault.os, NULL, &second, &err), -EBUSY,
		     "%s", err.text);
	cr_assert(strstr(err.text, "another agent holds"), "%s", err.text);
	endpoint_close(&u.fault.os, &first);
	user_end(&u);
}
