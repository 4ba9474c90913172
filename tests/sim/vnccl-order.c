/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The simulated NCCL: in which order ranks launch what several communicators
 * do on their devices. Where one rank has two operations on its device at
 * once, and another one launches them the other way round, the real library
 * may wait for ever, on a busy day; the test that did it fails here, always.
 *
 * Each process appends what it launches to a file of its own in the folder
 * $VNCCL_ORDER, before it reads the others': of two that launch at once, one
 * at least sees both. Operations go by communicator and number, which all of
 * its ranks launch alike.
 */
#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "vnccl-private.h"

/* A line: the operation; and ("o") that it was launched while the other one
 * was under way. */
#define LAUNCHED "l %" PRIx64 " %" PRIu64 "\n"
#define OVERLAPS "o %" PRIx64 " %" PRIu64 " %" PRIx64 " %" PRIu64 "\n"

struct launch {
	uint64_t comm, number;
};

/* What one file says. */
struct history {
	struct launch *launched;
	size_t n;
	struct launch (*overlaps)[2];	/* the first under way at the second */
	size_t n_overlaps;
};

static uint64_t name_of(const struct ncclComm *comm)
{
	const unsigned char *id = (const unsigned char *)&comm->id;
	uint64_t name = 14695981039346656037u;

	for (size_t i = 0; i < sizeof(comm->id); i++)
		name = (name ^ id[i]) * 1099511628211u;
	return name;
}

static void append(const char *folder, const char *line)
{
	char path[256];
	int fd;

	(void)snprintf(path, sizeof(path), "%s/%d", folder, (int)getpid());
	fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	if (fd < 0 || write(fd, line, strlen(line)) != (ssize_t)strlen(line))
		vn_misuse("cannot write to %s", path);
	(void)close(fd);
}

/* ---- what others say ---- */

static void *room(void *v, size_t n, size_t size)
{
	v = realloc(v, (n + 1) * size);
	if (!v)
		vn_misuse("out of memory");
	return v;
}

static void read_history(const char *path, struct history *h)
{
	FILE *f = fopen(path, "re");
	struct launch a, b;
	char line[128];

	*h = (struct history){ 0 };
	while (f && fgets(line, sizeof(line), f)) {
		if (sscanf(line, LAUNCHED, &a.comm, &a.number) == 2) {
			h->launched = room(h->launched, h->n, sizeof(a));
			h->launched[h->n++] = a;
		} else if (sscanf(line, OVERLAPS, &a.comm, &a.number, &b.comm,
				  &b.number) == 4) {
			h->overlaps = room(h->overlaps, h->n_overlaps,
					   sizeof(*h->overlaps));
			h->overlaps[h->n_overlaps][0] = a;
			h->overlaps[h->n_overlaps++][1] = b;
		}
	}
	if (f)
		(void)fclose(f);
}

/* 0: not there; else its place and 1. */
static size_t place(const struct history *h, const struct launch *l)
{
	for (size_t i = 0; i < h->n; i++)
		if (h->launched[i].comm == l->comm &&
		    h->launched[i].number == l->number)
			return i + 1;
	return 0;
}

static void compare(const struct history *one, const struct history *other)
{
	for (size_t i = 0; i < one->n_overlaps; i++) {
		const struct launch *o = one->overlaps[i];
		size_t a = place(other, &o[0]), b = place(other, &o[1]);

		if (a && b && b < a)
			vn_misuse("two ranks launch operation %" PRIu64 " of "
				  "one communicator and %" PRIu64 " of another "
				  "in different orders, and both were on one "
				  "device at once: they may wait for each "
				  "other for ever", o[0].number, o[1].number);
	}
}

static void compare_all(const char *folder)
{
	struct history mine, other;
	struct dirent *e;
	char path[512];
	DIR *d;

	(void)snprintf(path, sizeof(path), "%s/%d", folder, (int)getpid());
	read_history(path, &mine);
	d = opendir(folder);
	while (d && (e = readdir(d))) {
		if (e->d_name[0] == '.' || atoi(e->d_name) == getpid())
			continue;
		(void)snprintf(path, sizeof(path), "%s/%s", folder, e->d_name);
		read_history(path, &other);
		compare(&mine, &other);
		compare(&other, &mine);
		free(other.launched);
		free(other.overlaps);
	}
	if (d)
		(void)closedir(d);
	free(mine.launched);
	free(mine.overlaps);
}

/* ---- launching ---- */

/* Those that are under way on the device in other communicators. */
static void note_overlaps(const char *folder, struct ncclComm *comm,
			  uint64_t number, struct ncclComm *all)
{
	char line[128];

	for (struct ncclComm *c = all; c; c = c->next) {
		uint64_t last = __atomic_load_n(&c->launched, __ATOMIC_RELAXED);
		unsigned pending = __atomic_load_n(&c->pending,
						   __ATOMIC_RELAXED);

		if (c == comm || c->device != comm->device)
			continue;
		for (unsigned k = 0; k < pending; k++) {
			(void)snprintf(line, sizeof(line), OVERLAPS,
				       name_of(c), last - k, name_of(comm),
				       number);
			append(folder, line);
		}
	}
}

void vn_note_launch(struct ncclComm *comm, struct ncclComm *all)
{
	const char *folder = vn_getenv("VNCCL_ORDER");
	uint64_t number = __atomic_add_fetch(&comm->launched, 1,
					     __ATOMIC_RELAXED);
	char line[64];

	if (!folder)
		return;
	(void)snprintf(line, sizeof(line), LAUNCHED, name_of(comm), number);
	append(folder, line);
	/* With one communicator at a time there is one order. */
	if (!all->next)
		return;
	note_overlaps(folder, comm, number, all);
	compare_all(folder);
}
