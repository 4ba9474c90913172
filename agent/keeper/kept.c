/* SPDX-License-Identifier: Apache-2.0 */
#include "keeper/kept.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/array.h"

#define FIRST_FD 3		/* of those that systemd gives */
#define FDS_MOST (1u << 20)

static struct kept_fd *find(struct kept *kept, const char *name)
{
	for (size_t i = 0; i < kept->n; i++) {
		if (kept->v[i].fd >= 0 && strcmp(kept->v[i].name, name) == 0)
			return &kept->v[i];
	}
	return NULL;
}

/* One whose place is free, or a new one. */
static struct kept_fd *place(struct kept *kept)
{
	for (size_t i = 0; i < kept->n; i++) {
		if (kept->v[i].fd < 0)
			return &kept->v[i];
	}
	if (sk_array_fit(kept->v, kept->room, kept->n + 1) < 0)
		return NULL;
	return &kept->v[kept->n++];
}

int kept_add(const struct sk_os *os, struct kept *kept, const char *name,
	     int fd)
{
	struct kept_fd *at = find(kept, name);

	if (!*name || strlen(name) >= KEPT_NAME) {
		(void)os->close(os, fd);
		return -EINVAL;
	}
	if (at)
		(void)os->close(os, at->fd);
	else
		at = place(kept);
	if (!at) {
		(void)os->close(os, fd);
		return -ENOMEM;
	}
	(void)snprintf(at->name, sizeof(at->name), "%s", name);
	at->fd = fd;
	return 0;
}

int kept_take(struct kept *kept, const char *name)
{
	struct kept_fd *at = find(kept, name);
	int fd = at ? at->fd : -1;

	if (at)
		at->fd = -1;
	return fd;
}

size_t kept_drop(const struct sk_os *os, struct kept *kept,
		 const char *prefix)
{
	size_t dropped = 0;

	for (size_t i = 0; i < kept->n; i++) {
		struct kept_fd *at = &kept->v[i];

		if (at->fd < 0 ||
		    strncmp(at->name, prefix, strlen(prefix)) != 0)
			continue;
		(void)os->close(os, at->fd);
		at->fd = -1;
		dropped++;
	}
	return dropped;
}

void kept_clear(const struct sk_os *os, struct kept *kept)
{
	(void)kept_drop(os, kept, "");
	free(kept->v);
	*kept = (struct kept){ 0 };
}

static unsigned long number_in(const char *name)
{
	const char *text = getenv(name);

	return text ? strtoul(text, NULL, 10) : 0;
}

/* The names are divided by colons; where there are too few, it has none. */
static int add_named(const struct sk_os *os, struct kept *kept,
		     const char **names, int fd)
{
	size_t n = strcspn(*names, ":");
	char name[KEPT_NAME] = "";

	if (n < sizeof(name))
		memcpy(name, *names, n);
	*names += n + ((*names)[n] == ':');
	(void)os->fcntl(os, fd, F_SETFD, FD_CLOEXEC);
	return kept_add(os, kept, name, fd);
}

int kept_from_environment(const struct sk_os *os, struct kept *ret)
{
	const char *names = getenv("LISTEN_FDNAMES");
	unsigned long n = number_in("LISTEN_FDS");
	int r = 0;

	if (number_in("LISTEN_PID") != (unsigned long)getpid() ||
	    n > FDS_MOST || !names)
		n = 0;
	for (unsigned long i = 0; i < n && r != -ENOMEM; i++)
		r = add_named(os, ret, &names, FIRST_FD + (int)i);
	(void)unsetenv("LISTEN_PID");
	(void)unsetenv("LISTEN_FDS");
	(void)unsetenv("LISTEN_FDNAMES");
	return r == -ENOMEM ? r : 0;
}
