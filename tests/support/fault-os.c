/* SPDX-License-Identifier: Apache-2.0 */
#include "fault-os.h"

#include <assert.h>
#include <errno.h>

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

/* Counts a call of @op; the rule that changes it, or NULL. */
static const struct sk_fault_rule *rule_for(struct sk_fault_os *fault,
					    enum sk_fault_op op)
{
	uint64_t nth = count(fault, op);
	uint64_t nth_any = count(fault, SK_FAULT_ANY);

	for (int i = 0; i < fault->rule_count; i++) {
		const struct sk_fault_rule *rule = &fault->rules[i];
		uint64_t n = rule->op == SK_FAULT_ANY ? nth_any : nth;

		if (rule->op != op && rule->op != SK_FAULT_ANY)
			continue;
		if (n < rule->first || n - rule->first >= rule->times)
			continue;
		__atomic_add_fetch(&fault->hits, 1, __ATOMIC_RELAXED);
		return rule;
	}
	return NULL;
}

/* The error that this call of @op meets, or 0. */
static int meet(const struct sk_os *os, enum sk_fault_op op)
{
	const struct sk_fault_rule *rule = rule_for(fault_of(os), op);

	return rule ? -rule->error : 0;
}

/* The same for a call that moves @size bytes, which a rule may shorten. */
static int meet_bytes(const struct sk_os *os, enum sk_fault_op op,
		      size_t *size)
{
	const struct sk_fault_rule *rule = rule_for(fault_of(os), op);

	if (!rule)
		return 0;
	if (!rule->error && *size > rule->most)
		*size = (size_t)rule->most;
	return -rule->error;
}

static int fault_openat(const struct sk_os *os, int dirfd, const char *path,
			int flags, mode_t mode)
{
	const struct sk_os *inner = inner_of(os);
	int r = meet(os, SK_FAULT_OPENAT);

	return r ? r : inner->openat(inner, dirfd, path, flags, mode);
}

static int fault_close(const struct sk_os *os, int fd)
{
	const struct sk_os *inner = inner_of(os);
	int fail = meet(os, SK_FAULT_CLOSE);
	int r = inner->close(inner, fd);

	return fail ? fail : r;
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
	const struct sk_fault_rule *rule;
	int r;

	rule = rule_for(fault_of(os), fault_op_of_ring(op));
	r = inner->uring_result(inner, op, result);
	if (!rule)
		return r;
	if (rule->error)
		return -rule->error;
	if (op == SK_URING_FSYNC || r < 0)
		return r;
	return (uint64_t)r > rule->most ? (int)rule->most : r;
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

static void add_rule(struct sk_fault_os *fault, struct sk_fault_rule rule)
{
	assert(fault->rule_count < SK_FAULT_RULES);
	assert(rule.first >= 1 && rule.error >= 0);
	fault->rules[fault->rule_count++] = rule;
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

void sk_fault_os_clock(struct sk_fault_os *fault, uint64_t now_ns,
		       uint64_t wall_ns)
{
	fault->virtual_clock = true;
	fault->now = now_ns;
	fault->wall = wall_ns;
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
