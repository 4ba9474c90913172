/* SPDX-License-Identifier: Apache-2.0 */
#include "fault-os.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

uint64_t sk_fault_every(void)
{
	const char *every = getenv("SK_EVERY");
	uint64_t n = every ? strtoull(every, NULL, 10) : 1;

	return n ? n : 1;
}

static struct sk_fault_os *fault_of(const struct sk_os *os)
{
	return os->ctx;
}

static const struct sk_os *inner_of(const struct sk_os *os)
{
	return fault_of(os)->inner;
}

static uint64_t count(struct sk_fault_os *fault, enum sk_fault_op op)
{
	return __atomic_add_fetch(&fault->calls[op], 1, __ATOMIC_RELAXED);
}

/* One may be put in another's place while a thread still looks at that: it
 * meets the one or the other, or something of both, once. */
static void copy_rule(const struct sk_fault_rule *from,
		      struct sk_fault_rule *to)
{
#define LOOK(field) __atomic_load_n(&from->field, __ATOMIC_RELAXED)
#define COPY(field) \
	__atomic_store_n(&to->field, LOOK(field), __ATOMIC_RELAXED)
	COPY(op);
	COPY(first);
	COPY(times);
	COPY(error);
	COPY(most);
	COPY(meddle);
	COPY(ctx);
#undef COPY
#undef LOOK
}

/* Whether the rule has one left, which is taken. By number alone the one that
 * fails could be a call that another thread makes as the rule is added. */
static bool take_one(struct sk_fault_rule *rule)
{
	uint64_t left = __atomic_load_n(&rule->times, __ATOMIC_RELAXED);

	while (left && !__atomic_compare_exchange_n(&rule->times, &left,
						    left - 1, true,
						    __ATOMIC_RELAXED,
						    __ATOMIC_RELAXED))
		;
	return left != 0;
}

/* Counts a call of @op; whether a rule changes it, which is *ret. */
static bool rule_for(struct sk_fault_os *fault, enum sk_fault_op op,
		     struct sk_fault_rule *ret)
{
	uint64_t nth = count(fault, op);
	uint64_t nth_any = count(fault, SK_FAULT_ANY);
	int n_rules = __atomic_load_n(&fault->rule_count, __ATOMIC_ACQUIRE);

	for (int i = 0; i < n_rules; i++) {
		uint64_t n;

		copy_rule(&fault->rules[i], ret);
		n = ret->op == SK_FAULT_ANY ? nth_any : nth;
		if (ret->op != op && ret->op != SK_FAULT_ANY)
			continue;
		if (n < ret->first || !take_one(&fault->rules[i]))
			continue;
		__atomic_store_n(&fault->hit, op, __ATOMIC_RELAXED);
		__atomic_add_fetch(&fault->hits, 1, __ATOMIC_RELAXED);
		if (ret->meddle)
			ret->meddle(ret->ctx);
		return true;
	}
	return false;
}

/* The error that this call of @op meets, or 0. */
static int meet(const struct sk_os *os, enum sk_fault_op op)
{
	struct sk_fault_rule rule;

	return rule_for(fault_of(os), op, &rule) ? -rule.error : 0;
}

/* The same for a call that moves @size bytes, which a rule may shorten. */
static int meet_bytes(const struct sk_os *os, enum sk_fault_op op,
		      size_t *size)
{
	struct sk_fault_rule rule;

	if (!rule_for(fault_of(os), op, &rule))
		return 0;
	if (!rule.error && *size > rule.most)
		*size = (size_t)rule.most;
	return -rule.error;
}

/* 0 where that is free, as of a table of operations that is not Linux's own,
 * which keeps from there. */
static int lowest(int fd)
{
	int low;

	if (fd <= 0 || fcntl(0, F_GETFD) >= 0)
		return fd;
	low = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	if (low < 0)
		return fd;
	(void)close(fd);
	return low;
}

static int fault_openat(const struct sk_os *os, int dirfd, const char *path,
			int flags, mode_t mode)
{
	const struct sk_os *inner = inner_of(os);
	int r = meet(os, SK_FAULT_OPENAT);

	return r ? r : lowest(inner->openat(inner, dirfd, path, flags, mode));
}

static int fault_close(const struct sk_os *os, int fd)
{
	const struct sk_os *inner = inner_of(os);
	int fail = meet(os, SK_FAULT_CLOSE);
	int r = inner->close(inner, fd);

	return fail ? fail : r;
}

