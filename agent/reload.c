/* SPDX-License-Identifier: Apache-2.0 */
#include "reload.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "agent.h"
#include "base/util.h"
#include "disk/retain.h"
#include "session/stop.h"
#include "upkeep.h"

void reload_apply(struct agent *a, const struct options *o)
{
	a->cat.budget = o->memory;
	a->cat.user_budget = o->user_memory;
	a->cat.user_layouts = o->user_layouts;
	a->now.retention = o->retention;
	a->now.retention_said = o->retention_said;
	a->now.flush_interval_s = o->flush_interval_s;
	a->now.stop_timeout_s = o->stop_timeout_s;
	a->now.idle_exit_s = o->idle_exit_s;
	a->now.flush_rate = o->flush_rate;
	a->now.admin_uid = o->admin_uid;
	log_set_level(&a->log, o->level);
}

static bool differ(const char *a, const char *b)
{
	return strcmp(a ? a : "", b ? b : "") != 0;
}

/* What other threads read, or what was made by it. */
static void name_fixed(const struct options *was, const struct options *is,
		       char *ret, size_t size)
{
	const struct {
		const char *name;
		bool changed;
	} fixed[] = {
		{ "socket", differ(was->socket, is->socket) },
		{ "store", differ(was->store, is->store) },
		{ "metrics", differ(was->metrics, is->metrics) },
		{ "metrics-public", was->metrics_public !=
				    is->metrics_public },
		{ "metrics-file", differ(was->metrics_file,
					 is->metrics_file) },
		{ "device-memory", was->device_memory != is->device_memory },
		{ "seal-writes", was->seal_writes != is->seal_writes },
		{ "no-direct", was->no_direct != is->no_direct },
		{ "backend", was->backend != is->backend },
		{ "scrub-rate", was->scrub_rate != is->scrub_rate },
	};
	size_t n = 0;

	*ret = 0;
	for (size_t i = 0; i < SK_ARRAY_SIZE(fixed); i++)
		if (fixed[i].changed && n < size)
			n += (size_t)snprintf(ret + n, size - n, "%s%s",
					      n ? ", " : "", fixed[i].name);
}

/* ---- what is wrong with them ---- */

#define SAID_MOST 4096u
#define BEGINS "shardkeepd: "

/* Standard error, aside. */
struct heard {
	int fd;		/* in its place; -1: it is where it was */
	int aside;
};

static void hear(const struct sk_os *os, struct heard *ret)
{
	ret->fd = -1;
	ret->aside = os->fcntl(os, STDERR_FILENO, F_DUPFD_CLOEXEC, 0);
	if (ret->aside < 0)
		return;
	ret->fd = os->memfd_create(os, "shardkeep:said", MFD_CLOEXEC);
	if (ret->fd >= 0 && os->dup2(os, ret->fd, STDERR_FILENO) >= 0)
		return;
	if (ret->fd >= 0)
		(void)os->close(os, ret->fd);
	(void)os->close(os, ret->aside);
	ret->fd = -1;
}

/* A line for each, as all of the log has them: with time and level. */
static void log_each(struct agent *a, char *text, enum log_level level)
{
	size_t begins = strlen(BEGINS);
	char *line;

	while ((line = strsep(&text, "\n")))
		if (*line)
			log_line(&a->log, level, "%s",
				 strncmp(line, BEGINS, begins) == 0 ?
				 line + begins : line);
}

static void log_heard(struct agent *a, const struct heard *h,
		      enum log_level level)
{
	const struct sk_os *os = a->os;
	char text[SAID_MOST];
	ssize_t n;

	if (h->fd < 0)
		return;
	(void)os->dup2(os, h->aside, STDERR_FILENO);
	n = os->pread(os, h->fd, text, sizeof(text) - 1, 0);
	text[n > 0 ? n : 0] = 0;
	(void)os->close(os, h->fd);
	(void)os->close(os, h->aside);
	log_each(a, text, level);
}

static int read_again(struct agent *a, struct options *ret)
{
	struct heard said;
	int r;

	hear(a->os, &said);
	r = options_again(a->opts, ret);
	log_heard(a, &said, r ? LOG_LEVEL_ERROR : LOG_LEVEL_WARNING);
	return r;
}

/* ---- the signal ---- */

static void take_options(struct agent *a)
{
	const struct sk_retention kept = a->now.retention;
	const bool said = a->now.retention_said;
	struct options fresh;
	char fixed[256];

	if (read_again(a, &fresh) != 0) {
		log_error(a, "the options make no sense any more, and stay as "
			  "they were; shardkeepd --check-config says more");
		return;
	}
	reload_apply(a, &fresh);
	if (said != fresh.retention_said ||
	    !sk_retention_equal(&kept, &fresh.retention))
		retain_due(a, NULL);
	name_fixed(a->opts, &fresh, fixed, sizeof(fixed));
	if (*fixed)
		log_warning(a, "to change %s the agent has to be restarted, "
			    "or taken over", fixed);
	log_info(a, "the options were read again");
	options_free(&fresh);
}

void agent_reload(struct agent *a)
{
	upkeep_log(a);
	if (a->opts->argv)
		take_options(a);
	agent_check_idle(a);
	agent_changed(a);
}
