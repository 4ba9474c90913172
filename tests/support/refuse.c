/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs a program as a container's seccomp profile would have it: what profiles
 * refuse is refused, with the error that is named.
 *
 *	refuse [--old] EPERM|ENOSYS PROGRAM [ARGUMENT...]
 *
 * --old: and calls that profiles older than those have never heard of.
 */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

/* As the default profile of Docker and containerd, for who has no rights. */
static const int refused[] = {
	SYS_io_uring_setup, SYS_io_uring_enter, SYS_io_uring_register,
	SYS_mbind, SYS_set_mempolicy, SYS_get_mempolicy, SYS_move_pages,
	SYS_userfaultfd, SYS_pidfd_getfd, SYS_process_vm_readv,
	SYS_process_vm_writev, SYS_ptrace, SYS_kcmp, SYS_perf_event_open,
	SYS_unshare, SYS_setns, SYS_mount,
};
static const int newer[] = {
	SYS_pidfd_open, SYS_openat2, SYS_faccessat2, SYS_close_range,
	SYS_statx,
};

#define N(list) (sizeof(list) / sizeof((list)[0]))
#define MOST (2 * (N(refused) + N(newer)) + 4)

static size_t add(struct sock_filter *f, size_t n, const int *calls,
		  size_t n_calls, int error)
{
	for (size_t i = 0; i < n_calls; i++) {
		f[n++] = (struct sock_filter)BPF_JUMP(
			BPF_JMP | BPF_JEQ | BPF_K, (unsigned)calls[i], 0, 1);
		f[n++] = (struct sock_filter)BPF_STMT(
			BPF_RET | BPF_K,
			SECCOMP_RET_ERRNO | (unsigned)error);
	}
	return n;
}

static int install(int error, int old)
{
	static const int clone3[] = { SYS_clone3 };
	struct sock_filter f[MOST];
	size_t n = 0;
	struct sock_fprog program = { .filter = f };

	f[n++] = (struct sock_filter)BPF_STMT(
		BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
	n = add(f, n, refused, N(refused), error);
	/* Else no thread would begin, with any C library. */
	n = add(f, n, clone3, 1, ENOSYS);
	if (old)
		n = add(f, n, newer, N(newer), error);
	f[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K,
					      SECCOMP_RET_ALLOW);
	program.len = (unsigned short)n;
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
		return -1;
	return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

int main(int argc, char **argv)
{
	int old = argc > 1 && !strcmp(argv[1], "--old"), at = 1 + old, error;

	if (argc < at + 2)
		return 2;
	error = !strcmp(argv[at], "ENOSYS") ? ENOSYS : EPERM;
	if (install(error, old)) {
		perror("refuse: no seccomp filter here");
		return 77;
	}
	execvp(argv[at + 1], argv + at + 1);
	perror(argv[at + 1]);
	return 1;
}