/* What is watched can always be let go of. */
static int fault_epoll_ctl(const struct sk_os *os, int epoll, int operation,
			   int fd, struct epoll_event *event)
{
	const struct sk_os *inner = inner_of(os);
	int fail = meet(os, SK_FAULT_EPOLL_CTL);

	if (fail && operation == EPOLL_CTL_DEL)
		(void)inner->epoll_ctl(inner, epoll, operation, fd, event);
	return fail ? fail :
		      inner->epoll_ctl(inner, epoll, operation, fd, event);
}

static ssize_t fault_pread(const struct sk_os *os, int fd, void *buf,
			   size_t size, uint64_t offset)
{
	const struct sk_os *inner = inner_of(os);
	int r = meet_bytes(os, SK_FAULT_PREAD, &size);

	return r ? r : inner->pread(inner, fd, buf, size, offset);
}

static ssize_t fault_pwrite(const struct sk_os *os, int fd, const void *buf,
			    size_t size, uint64_t offset)
{
	const struct sk_os *inner = inner_of(os);
	int r = meet_bytes(os, SK_FAULT_PWRITE, &size);

	return r ? r : inner->pwrite(inner, fd, buf, size, offset);
}

static int fault_fallocate(const struct sk_os *os, int fd, int mode,
			   uint64_t offset, uint64_t size)
{
	const struct sk_os *inner = inner_of(os);
	int r = meet(os, SK_FAULT_FALLOCATE);

	return r ? r : inner->fallocate(inner, fd, mode, offset, size);
}

static int fault_ftruncate(const struct sk_os *os, int fd, uint64_t size)
{
	const struct sk_os *inner = inner_of(os);
	int r = meet(os, SK_FAULT_FTRUNCATE);

	return r ? r : inner->ftruncate(inner, fd, size);
}

static int fault_fsync(const struct sk_os *os, int fd)
{
	const struct sk_os *inner = inner_of(os);
	int r = meet(os, SK_FAULT_FSYNC);

	return r ? r : inner->fsync(inner, fd);
}

static int fault_fstat(const struct sk_os *os, int fd, struct stat *ret_st)
{
	const struct sk_os *inner = inner_of(os);
	int r = meet(os, SK_FAULT_FSTAT);

	return r ? r : inner->fstat(inner, fd, ret_st);
}

static int fault_mkdirat(const struct sk_os *os, int dirfd, const char *path,
			 mode_t mode)
{
	const struct sk_os *inner = inner_of(os);
	int r = meet(os, SK_FAULT_MKDIRAT);

	return r ? r : inner->mkdirat(inner, dirfd, path, mode);
}

static int fault_renameat(const struct sk_os *os, int olddir, const char *old,
			  int newdir, const char *new_name, unsigned flags)
{
	const struct sk_os *inner = inner_of(os);
	int r = meet(os, SK_FAULT_RENAMEAT);

	if (r)
		return r;
	return inner->renameat(inner, olddir, old, newdir, new_name, flags);
}

static int fault_unlinkat(const struct sk_os *os, int dirfd, const char *path,
			  int flags)
{
	const struct sk_os *inner = inner_of(os);
	int r = meet(os, SK_FAULT_UNLINKAT);

	return r ? r : inner->unlinkat(inner, dirfd, path, flags);
}

static int fault_memfd_create(const struct sk_os *os, const char *name,
			      unsigned flags)
{
	const struct sk_os *inner = inner_of(os);
	int r = meet(os, SK_FAULT_MEMFD_CREATE);

	return r ? r : inner->memfd_create(inner, name, flags);
}

static int fault_fcntl_seal(const struct sk_os *os, int fd, int seals)
{
	const struct sk_os *inner = inner_of(os);
	int r = meet(os, SK_FAULT_FCNTL_SEAL);

	return r ? r : inner->fcntl_seal(inner, fd, seals);
}

static int fault_mmap(const struct sk_os *os, void *at, size_t size,
		      int prot, int flags, int fd, uint64_t offset,
		      void **ret_map)
{
	const struct sk_os *inner = inner_of(os);
	int r = meet(os, SK_FAULT_MMAP);

	if (r)
		return r;
	return inner->mmap(inner, at, size, prot, flags, fd, offset,
			   ret_map);
}

