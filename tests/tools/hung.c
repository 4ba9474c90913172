/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hung COMMAND...: the command as on a filesystem that is frozen: it reads, and
 * what would write waits for good. Exit code 77: the kernel lets nobody do so.
 *
 * fremovexattr() is what a store is asked by whether it takes writes
 * (cache/store/store.c). It is handed to a listener that never answers
 * (seccomp_unotify(2)).
 */
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SKIPPED 77

static struct sock_filter filter[] = {
	BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
	BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_fremovexattr, 0, 1),
	BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
	BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
};

/* A descriptor that stays open across exec: without a listener the call would
 * fail. */
static int listen_to_it(void)
{
	struct sock_fprog program = {
		.len = sizeof(filter) / sizeof(*filter), .filter = filter };
	int fd = (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER,
			      SECCOMP_FILTER_FLAG_NEW_LISTENER, &program);

	return fd < 0 ? -1 : dup(fd);
}

int main(int argc, char **argv)
{
	if (argc < 2) {
		fprintf(stderr, "usage: hung COMMAND...\n");
		return 2;
	}
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || listen_to_it() < 0)
		return SKIPPED;
	(void)execvp(argv[1], argv + 1);
	perror(argv[1]);
	return 127;
}
