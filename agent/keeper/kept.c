/* SPDX-License-Identifier: Apache-2.0 */
#include "keeper/kept.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/array.h"

#define FIRST_FD 3		/* of those that systemd gives */
#define FDS_MOST (1u << 20)

static uint64_t hash_name(const char *name)
{
	return sk_hash_bytes(sk_hash_seed(), name, strlen(name));
}

static struct kept_fd *find(struct kept *kept, const char *name)
{
	struct sk_table_walk walk = sk_table_find(&kept->by_name,
						  hash_name(name));
	uintptr_t at;

	while (sk_table_next(&walk, &at)) {
		kept->visits++;
		if (strcmp(kept->v[at].name, name) == 0)
			return &kept->v[at];
	}
	return NULL;
}

/* Its descriptor is the caller's. */
static int take(struct kept *kept, struct kept_fd *at)
{
	size_t i = (size_t)(at - kept->v);
	int fd = at->fd;

	assert(fd >= 0);
	(void)sk_table_remove(&kept->by_name, hash_name(at->name), i);
	at->fd = -1;
	at->next_free = kept->free;
	kept->free = i + 1;
	return fd;
}

/* One whose place is free, or a new one. NULL: no memory. */
static struct kept_fd *place(struct kept *kept, const char *name)
{
	size_t i = kept->free ? kept->free - 1 : kept->n;

	if (sk_array_fit(kept->v, kept->room, i + 1) < 0 ||
	    sk_table_add(&kept->by_name, hash_name(name), i) < 0)
		return NULL;
	if (kept->free)
		kept->free = kept->v[i].next_free;
	else
		kept->n++;
	(void)snprintf(kept->v[i].name, KEPT_NAME, "%s", name);
	return &kept->v[i];
}

int kept_add(const struct sk_os *os, struct kept *kept, const char *name,
	     int fd)
{
	struct kept_fd *at;
	int r = 0;

	if (!*name || strlen(name) >= KEPT_NAME)
		r = -EINVAL;
	at = r == 0 ? find(kept, name) : NULL;
	if (at)
		(void)os->close(os, at->fd);
	else if (r == 0)
		at = place(kept, name);
	if (!at) {
		(void)os->close(os, fd);
		return r < 0 ? r : -ENOMEM;
	}
	at->fd = fd;
	return 0;
}

int kept_take(struct kept *kept, const char *name)
{
	struct kept_fd *at = find(kept, name);

	return at ? take(kept, at) : -1;
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
		(void)os->close(os, take(kept, at));
		dropped++;
	}
	return dropped;
}

void kept_clear(const struct sk_os *os, struct kept *kept)
{
	(void)kept_drop(os, kept, "");
	sk_table_free(&kept->by_name);
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
