/* SPDX-License-Identifier: Apache-2.0 */
/* Lines for people and the journal, on standard error. */
#include "loop/log.h"

#include <assert.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <strings.h>
#include <time.h>

#include "base/text.h"
#include "base/util.h"

static const char *const words[] = {
	[LOG_LEVEL_ERROR] = "error",
	[LOG_LEVEL_WARNING] = "warning",
	[LOG_LEVEL_INFO] = "info",
	[LOG_LEVEL_DEBUG] = "debug",
};

/* The journal's own numbers, for its colours and filters. */
static const int priorities[] = {
	[LOG_LEVEL_ERROR] = 3,
	[LOG_LEVEL_WARNING] = 4,
	[LOG_LEVEL_INFO] = 6,
	[LOG_LEVEL_DEBUG] = 7,
};

int log_level_parse(const char *word)
{
	for (int i = 0; i < (int)SK_ARRAY_SIZE(words); i++) {
		if (strcasecmp(word, words[i]) == 0)
			return i;
	}
	return -1;
}

/* The journal says which stream it reads; ours may have been redirected. */
static bool is_journal(const struct sk_os *os)
{
	const char *stream = getenv("JOURNAL_STREAM");
	unsigned long long dev, ino;
	struct stat st;

	return stream && sscanf(stream, "%llu:%llu", &dev, &ino) == 2 &&
	       os->fstat(os, STDERR_FILENO, &st) == 0 &&
	       st.st_dev == dev && st.st_ino == ino;
}

void log_set_level(struct log *log, enum log_level level)
{
	assert((size_t)level < SK_ARRAY_SIZE(words));
	__atomic_store_n(&log->level, level, __ATOMIC_RELAXED);
}

void log_open(struct log *log, const struct sk_os *os, enum log_level level)
{
	log->os = os;
	log_set_level(log, level);
	log->plain = is_journal(os);
}

/* Standard error is that file, and has room in it. */
static bool is_written_to(const struct sk_os *os, const char *path)
{
	struct stat now, there;

	return os->fstat(os, STDERR_FILENO, &now) >= 0 &&
	       os->fstatat(os, AT_FDCWD, path, AT_SYMLINK_NOFOLLOW,
			   &there) >= 0 &&
	       now.st_dev == there.st_dev && now.st_ino == there.st_ino &&
	       now.st_size < LOG_MOST;
}

static void put_aside(const struct sk_os *os, const char *path)
{
	char old[PATH_MAX];
	struct stat st;

	if (os->fstatat(os, AT_FDCWD, path, AT_SYMLINK_NOFOLLOW, &st) < 0 ||
	    st.st_size < LOG_MOST)
		return;
	(void)snprintf(old, sizeof(old), "%s.old", path);
	(void)os->renameat(os, AT_FDCWD, path, AT_FDCWD, old, 0);
}

int log_to_file(const struct sk_os *os, const char *path)
{
	int fd, r;

	if (is_written_to(os, path))
		return 0;
	put_aside(os, path);
	fd = os->openat(os, AT_FDCWD, path,
			O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW, 0600);
	if (fd < 0)
		return fd;
	r = os->dup2(os, fd, STDERR_FILENO);
	/* Where it was closed before, it is the number itself. */
	if (fd != STDERR_FILENO)
		(void)os->close(os, fd);
	return r < 0 ? r : 0;
}

static void write_time(const struct sk_os *os, char *buf, size_t size)
{
	uint64_t ms = os->wall_ns(os) / 1000000;
	time_t seconds = (time_t)(ms / 1000);
	struct tm tm;
	size_t n;

	gmtime_r(&seconds, &tm);
	n = strftime(buf, size, "%Y-%m-%dT%H:%M:%S", &tm);
	(void)snprintf(buf + n, size - n, ".%03dZ ", (int)(ms % 1000));
}

void log_line(const struct log *log, enum log_level level,
	      const char *fmt, ...)
{
	char text[1024], head[64];
	va_list ap;

	if (level > __atomic_load_n(&log->level, __ATOMIC_RELAXED))
		return;
	va_start(ap, fmt);
	(void)vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	sk_text_clean(text);
	if (log->plain)
		(void)snprintf(head, sizeof(head), "<%d>", priorities[level]);
	else
		write_time(log->os, head, sizeof(head));
	/* One write a line, so that lines of two agents do not mix. */
	fprintf(stderr, "%s%s%s%s\n", head,
		log->plain ? "" : words[level],
		log->plain ? "" : ": ", text);
}
