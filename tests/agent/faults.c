/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The agent where the system fails: each call once, and each operation for
 * good. It refuses with a sentence or does what it is asked; it does not
 * crash, hang, or say what is not so.
 *
 * $SK_EVERY: only every so many calls. argv[1]: only from that call on (to look
 * at one).
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/whole.h"
#include "base/util.h"

/* Of these no failure is passed over in silence. */
static bool must_be_told(enum sk_fault_op op)
{
	static const enum sk_fault_op ops[] = {
		SK_FAULT_FALLOCATE, SK_FAULT_FTRUNCATE, SK_FAULT_FSYNC,
		SK_FAULT_MEMFD_CREATE, SK_FAULT_FCNTL_SEAL, SK_FAULT_MMAP,
		SK_FAULT_FCHMODAT, SK_FAULT_SOCKET, SK_FAULT_BIND,
		SK_FAULT_LISTEN, SK_FAULT_EVENTFD, SK_FAULT_SIGNALFD,
		SK_FAULT_EPOLL_CREATE, SK_FAULT_RANDOM, SK_FAULT_URING_WRITE,
	};

	for (size_t i = 0; i < SK_ARRAY_SIZE(ops); i++) {
		if (op == ops[i])
			return true;
	}
	return false;
}

/* Where a connection is lost, nobody can be told; what a client's descriptor
 * is not is said in other words. */
static bool is_said_otherwise(enum sk_fault_op op)
{
	return op == SK_FAULT_SENDMSG || op == SK_FAULT_RECVMSG ||
	       op == SK_FAULT_GETSOCKOPT || op == SK_FAULT_EPOLL_CTL ||
	       op == SK_FAULT_FSTAT || op == SK_FAULT_FCNTL;
}

/* What was refused, or cannot have gone well, names what was met. */
static void check_told(const struct story *s, enum sk_fault_op op, int error)
{
	bool well = s->registered && s->sealed && s->durable &&
		    s->restored && s->status == 0;

	if (well ? !must_be_told(op) : is_said_otherwise(op))
		return;
	CHECK(strstr(s->said, strerror(error)), "operation %d, error %d, "
	      "nothing is told of it: %s", op, error, s->said);
}

static struct story run(enum sk_fault_op op, uint64_t nth, uint64_t times,
			int error, uint64_t *ret_hits)
{
	struct story story;
	struct whole w;

	whole_init(&w);
	w.options.retention.keep_last = 1;
	w.options.retention_said = true;
	whole_metrics(&w);
	if (op != SK_FAULT_OP_COUNT)
		sk_fault_os_fail(w.fault, op, nth, times, error);
	whole_start(&w);
	story = whole_story(&w);
	*ret_hits = sk_fault_os_hits(w.fault);
	if (*ret_hits)
		check_told(&story, sk_fault_os_hit(w.fault), error);
	whole_remove(&w);
	return story;
}

/* The agent may have been started without standard input: any descriptor may
 * be 0. */
static void test_each_zero(enum sk_fault_op op, uint64_t stride)
{
	struct story s;
	struct whole w;
	uint64_t calls = 1;

	for (uint64_t n = 1; n <= calls; n += stride) {
		fprintf(stderr, "operation %d, call %llu gives 0\n", op,
			(unsigned long long)n);
		whole_init(&w);
		sk_fault_os_meddle(w.fault, op, n, whole_free_zero, NULL);
		whole_start(&w);
		s = whole_story(&w);
		calls = sk_fault_os_calls(w.fault, op);
		whole_remove(&w);
		CHECK(s.registered && s.sealed && s.durable && s.restored &&
		      s.status == 0, "%s", s.said);
	}
}

static void test_none(void)
{
	uint64_t hits;
	struct story s = run(SK_FAULT_OP_COUNT, 0, 0, 0, &hits);

	CHECK(s.registered && s.sealed && s.durable && s.restored &&
	      s.status == 0 && !hits, "without faults all is well");
}

static void test_each_call(int error, uint64_t first, uint64_t stride)
{
	uint64_t hits = 1;

	for (uint64_t n = first; hits; n += stride) {
		fprintf(stderr, "call %llu, error %d\n",
			(unsigned long long)n, error);
		(void)run(SK_FAULT_ANY, n, 1, error, &hits);
	}
}

static void test_each_operation(void)
{
	static const struct {
		enum sk_fault_op op;
		int error;
	} all[] = {
		{ SK_FAULT_OPENAT, EMFILE }, { SK_FAULT_MKDIRAT, EACCES },
		{ SK_FAULT_FSTAT, EIO }, { SK_FAULT_FSTATAT, EACCES },
		{ SK_FAULT_FLOCK, ENOLCK }, { SK_FAULT_FCNTL, EMFILE },
		{ SK_FAULT_SOCKET, EMFILE }, { SK_FAULT_BIND, EADDRINUSE },
		{ SK_FAULT_LISTEN, EOPNOTSUPP }, { SK_FAULT_MMAP, ENOMEM },
		{ SK_FAULT_MEMFD_CREATE, EMFILE }, { SK_FAULT_PREAD, EIO },
		{ SK_FAULT_FTRUNCATE, ENOSPC }, { SK_FAULT_FSYNC, EIO },
		{ SK_FAULT_FALLOCATE, ENOSPC }, { SK_FAULT_PWRITE, ENOSPC },
		{ SK_FAULT_URING_WRITE, EIO }, { SK_FAULT_RENAMEAT, EROFS },
		{ SK_FAULT_UNLINKAT, EROFS }, { SK_FAULT_EVENTFD, EMFILE },
		{ SK_FAULT_SIGNALFD, EMFILE }, { SK_FAULT_GETDENTS, EIO },
		{ SK_FAULT_EPOLL_CREATE, EMFILE }, { SK_FAULT_RANDOM, EIO },
		{ SK_FAULT_EPOLL_CTL, ENOSPC }, { SK_FAULT_GETRLIMIT, EPERM },
		{ SK_FAULT_SETRLIMIT, EPERM }, { SK_FAULT_MADVISE, EINVAL },
		{ SK_FAULT_FCNTL_SEAL, EPERM }, { SK_FAULT_FSTATFS, EIO },
		{ SK_FAULT_PIDFD_OPEN, ESRCH }, { SK_FAULT_CLOSE, EIO },
		{ SK_FAULT_SETPRIORITY, EACCES },
		{ SK_FAULT_FCHMODAT, EPERM },
		{ SK_FAULT_GETSOCKOPT, ENOPROTOOPT },
	};
	uint64_t hits;

	for (size_t i = 0; i < SK_ARRAY_SIZE(all); i++) {
		fprintf(stderr, "operation %d, error %d\n", all[i].op,
			all[i].error);
		(void)run(all[i].op, 1, SK_FAULT_ALWAYS, all[i].error, &hits);
	}
}

int main(int argc, char **argv)
{
	uint64_t stride = sk_fault_every();
	uint64_t first = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;

	if (argc < 2) {
		test_none();
		test_each_operation();
		test_each_zero(SK_FAULT_OPENAT, stride);
		test_each_zero(SK_FAULT_MEMFD_CREATE, stride);
		test_each_zero(SK_FAULT_FCNTL, stride);
	}
	test_each_call(EIO, first, stride);
	test_each_call(ENOMEM, first, 3 * stride);
	return 0;
}
