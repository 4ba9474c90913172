/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An sk_os that wraps another one, counts the calls, and fails those that a
 * test names, so that "every call may fail" is a loop:
 *
 *	for (n = 1; ; n++) {
 *		sk_fault_os_init(&fault, sk_os_linux());
 *		sk_fault_os_fail(&fault, SK_FAULT_ANY, n, 1, EIO);
 *		r = what_is_tested(&fault.os);
 *		if (!sk_fault_os_hits(&fault))
 *			break;
 *	}
 *
 * A call that is failed does not happen, except for close, munmap, and the end
 * of an epoll's watch, which release what they are given and then report the
 * error (munmap: -ENOMEM, whatever was asked for), so that no test leaks by its
 * own doing. Waits do
 * not fail; on the virtual clock their deadlines are of that clock, and they
 * look at it each millisecond: cond_wait() wakes its caller for that.
 *
 * Thread-safety: rules and clock are set before the table is used; the
 * counters are atomic, so any threads may call through the table.
 */
#ifndef SK_TESTS_FAULT_OS_H
#define SK_TESTS_FAULT_OS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/os.h"

enum sk_fault_op {
	SK_FAULT_OPENAT,
	SK_FAULT_CLOSE,
	SK_FAULT_PREAD,
	SK_FAULT_PWRITE,
	SK_FAULT_FALLOCATE,
	SK_FAULT_FTRUNCATE,
	SK_FAULT_FSYNC,
	SK_FAULT_FSTAT,
	SK_FAULT_MKDIRAT,
	SK_FAULT_RENAMEAT,
	SK_FAULT_UNLINKAT,
	SK_FAULT_MEMFD_CREATE,
	SK_FAULT_FCNTL_SEAL,
	SK_FAULT_MMAP,
	SK_FAULT_MUNMAP,
	SK_FAULT_MADVISE,
	SK_FAULT_FSTATAT,
	SK_FAULT_FSTATFS,
	SK_FAULT_FCHMODAT,
	SK_FAULT_FCHOWN,
	SK_FAULT_FACCESSAT,
	SK_FAULT_FREMOVEXATTR,
	SK_FAULT_GETCWD,
	SK_FAULT_CHDIR,
	SK_FAULT_DUP2,
	SK_FAULT_FLOCK,
	SK_FAULT_FCNTL,
	SK_FAULT_READ,
	SK_FAULT_WRITE,
	SK_FAULT_GETDENTS,
	SK_FAULT_PIPE,
	SK_FAULT_MPROTECT,
	SK_FAULT_STATX,
	SK_FAULT_FADVISE,
	SK_FAULT_MINCORE,
	SK_FAULT_MBIND,
	SK_FAULT_SOCKET,
	SK_FAULT_SOCKETPAIR,
	SK_FAULT_BIND,
	SK_FAULT_LISTEN,
	SK_FAULT_CONNECT,
	SK_FAULT_ACCEPT,
	SK_FAULT_SHUTDOWN,
	SK_FAULT_GETSOCKOPT,
	SK_FAULT_SETSOCKOPT,
	SK_FAULT_GETSOCKNAME,
	SK_FAULT_SENDMSG,
	SK_FAULT_RECVMSG,
	SK_FAULT_EVENTFD,
	SK_FAULT_SIGNALFD,
	SK_FAULT_EPOLL_CREATE,
	SK_FAULT_EPOLL_CTL,
	SK_FAULT_FORK,
	SK_FAULT_SPAWN,
	SK_FAULT_WAITPID,
	SK_FAULT_KILL,
	SK_FAULT_PIDFD_OPEN,
	SK_FAULT_SETSID,
	SK_FAULT_SETPRIORITY,
	SK_FAULT_GETRLIMIT,
	SK_FAULT_SETRLIMIT,
	SK_FAULT_DLOPEN,
	SK_FAULT_DLSYM,
	SK_FAULT_RANDOM,
	SK_FAULT_URING_READ,
	SK_FAULT_URING_WRITE,
	SK_FAULT_URING_FSYNC,
	SK_FAULT_ANY,		/* any of the above, counted together */
	SK_FAULT_OP_COUNT
};

#define SK_FAULT_ALWAYS UINT64_MAX
#define SK_FAULT_RULES 8

struct sk_fault_rule {
	enum sk_fault_op op;
	uint64_t first;		/* this call, from 1, or the next after it */
	uint64_t times;		/* as many, from there; how many are left */
	int error;		/* a positive errno; 0: shorten */
	uint64_t most;		/* bytes that a shortened call moves */
	void (*meddle)(void *ctx);
	void *ctx;
};

struct sk_fault_os {
	struct sk_os os;	/* what is given to the code under test */
	const struct sk_os *inner;
	struct sk_fault_rule rules[SK_FAULT_RULES];
	int rule_count;
	bool virtual_clock;
	/* private, atomic: */
	uint64_t calls[SK_FAULT_OP_COUNT];
	uint64_t hits;
	enum sk_fault_op hit;	/* the last that a rule changed */
	uint64_t now, wall;
};

/** Of what is tried one after the other, most of all which call or allocation
 * fails, how many to go on by: $SK_EVERY, or 1. For builds that take long, and
 * look for what each whole run has as well. */
uint64_t sk_fault_every(void);

/** Fills @fault in place: no rules, real clock. It must not be moved. */
void sk_fault_os_init(struct sk_fault_os *fault, const struct sk_os *inner);

/** Forgets rules and counts, also while others use the table: what they were
 * about to meet they may still meet. */
void sk_fault_os_forget(struct sk_fault_os *fault);

/** Fails the @nth call (from 1) of @op and those after it, @times in all,
 * with the positive @error. */
void sk_fault_os_fail(struct sk_fault_os *fault, enum sk_fault_op op,
		      uint64_t nth, uint64_t times, int error);

/** Lets the same calls move at most @most bytes. For reads and writes, by
 * system call and by ring; other calls are not changed. */
void sk_fault_os_shorten(struct sk_fault_os *fault, enum sk_fault_op op,
			 uint64_t nth, uint64_t times, uint64_t most);

/** Calls @meddle right before the @nth call of @op, which then happens: what
 * another process does between two calls. @meddle must not use this table. */
void sk_fault_os_meddle(struct sk_fault_os *fault, enum sk_fault_op op,
			uint64_t nth, void (*meddle)(void *ctx), void *ctx);

/** Takes the clocks off the system; they stand until advanced. */
void sk_fault_os_clock(struct sk_fault_os *fault, uint64_t now_ns,
		       uint64_t wall_ns);
void sk_fault_os_advance(struct sk_fault_os *fault, uint64_t ns);

/** How often @op was called, failed calls included. */
uint64_t sk_fault_os_calls(const struct sk_fault_os *fault,
			   enum sk_fault_op op);
/** How many calls a rule changed. */
uint64_t sk_fault_os_hits(const struct sk_fault_os *fault);
/** The operation of the last one; SK_FAULT_OPENAT where there was none. */
enum sk_fault_op sk_fault_os_hit(const struct sk_fault_os *fault);

#endif
