/* SPDX-License-Identifier: Apache-2.0 */
/* What files say in place of the environment, as NCCL reads them. */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "nccl/conf.h"

#define NAME "NCCL_COMM_BLOCKING"

/* The machine's files, as a test has them; NULL: there is none. */
static const char *of_user, *of_all;
static char asked[512];		/* for the user's */

static int serve(const char *text)
{
	char file[] = "/tmp/nccl-conf-XXXXXX";
	int fd;

	if (!text)
		return -ENOENT;
	fd = mkstemp(file);
	cr_assert(fd >= 0 && !unlink(file));
	cr_assert_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
	cr_assert_eq(lseek(fd, 0, SEEK_SET), 0);
	return fd;
}

static int open_file(const struct sk_os *os, int dirfd, const char *path,
		     int flags, mode_t mode)
{
	(void)os;
	(void)dirfd;
	(void)flags;
	(void)mode;
	if (!strcmp(path, "/etc/nccl.conf"))
		return serve(of_all);
	(void)snprintf(asked, sizeof(asked), "%s", path);
	return serve(of_user);
}

static bool says(struct sk_nccl_said *ret)
{
	struct sk_os os = *sk_os_linux();

	os.openat = open_file;
	return sk_nccl_conf(&os, NAME, ret);
}

static void assert_says(int64_t value, const char *file)
{
	struct sk_nccl_said said;

	cr_assert(says(&said));
	cr_assert_eq(said.value, value);
	cr_assert_eq(!*file, !*said.file, "\"%s\"", said.file);
	cr_assert(strstr(said.file, file), "\"%s\" is not \"%s\"", said.file,
		  file);
}

static void assert_silent(void)
{
	struct sk_nccl_said said;

	cr_assert(!says(&said));
}

static void forget(void)
{
	unsetenv(NAME);
	unsetenv("NCCL_CONF_FILE");
}

TestSuite(nccl_conf, .init = forget);

Test(nccl_conf, nobody_says)
{
	assert_silent();
	of_user = "NCCL_DEBUG=INFO\n#" NAME "=1\n" NAME "\n " NAME "=1\n"
		  NAME " =1\nX" NAME "=1\n" NAME "X=1\n";
	of_all = "";
	assert_silent();
}

Test(nccl_conf, the_user_s_comes_before_that_of_all)
{
	of_all = NAME "=1\n";
	assert_says(1, "/etc/nccl.conf");
	of_user = "NCCL_DEBUG=INFO\n" NAME "=0";
	assert_says(0, "/.nccl.conf");
	/* Whatever $HOME is. */
	setenv("HOME", "/nowhere", 1);
	assert_says(0, "/.nccl.conf");
	cr_assert(strncmp(asked, "/nowhere", 8));
}

Test(nccl_conf, one_that_is_named_stands_for_the_user_s)
{
	setenv("NCCL_CONF_FILE", "/some/where.conf", 1);
	of_user = NAME "=1\n";
	assert_says(1, "/some/where.conf");
	cr_assert_str_eq(asked, "/some/where.conf");
	of_user = NULL;
	of_all = NAME "=1\n";
	assert_says(1, "/etc/nccl.conf");
	setenv("NCCL_CONF_FILE", "", 1);
	assert_says(1, "/etc/nccl.conf");
	cr_assert(strstr(asked, "/.nccl.conf"), "%s", asked);
}

Test(nccl_conf, the_environment_comes_before_all)
{
	of_user = NAME "=1\n";
	setenv(NAME, "0", 1);
	assert_says(0, "");
	/* Set, and it says nothing: the files are not looked at. */
	setenv(NAME, "", 1);
	assert_silent();
	/* NCCL itself has put it there. */
	setenv(NAME, "1", 1);
	assert_says(1, "/.nccl.conf");
	of_user = NULL;
	assert_says(1, "");
}

Test(nccl_conf, the_first_line_counts)
{
	of_user = NAME "=0\n" NAME "=1\n";
	assert_says(0, "/.nccl.conf");
}

/* Numbers as strtoll() has them. */
Test(nccl_conf, numbers)
{
	static const struct {
		const char *said;
		int64_t value;
	} cases[] = { { "0x1", 1 }, { " 1", 1 }, { "1 ", 1 }, { "01", 1 },
		      { "yes", 0 }, { "-1", -1 }, { "1\r", 1 } };

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		setenv(NAME, cases[i].said, 1);
		assert_says(cases[i].value, "");
	}
	setenv(NAME, "99999999999999999999", 1);
	assert_silent();
}

/* A file that is no text, or has no end. */
Test(nccl_conf, what_is_no_file)
{
	setenv("NCCL_CONF_FILE", "/tmp", 1);
	cr_assert(!sk_nccl_conf(sk_os_linux(), "SK_NOBODY_SAYS_THAT",
				&(struct sk_nccl_said){ 0 }));
	setenv("NCCL_CONF_FILE", "/dev/zero", 1);
	cr_assert(!sk_nccl_conf(sk_os_linux(), "SK_NOBODY_SAYS_THAT",
				&(struct sk_nccl_said){ 0 }));
}
