/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/token.h"
#include "support/fault-os.h"

#define WORD "what it says"

static const struct sk_os *os;

static int make(int *ret_holder)
{
	int token;

	os = sk_os_linux();
	cr_assert_eq(sk_token_new(os, WORD, sizeof(WORD), &token, ret_holder),
		     0);
	return token;
}

static bool says(int token)
{
	char word[sizeof(WORD)] = "";

	return sk_token_read(os, token, word, sizeof(word)) == 0 &&
	       !strcmp(word, WORD);
}

Test(token, says_the_same_to_all_and_each_time)
{
	int holder, token = make(&holder), other = dup(token);

	for (int i = 0; i < 3; i++)
		cr_assert(says(token) && says(other));
	cr_assert(fcntl(token, F_GETFD) & FD_CLOEXEC);
	close(token);
	cr_assert(says(other));
}

Test(token, its_holder_learns_when_nobody_has_it)
{
	int holder, token = make(&holder), other = dup(token);

	cr_assert(!sk_token_is_void(os, holder));
	close(token);
	cr_assert(!sk_token_is_void(os, holder));
	/* What is sent to it is nothing to it. */
	cr_assert_eq(send(other, "x", 1, 0), 1);
	cr_assert(!sk_token_is_void(os, holder));
	sk_token_await(os, holder, os->now_ns(os) + 1000000);
	close(other);
	cr_assert(sk_token_is_void(os, holder));
	sk_token_await(os, holder, SK_FOREVER);
}

/* Whoever has it may be killed. */
Test(token, goes_with_processes)
{
	int holder, token = make(&holder);
	pid_t pid = fork();

	cr_assert_geq(pid, 0);
	if (!pid)
		for (;;)
			(void)pause();
	close(token);
	cr_assert(!sk_token_is_void(os, holder));
	cr_assert_eq(kill(pid, SIGKILL), 0);
	sk_token_await(os, holder, SK_FOREVER);
	cr_assert(sk_token_is_void(os, holder));
	cr_assert_eq(waitpid(pid, NULL, 0), pid);
}

Test(token, is_void_when_its_holder_is_gone)
{
	int holder, token = make(&holder);

	cr_assert(!sk_token_is_void(os, token));
	close(holder);
	cr_assert(sk_token_is_void(os, token));
	cr_assert(says(token), "what it said it says still");
}

Test(token, other_descriptors_are_none)
{
	char word[sizeof(WORD)];
	int fds[2], holder, token = make(&holder), memory;

	memory = memfd_create("none", MFD_CLOEXEC);
	cr_assert_eq(pipe(fds), 0);
	close(fds[1]);
	cr_assert_eq(sk_token_read(os, memory, word, 4), -ENOTSOCK);
	cr_assert_eq(sk_token_read(os, fds[0], word, 4), -ENOTSOCK);
	cr_assert(!sk_token_is_void(os, memory));
	cr_assert(!sk_token_is_void(os, fds[0]), "a pipe that hangs up");
	cr_assert_eq(sk_token_read(os, token, word, 4), -EBADMSG);
	cr_assert_lt(sk_token_read(os, holder, word, 4), 0);
	cr_assert_lt(sk_token_read(os, -1, word, 4), 0);
}

/* Whatever fails, nothing of it is left open. */
Test(token, what_fails_leaves_nothing)
{
	static const enum sk_fault_op calls[] = { SK_FAULT_SOCKETPAIR,
						  SK_FAULT_SENDMSG };
	int token, holder, next = dup(0);
	struct sk_fault_os fault;

	close(next);
	for (size_t i = 0; i < 2; i++) {
		sk_fault_os_init(&fault, sk_os_linux());
		sk_fault_os_fail(&fault, calls[i], 1, 1, ENOBUFS);
		cr_assert_eq(sk_token_new(&fault.os, WORD, sizeof(WORD),
					  &token, &holder), -ENOBUFS);
		cr_assert_eq(dup(0), next);
		close(next);
	}
}
