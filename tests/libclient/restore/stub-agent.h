/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The agent's part, played by a few functions in front of the library's: it
 * has images, lists them, and opens them. A program that links this has no
 * other agent.
 */
#ifndef SK_TESTS_STUB_AGENT_H
#define SK_TESTS_STUB_AGENT_H

#include <pthread.h>
#include <stdbool.h>

#include "conn/client.h"
#include "layout/layout.h"

#define JOB "property"
#define IMAGES_MAX 512

struct image {
	struct sk_layout *layout;
	uint64_t run, run_id;
	int64_t step;
	int memory, disk, header, sums;	/* -1: not there */
	bool reported[2];
};

struct stub_agent {
	pthread_mutex_t lock;
	struct image images[IMAGES_MAX];
	int n;
	bool incomplete;
	bool restless;		/* each list has other steps than the last, */
	int64_t standing;	/* but for this one */
	uint64_t run_id;	/* of the runs that are saved */
	unsigned unreadable;	/* of the store */
	unsigned opens;
	unsigned together;	/* round trips of several */
	uint64_t header_bytes;	/* that were given away */
	size_t records;		/* of lists, told to one rank */
	unsigned lists;		/* of images */
	unsigned snapshot_lists;
	unsigned leaving;	/* so often a list of images lacks the first */
	int gone, liar;		/* one more than the image that is listed and
				 * not there, or not what it was */
	unsigned deaf;		/* so often nobody is registered, */
	unsigned away;		/* or connected, from now on */
};

extern struct stub_agent agent;

/** A sealed memory file of those bytes. */
int memfd_of(const void *data, size_t bytes);
/** Another bit at that byte, though it is sealed. */
void flip(int fd, uint64_t at);
/** Some of what it has is gone: all that @goes says of. */
void lose_images(bool (*goes)(const struct image *image));
/** The same of what is in memory alone. */
void lose_memory(bool (*goes)(const struct image *image));
/** As at the start. */
void forget_images(void);

#endif
