/* SPDX-License-Identifier: Apache-2.0 */
/* Options: what the command line and the environment say. */
#ifndef SK_AGENT_OPTIONS_H
#define SK_AGENT_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/retention.h"
#include "io/io.h"
#include "loop/log.h"

enum keep {
	KEEP_DEFAULT = 0,	/* in the background, or under systemd */
	KEEP_ALWAYS,
	KEEP_NEVER,
};

struct options {
	char *socket;		/* NULL: chosen */
	char *store;		/* NULL: none */
	char *metrics;		/* where they are served; NULL: nowhere */
	char *metrics_file;	/* NULL: none */
	bool metrics_public;	/* other machines may reach them */
	uint64_t memory;	/* bytes */
	uint64_t user_memory;	/* of one user; 0: all of it */
	uint64_t user_layouts;	/* bytes of one user's; 0: any number */
	uint64_t flush_rate;	/* bytes per second; 0: no limit */
	uint64_t scrub_rate;		/* bytes per second; 0: none */
	unsigned flush_interval_s;	/* 0: each snapshot is flushed */
	struct sk_retention retention;	/* of jobs that say nothing */
	bool retention_said;	/* else it is of those that began with it */
	uint64_t device_memory;	/* bytes of each GPU; 0: none */
	int worker_fd;		/* this is a worker, with that socket; -1 */
	unsigned idle_exit_s;	/* 0: never */
	unsigned stop_timeout_s;
	unsigned hangs_s;	/* of a store that does not answer; no flag */
	uid_t admin_uid;	/* (uid_t)-1: none */
	enum sk_io_backend backend;
	enum log_level level;
	int ready_fd;		/* -1: none */
	enum keep keeper;
	bool takeover;
	bool seal_writes;
	bool no_direct;
	bool detach;
	char *here;		/* where relative paths are from; NULL: that
				 * directory is gone */
	int argc;		/* what they were made of, to be read again; */
	char **argv;		/* NULL: nothing that could be */
};

/** 0 go on, 1 done (help, version), -EINVAL said why. Relative paths are made
 * absolute (paths.h). Options that are set are freed by options_free(). */
int options_parse(int argc, char **argv, struct options *ret);
/** The same again, after the file has changed: all that they would be if the
 * agent began now. As options_parse(). */
int options_again(const struct options *o, struct options *ret);
void options_free(struct options *o);

#endif
