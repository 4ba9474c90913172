/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Small tools every folder uses: release by attribute, checked arithmetic,
 * rounding. Header only; knows nothing of Shardkeep's own objects.
 */
#ifndef SK_CACHE_BASE_UTIL_H
#define SK_CACHE_BASE_UTIL_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

#define SK_PAGE 4096u	/* the alignment of images, files and direct I/O */
#define SK_HUGE_PAGE (UINT64_C(2) << 20)

#define SK_ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))

static inline void sk_freep(void *p)
{
	int e = errno;

	free(*(void **)p);
	errno = e;
}

/** Closes @fd unless negative, keeps errno; returns -1 for assignment. */
static inline int sk_close_fd(int fd)
{
	int e = errno;

	if (fd >= 0)
		close(fd);
	errno = e;
	return -1;
}

static inline void sk_closep(int *fd)
{
	sk_close_fd(*fd);
}

/** Hands over: returns what stood there and leaves the empty value. */
static inline int sk_take_fd(int *fd)
{
	int f = *fd;

	*fd = -1;
	return f;
}

#define sk_take_ptr(p) \
	({ __typeof__(p) *pp_ = &(p), v_ = *pp_; *pp_ = NULL; v_; })

/** How many of @n sorted elements come before what is looked for: where it
 * stands, or would. @before is asked of one by its index, which it calls @i;
 * once it is false, it is so of all that follow. */
#define sk_count_before(n, i, before) ({				\
	size_t from_ = 0, to_ = (size_t)(n);				\
	while (from_ < to_) {						\
		size_t i = from_ + (to_ - from_) / 2;			\
		if (before)						\
			from_ = i + 1;					\
		else							\
			to_ = i;					\
	}								\
	from_;								\
})

#define _cleanup_free_ __attribute__((cleanup(sk_freep)))
#define _cleanup_close_ __attribute__((cleanup(sk_closep)))

/** Declares f##p for the cleanup attribute of pointers to @type. */
#define SK_DEFINE_CLEANUP(type, f)					\
	static inline void f##p(type *p)				\
	{								\
		if (*p)							\
			f(*p);						\
	}

static inline uint64_t sk_round_up(uint64_t n, uint64_t to)
{
	return (n + to - 1) / to * to;
}

static inline bool sk_add_u64(uint64_t a, uint64_t b, uint64_t *ret)
{
	return !__builtin_add_overflow(a, b, ret);
}

static inline bool sk_mul_u64(uint64_t a, uint64_t b, uint64_t *ret)
{
	return !__builtin_mul_overflow(a, b, ret);
}

static inline int64_t sk_min_i64(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

static inline int64_t sk_max_i64(int64_t a, int64_t b)
{
	return a > b ? a : b;
}

#endif