static int fault_munmap(const struct sk_os *os, void *map, size_t size)
{
	const struct sk_os *inner = inner_of(os);
	int fail = meet(os, SK_FAULT_MUNMAP);
	int r = inner->munmap(inner, map, size);

	/* The one error that a right call can meet. */
	return fail ? -ENOMEM : r;
}

static int fault_madvise(const struct sk_os *os, void *map, size_t size,
			 int advice)
{
	const struct sk_os *inner = inner_of(os);
	int r = meet(os, SK_FAULT_MADVISE);

	return r ? r : inner->madvise(inner, map, size, advice);
}

/* An operation that either fails or happens. */
#define OP(type, op, OP, params, ...)					\
	static type fault_##op params					\
	{								\
		const struct sk_os *inner = inner_of(os);		\
		int r = meet(os, SK_FAULT_##OP);			\
									\
		return r ? r : inner->op(inner, __VA_ARGS__);		\
	}

OP(int, fstatat, FSTATAT, (const struct sk_os *os, int dirfd,
   const char *path, int flags, struct stat *ret_st),
   dirfd, path, flags, ret_st)
OP(int, fstatfs, FSTATFS, (const struct sk_os *os, int fd,
   struct statfs *ret_st), fd, ret_st)
OP(int, fchmodat, FCHMODAT, (const struct sk_os *os, int dirfd,
   const char *path, mode_t mode), dirfd, path, mode)
OP(int, fchown, FCHOWN, (const struct sk_os *os, int fd, uid_t uid), fd, uid)
OP(int, faccessat, FACCESSAT, (const struct sk_os *os, int dirfd,
   const char *path, int mode), dirfd, path, mode)
OP(int, fremovexattr, FREMOVEXATTR, (const struct sk_os *os, int fd,
   const char *name), fd, name)
OP(int, getcwd, GETCWD, (const struct sk_os *os, char *ret_path, size_t size),
   ret_path, size)
OP(int, chdir, CHDIR, (const struct sk_os *os, const char *path), path)
OP(int, dup2, DUP2, (const struct sk_os *os, int fd, int as), fd, as)
OP(int, flock, FLOCK, (const struct sk_os *os, int fd, int operation),
   fd, operation)
OP(int, fcntl, FCNTL, (const struct sk_os *os, int fd, int command, long arg),
   fd, command, arg)
OP(ssize_t, getdents, GETDENTS, (const struct sk_os *os, int fd, void *buf,
   size_t size), fd, buf, size)
OP(int, pipe, PIPE, (const struct sk_os *os, int ret_fds[2]), ret_fds)
OP(int, mprotect, MPROTECT, (const struct sk_os *os, void *map, size_t size,
   int prot), map, size, prot)
OP(int, statx, STATX, (const struct sk_os *os, int fd, unsigned mask,
   struct statx *ret_st), fd, mask, ret_st)
OP(int, fadvise, FADVISE, (const struct sk_os *os, int fd, int advice),
   fd, advice)
OP(int, mincore, MINCORE, (const struct sk_os *os, void *map, size_t size,
   unsigned char *ret_seen), map, size, ret_seen)
OP(int, mbind, MBIND, (const struct sk_os *os, void *map, size_t size,
   int mode, const unsigned long *nodes, unsigned long node_bits),
   map, size, mode, nodes, node_bits)
OP(int, socket, SOCKET, (const struct sk_os *os, int domain, int type,
   int protocol), domain, type, protocol)
OP(int, socketpair, SOCKETPAIR, (const struct sk_os *os, int domain, int type,
   int protocol, int ret_fds[2]), domain, type, protocol, ret_fds)
OP(int, bind, BIND, (const struct sk_os *os, int fd,
   const struct sockaddr *addr, socklen_t size), fd, addr, size)
OP(int, listen, LISTEN, (const struct sk_os *os, int fd, int backlog),
   fd, backlog)
OP(int, connect, CONNECT, (const struct sk_os *os, int fd,
   const struct sockaddr *addr, socklen_t size), fd, addr, size)
OP(int, accept, ACCEPT, (const struct sk_os *os, int fd, int flags),
   fd, flags)
OP(int, shutdown, SHUTDOWN, (const struct sk_os *os, int fd, int how),
   fd, how)
OP(int, getsockopt, GETSOCKOPT, (const struct sk_os *os, int fd, int level,
   int option, void *ret_value, socklen_t *size),
   fd, level, option, ret_value, size)
OP(int, setsockopt, SETSOCKOPT, (const struct sk_os *os, int fd, int level,
   int option, const void *value, socklen_t size),
   fd, level, option, value, size)
OP(int, getsockname, GETSOCKNAME, (const struct sk_os *os, int fd,
   struct sockaddr *ret_addr, socklen_t *size), fd, ret_addr, size)
OP(ssize_t, sendmsg, SENDMSG, (const struct sk_os *os, int fd,
   const struct msghdr *msg, int flags), fd, msg, flags)
OP(ssize_t, recvmsg, RECVMSG, (const struct sk_os *os, int fd,
   struct msghdr *msg, int flags), fd, msg, flags)
OP(int, signalfd, SIGNALFD, (const struct sk_os *os,
   const sigset_t *signals), signals)
OP(int, spawn, SPAWN, (const struct sk_os *os, const char *program,
   char *const argv[], int keep_fd), program, argv, keep_fd)
OP(int, waitpid, WAITPID, (const struct sk_os *os, pid_t pid,
   int *ret_status), pid, ret_status)
OP(int, kill, KILL, (const struct sk_os *os, pid_t pid, int signal),
   pid, signal)
OP(int, pidfd_open, PIDFD_OPEN, (const struct sk_os *os, pid_t pid), pid)
OP(int, setpriority, SETPRIORITY, (const struct sk_os *os, int which,
   id_t who, int nice), which, who, nice)
OP(int, getrlimit, GETRLIMIT, (const struct sk_os *os, int which,
   struct rlimit *ret_limit), which, ret_limit)
OP(int, setrlimit, SETRLIMIT, (const struct sk_os *os, int which,
   const struct rlimit *limit), which, limit)
OP(int, dlopen, DLOPEN, (const struct sk_os *os, const char *file, int flags,
   void **ret_library), file, flags, ret_library)
OP(int, dlsym, DLSYM, (const struct sk_os *os, void *library,
   const char *name, void **ret_symbol), library, name, ret_symbol)

static int fault_eventfd(const struct sk_os *os)
{
	int r = meet(os, SK_FAULT_EVENTFD);

	return r ? r : inner_of(os)->eventfd(inner_of(os));
}

static int fault_epoll_create(const struct sk_os *os)
{
	int r = meet(os, SK_FAULT_EPOLL_CREATE);

	return r ? r : inner_of(os)->epoll_create(inner_of(os));
}

static int fault_setsid(const struct sk_os *os)
{
	int r = meet(os, SK_FAULT_SETSID);

	return r ? r : inner_of(os)->setsid(inner_of(os));
}

static int fault_fork(const struct sk_os *os)
{
	int r = meet(os, SK_FAULT_FORK);

	return r ? r : inner_of(os)->fork(inner_of(os));
}

static ssize_t fault_read(const struct sk_os *os, int fd, void *buf,
			  size_t size)
{
	const struct sk_os *inner = inner_of(os);
	int r = meet_bytes(os, SK_FAULT_READ, &size);

	return r ? r : inner->read(inner, fd, buf, size);
}

static ssize_t fault_write(const struct sk_os *os, int fd, const void *buf,
			   size_t size)
{
	const struct sk_os *inner = inner_of(os);
	int r = meet_bytes(os, SK_FAULT_WRITE, &size);

	return r ? r : inner->write(inner, fd, buf, size);
}

/* ---- waits ---- */

#define LOOK_NS UINT64_C(1000000)

static uint64_t fault_now_ns(const struct sk_os *os);

/* Until when to wait really, before the virtual clock is looked at again. */
static uint64_t look_until(const struct sk_os *os, uint64_t until_ns)
{
	const struct sk_os *inner = inner_of(os);

	if (!fault_of(os)->virtual_clock)
		return until_ns;
	return inner->now_ns(inner) + LOOK_NS;
}

/* Whether a wait that ended without an event goes on. */
static bool waits_on(const struct sk_os *os, int r, uint64_t until_ns)
{
	return r == -ETIMEDOUT && fault_of(os)->virtual_clock &&
	       fault_now_ns(os) < until_ns;
}

static int fault_epoll_wait(const struct sk_os *os, int epoll,
			    struct epoll_event *ret_events, int room,
			    uint64_t until_ns)
{
	const struct sk_os *inner = inner_of(os);
	int r;

	do {
		r = inner->epoll_wait(inner, epoll, ret_events, room,
				      look_until(os, until_ns));
	} while (waits_on(os, r, until_ns));
	return r;
}

static int fault_poll(const struct sk_os *os, struct pollfd *fds, nfds_t n,
		      uint64_t until_ns)
{
	const struct sk_os *inner = inner_of(os);
	int r;

	do {
		r = inner->poll(inner, fds, n, look_until(os, until_ns));
	} while (waits_on(os, r, until_ns));
	return r;
}

/* Nothing that can fail. */
static int fault_alarm(const struct sk_os *os, unsigned seconds)
{
	const struct sk_os *inner = inner_of(os);

	return inner->alarm(inner, seconds);
}

static int fault_cond_wait(const struct sk_os *os, pthread_cond_t *cond,
			   pthread_mutex_t *mutex, uint64_t until_ns)
{
	const struct sk_os *inner = inner_of(os);
	int r = inner->cond_wait(inner, cond, mutex, look_until(os, until_ns));

	/* It may have been signalled after this look, and before it has the
	 * mutex again: the caller looks at what it waits for. */
	return waits_on(os, r, until_ns) ? 0 : r;
}

static uint64_t fault_now_ns(const struct sk_os *os)
{
	struct sk_fault_os *fault = fault_of(os);

	if (fault->virtual_clock)
		return __atomic_load_n(&fault->now, __ATOMIC_RELAXED);
	return fault->inner->now_ns(fault->inner);
}

static uint64_t fault_wall_ns(const struct sk_os *os)
{
	struct sk_fault_os *fault = fault_of(os);

	if (fault->virtual_clock)
		return __atomic_load_n(&fault->wall, __ATOMIC_RELAXED);
	return fault->inner->wall_ns(fault->inner);
}

static int fault_random(const struct sk_os *os, void *buf, size_t size)
{
	const struct sk_os *inner = inner_of(os);
	int r = meet(os, SK_FAULT_RANDOM);

	return r ? r : inner->random(inner, buf, size);
}

static enum sk_fault_op fault_op_of_ring(enum sk_uring_op op)
{
	if (op == SK_URING_READ)
		return SK_FAULT_URING_READ;
	if (op == SK_URING_WRITE)
		return SK_FAULT_URING_WRITE;
	return SK_FAULT_URING_FSYNC;
}

static int fault_uring_result(const struct sk_os *os, enum sk_uring_op op,
			      int result)
{
	const struct sk_os *inner = inner_of(os);
	struct sk_fault_rule rule;
	bool ruled = rule_for(fault_of(os), fault_op_of_ring(op), &rule);
	int r = inner->uring_result(inner, op, result);

	if (!ruled)
		return r;
	if (rule.error)
		return -rule.error;
	if (op == SK_URING_FSYNC || r < 0)
		return r;
	return (uint64_t)r > rule.most ? (int)rule.most : r;
}

static const struct sk_os fault_table = {
	.openat = fault_openat,
	.close = fault_close,
	.pread = fault_pread,
	.pwrite = fault_pwrite,
	.fallocate = fault_fallocate,
	.ftruncate = fault_ftruncate,
	.fsync = fault_fsync,
	.fstat = fault_fstat,
	.mkdirat = fault_mkdirat,
	.renameat = fault_renameat,
	.unlinkat = fault_unlinkat,
	.memfd_create = fault_memfd_create,
	.fcntl_seal = fault_fcntl_seal,
	.mmap = fault_mmap,
	.munmap = fault_munmap,
	.madvise = fault_madvise,
	.fstatat = fault_fstatat,
	.fstatfs = fault_fstatfs,
	.fchmodat = fault_fchmodat,
	.fchown = fault_fchown,
	.faccessat = fault_faccessat,
	.fremovexattr = fault_fremovexattr,
	.getcwd = fault_getcwd,
	.chdir = fault_chdir,
	.dup2 = fault_dup2,
	.flock = fault_flock,
	.fcntl = fault_fcntl,
	.read = fault_read,
	.write = fault_write,
	.getdents = fault_getdents,
	.pipe = fault_pipe,
	.mprotect = fault_mprotect,
	.statx = fault_statx,
	.fadvise = fault_fadvise,
	.mincore = fault_mincore,
	.mbind = fault_mbind,
	.socket = fault_socket,
	.socketpair = fault_socketpair,
	.bind = fault_bind,
	.listen = fault_listen,
	.connect = fault_connect,
	.accept = fault_accept,
	.shutdown = fault_shutdown,
	.getsockopt = fault_getsockopt,
	.setsockopt = fault_setsockopt,
	.getsockname = fault_getsockname,
	.sendmsg = fault_sendmsg,
	.recvmsg = fault_recvmsg,
	.eventfd = fault_eventfd,
	.signalfd = fault_signalfd,
	.epoll_create = fault_epoll_create,
	.epoll_ctl = fault_epoll_ctl,
	.epoll_wait = fault_epoll_wait,
	.poll = fault_poll,
	.cond_wait = fault_cond_wait,
	.fork = fault_fork,
	.spawn = fault_spawn,
	.waitpid = fault_waitpid,
	.kill = fault_kill,
	.pidfd_open = fault_pidfd_open,
	.alarm = fault_alarm,
	.setsid = fault_setsid,
	.setpriority = fault_setpriority,
	.getrlimit = fault_getrlimit,
	.setrlimit = fault_setrlimit,
	.dlopen = fault_dlopen,
	.dlsym = fault_dlsym,
	.now_ns = fault_now_ns,
	.wall_ns = fault_wall_ns,
	.random = fault_random,
	.uring_result = fault_uring_result,
};

void sk_fault_os_init(struct sk_fault_os *fault, const struct sk_os *inner)
{
	*fault = (struct sk_fault_os){ .os = fault_table, .inner = inner };
	fault->os.ctx = fault;
}

void sk_fault_os_forget(struct sk_fault_os *fault)
{
	__atomic_store_n(&fault->rule_count, 0, __ATOMIC_RELAXED);
	for (int i = 0; i < SK_FAULT_OP_COUNT; i++)
		__atomic_store_n(&fault->calls[i], 0, __ATOMIC_RELAXED);
	__atomic_store_n(&fault->hits, 0, __ATOMIC_RELAXED);
}

static void add_rule(struct sk_fault_os *fault, struct sk_fault_rule rule)
{
	assert(fault->rule_count < SK_FAULT_RULES);
	assert(rule.first >= 1 && rule.error >= 0);
	copy_rule(&rule, &fault->rules[fault->rule_count]);
	__atomic_add_fetch(&fault->rule_count, 1, __ATOMIC_RELEASE);
}

void sk_fault_os_fail(struct sk_fault_os *fault, enum sk_fault_op op,
		      uint64_t nth, uint64_t times, int error)
{
	assert(error > 0);
	add_rule(fault, (struct sk_fault_rule){
		.op = op, .first = nth, .times = times, .error = error });
}

void sk_fault_os_shorten(struct sk_fault_os *fault, enum sk_fault_op op,
			 uint64_t nth, uint64_t times, uint64_t most)
{
	add_rule(fault, (struct sk_fault_rule){
		.op = op, .first = nth, .times = times, .most = most });
}

void sk_fault_os_meddle(struct sk_fault_os *fault, enum sk_fault_op op,
			uint64_t nth, void (*meddle)(void *ctx), void *ctx)
{
	add_rule(fault, (struct sk_fault_rule){
		.op = op, .first = nth, .times = 1, .most = UINT64_MAX,
		.meddle = meddle, .ctx = ctx });
}

void sk_fault_os_clock(struct sk_fault_os *fault, uint64_t now_ns,
		       uint64_t wall_ns)
{
	fault->now = now_ns;
	fault->wall = wall_ns;
	__atomic_store_n(&fault->virtual_clock, true, __ATOMIC_RELEASE);
}

void sk_fault_os_advance(struct sk_fault_os *fault, uint64_t ns)
{
	__atomic_add_fetch(&fault->now, ns, __ATOMIC_RELAXED);
	__atomic_add_fetch(&fault->wall, ns, __ATOMIC_RELAXED);
}

uint64_t sk_fault_os_calls(const struct sk_fault_os *fault,
			   enum sk_fault_op op)
{
	return __atomic_load_n(&fault->calls[op], __ATOMIC_RELAXED);
}

uint64_t sk_fault_os_hits(const struct sk_fault_os *fault)
{
	return __atomic_load_n(&fault->hits, __ATOMIC_RELAXED);
}

enum sk_fault_op sk_fault_os_hit(const struct sk_fault_os *fault)
{
	return __atomic_load_n(&fault->hit, __ATOMIC_RELAXED);
}
