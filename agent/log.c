/* SPDX-License-Identifier: Apache-2.0 */
/* Lines for people and the journal, on standard error. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <time.h>

#include "agent.h"

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

static bool is_journal(void)
{
	const char *stream = getenv("JOURNAL_STREAM");
	unsigned long long dev, ino;
	struct stat st;

	return stream && sscanf(stream, "%llu:%llu", &dev, &ino) == 2 &&
	       fstat(STDERR_FILENO, &st) == 0 && st.st_dev == dev &&
	       st.st_ino == ino;
}

void log_open(struct log *log, enum log_level level)
{
	log->level = level;
	log->plain = is_journal();
}

static void write_time(char *buf, size_t size)
{
	struct timespec ts;
	struct tm tm;
	size_t n;

	clock_gettime(CLOCK_REALTIME, &ts);
	gmtime_r(&ts.tv_sec, &tm);
	n = strftime(buf, size, "%Y-%m-%dT%H:%M:%S", &tm);
	(void)snprintf(buf + n, size - n, ".%03dZ ",
		       (int)(ts.tv_nsec / 1000000));
}

void log_line(const struct log *log, enum log_level level,
	      const char *fmt, ...)
{
	char text[1024], head[64];
	va_list ap;

	if (level > log->level)
		return;
	va_start(ap, fmt);
	(void)vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	if (log->plain)
		(void)snprintf(head, sizeof(head), "<%d>", priorities[level]);
	else
		write_time(head, sizeof(head));
	/* One write a line, so that lines of two agents do not mix. */
	fprintf(stderr, "%s%s%s%s\n", head,
		log->plain ? "" : words[level],
		log->plain ? "" : ": ", text);
}
