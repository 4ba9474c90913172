/* SPDX-License-Identifier: Apache-2.0 */
#include "await.h"

#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/inotify.h>
#include <unistd.h>

#include "base/os.h"

#define MS UINT64_C(1000000)

static uint64_t now(void)
{
	return sk_os_linux()->now_ns(sk_os_linux());
}

uint64_t await_until(void)
{
	return now() + AWAIT_MS * MS;
}

bool await_late(uint64_t until)
{
	return now() >= until;
}

/* From above, so that a folder made meanwhile is seen by the watch of the one
 * that it is in. */
static void watch_folders(int fd, const char *dir, const char *name)
{
	char path[PATH_MAX];

	for (const char *end = name; end; end = strchr(end + 1, '/')) {
		(void)snprintf(path, sizeof(path), "%s/%.*s", dir,
			       (int)(end - name), name);
		if (inotify_add_watch(fd, path, IN_CREATE | IN_MOVED_TO) < 0)
			return;
	}
}

static void await_event(int fd, uint64_t until)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };
	uint64_t at = now();
	char events[4096];

	if (at < until && poll(&p, 1, (int)((until - at) / MS) + 1) == 1)
		(void)!read(fd, events, sizeof(events));
}

bool await_file(const char *dir, const char *name)
{
	uint64_t until = await_until();
	int fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
	char path[PATH_MAX];
	bool there = false;

	(void)snprintf(path, sizeof(path), "%s/%s", dir, name);
	while (fd >= 0 && !there && !await_late(until)) {
		watch_folders(fd, dir, name);
		there = access(path, F_OK) == 0;
		if (!there)
			await_event(fd, until);
	}
	close(fd);
	return there || access(path, F_OK) == 0;
}
