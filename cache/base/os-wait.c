/* SPDX-License-Identifier: Apache-2.0 */
/* The real system: clocks, and waiting for what may happen. */
#include <limits.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <time.h>

#include "base/os-private.h"

#define SECOND_NS UINT64_C(1000000000)
#define MS_NS UINT64_C(1000000)

static uint64_t clock_ns(clockid_t clock)
{
	struct timespec ts = { 0 };

	/* These two clocks cannot fail on Linux. */
	(void)clock_gettime(clock, &ts);
	return (uint64_t)ts.tv_sec * SECOND_NS + (uint64_t)ts.tv_nsec;
}

uint64_t sk_linux_now_ns(const struct sk_os *os)
{
	(void)os;
	return clock_ns(CLOCK_MONOTONIC);
}

uint64_t sk_linux_wall_ns(const struct sk_os *os)
{
	(void)os;
	return clock_ns(CLOCK_REALTIME);
}

static struct timespec timespec_of(uint64_t ns)
{
	return (struct timespec){ .tv_sec = (time_t)(ns / SECOND_NS),
				  .tv_nsec = (long)(ns % SECOND_NS) };
}

/* What is left until then. */
static uint64_t left_ns(uint64_t until_ns)
{
	uint64_t now = clock_ns(CLOCK_MONOTONIC);

	return until_ns > now ? until_ns - now : 0;
}

int sk_linux_eventfd(const struct sk_os *os)
{
	(void)os;
	return sk_os_new_fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
}

int sk_linux_signalfd(const struct sk_os *os, const sigset_t *signals)
{
	(void)os;
	return sk_os_new_fd(signalfd(-1, signals, SFD_CLOEXEC | SFD_NONBLOCK));
}

int sk_linux_epoll_create(const struct sk_os *os)
{
	(void)os;
	return sk_os_new_fd(epoll_create1(EPOLL_CLOEXEC));
}

int sk_linux_epoll_ctl(const struct sk_os *os, int epoll, int operation,
		       int fd, struct epoll_event *event)
{
	(void)os;
	return sk_os_result(epoll_ctl(epoll, operation, fd, event));
}

/* Milliseconds, rounded up so as not to come back a moment too early. */
static int timeout_ms(uint64_t until_ns)
{
	uint64_t ms;

	if (until_ns == SK_FOREVER)
		return -1;
	ms = (left_ns(until_ns) + MS_NS - 1) / MS_NS;
	return ms > INT_MAX ? INT_MAX : (int)ms;
}

int sk_linux_epoll_wait(const struct sk_os *os, int epoll,
			struct epoll_event *ret_events, int room,
			uint64_t until_ns)
{
	int n;

	(void)os;
	do {
		n = epoll_wait(epoll, ret_events, room, timeout_ms(until_ns));
	} while (n < 0 && errno == EINTR);
	return n < 0 ? -errno : n ? n : -ETIMEDOUT;
}

int sk_linux_poll(const struct sk_os *os, struct pollfd *fds, nfds_t n,
		  uint64_t until_ns)
{
	int r;

	(void)os;
	do {
		struct timespec ts = timespec_of(left_ns(until_ns));

		r = ppoll(fds, n, until_ns == SK_FOREVER ? NULL : &ts, NULL);
	} while (r < 0 && errno == EINTR);
	return r < 0 ? -errno : r ? r : -ETIMEDOUT;
}

int sk_linux_cond_wait(const struct sk_os *os, pthread_cond_t *cond,
		       pthread_mutex_t *mutex, uint64_t until_ns)
{
	struct timespec ts = timespec_of(until_ns);

	(void)os;
	/* These functions return the error itself. */
	if (until_ns == SK_FOREVER)
		return -pthread_cond_wait(cond, mutex);
	return -pthread_cond_timedwait(cond, mutex, &ts);
}

void sk_cond_init(pthread_cond_t *ret_cond)
{
	pthread_condattr_t attr;

	/* None of these can fail with these arguments on Linux. */
	(void)pthread_condattr_init(&attr);
	(void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	(void)pthread_cond_init(ret_cond, &attr);
	(void)pthread_condattr_destroy(&attr);
}
