/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Log: lines for people and the journal, on standard error.
 *
 * Thread-safety: log_line() may be called from any thread; each line is one
 * write.
 */
#ifndef SK_AGENT_LOOP_LOG_H
#define SK_AGENT_LOOP_LOG_H

#include <stdbool.h>

#include "base/os.h"

#define LOG_MOST ((off_t)8 << 20)

enum log_level { LOG_LEVEL_ERROR, LOG_LEVEL_WARNING, LOG_LEVEL_INFO,
		 LOG_LEVEL_DEBUG };

struct log {
	const struct sk_os *os;	/* whose clock is written */
	enum log_level level;	/* lines above it are dropped; atomic */
	bool plain;		/* the journal puts the time on it */
};

/** Any thread. */
void log_set_level(struct log *log, enum log_level level);
void log_open(struct log *log, const struct sk_os *os, enum log_level level);
/**
 * Standard error goes to the file from now on. One of LOG_MOST bytes or more
 * becomes @path.old first, in place of an older one, so that both together
 * stay bounded. Called again, it does the same where the file has grown, or
 * is gone, and else nothing.
 */
int log_to_file(const struct sk_os *os, const char *path);
/** The level of that name; -1: there is none. */
int log_level_parse(const char *word);
/** One line, cut at 1 KiB. */
void log_line(const struct log *log, enum log_level level,
	      const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* @a: whatever has a struct log as its member "log". */
#define log_error(a, ...) log_line(&(a)->log, LOG_LEVEL_ERROR, __VA_ARGS__)
#define log_warning(a, ...) log_line(&(a)->log, LOG_LEVEL_WARNING, __VA_ARGS__)
#define log_info(a, ...) log_line(&(a)->log, LOG_LEVEL_INFO, __VA_ARGS__)
#define log_debug(a, ...) log_line(&(a)->log, LOG_LEVEL_DEBUG, __VA_ARGS__)

#endif
