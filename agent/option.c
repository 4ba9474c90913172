/* SPDX-License-Identifier: Apache-2.0 */
#include "option.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/un.h>

#include "base/cgroup.h"
#include "base/size.h"
#include "base/util.h"
#include "shardkeep-version.h"

/* Fewer bytes per second nobody means who says them without a unit. */
#define RATE_LEAST 4096u

static const char help[] =
"Usage: shardkeepd [OPTION]...\n"
"\n"
"Keeps snapshots of training jobs in this node's memory, where no crashed\n"
"trainer can take them along, and writes them to disk in the background.\n"
"\n"
"Where\n"
"  --socket PATH       where clients connect. Default: $SHARDKEEP_SOCKET, else\n"
"                      /run/shardkeep/agent.sock as root, else\n"
"                      $XDG_RUNTIME_DIR/shardkeep/agent.sock, else\n"
"                      /tmp/shardkeep-UID/agent.sock\n"
"  --store DIR         where snapshots go to disk. Default: $SHARDKEEP_STORE,\n"
"                      else nowhere: memory alone\n"
"  --memory SIZE       most memory that snapshots may take: bytes, with K, M, G\n"
"                      or T, or a percentage of this machine's, or of what\n"
"                      the agent's cgroup may take if that is less. Default:\n"
"                      $SHARDKEEP_MEMORY, else 50%\n"
"  --device-memory SIZE\n"
"                      most memory of each GPU, or instance of one (MIG), that\n"
"                      snapshots may take on their way to this node's memory,\n"
"                      as --flush-rate. Default: $SHARDKEEP_DEVICE_MEMORY, else\n"
"                      none\n"
"\n"
"Who\n"
"  --user-memory SIZE  most that the jobs of one user may take, as --memory;\n"
"                      not of uid 0 or the agent's own. Default: all of it\n"
"  --user-layouts SIZE most memory that descriptions of one user's tensors may\n"
"                      take; not of uid 0 or the agent's own. Default: 1G\n"
"  --admin-uid UID     this user may see and manage all jobs, as uid 0 and the\n"
"                      agent's own may\n"
"  --seal-writes       for nodes where users do not trust each other: a slot\n"
"                      cannot be mapped for writing again once its rank has\n"
"                      sealed an image in it, and serves no other rank\n"
"\n"
"Disk\n"
"  --flush-rate SIZE   most bytes per second that are written. Default: no limit\n"
"  --flush-interval SECONDS\n"
"                      least time between two snapshots of a job that go to disk\n"
"                      where the job does not say which do; 0: all go. Default: 30\n"
"  --no-direct         never bypass the page cache\n"
"  --backend NAME      auto, uring or threads. Default: auto\n"
"  --keep-last N       of each job keep the newest N complete snapshots on disk,\n"
"                      0 all; what is pinned or in use stays as well, and the\n"
"                      newest complete one always. Jobs and \"cachectl retain\"\n"
"                      may say otherwise. Default: 4, of jobs that are new\n"
"  --keep-every N      and those of steps that are multiples of N. Default: none\n"
"  --keep-age SECONDS  none that is so much older than the newest complete one.\n"
"                      Default: any\n"
"  --keep-bytes SIZE   of each job no more than that. Default: any number\n"
"  --scrub-rate SIZE   bytes per second of what is kept that are read and compared\n"
"                      with their checksums, at most every 10 minutes anew; 0:\n"
"                      none. Default: 16M\n"
"  --stop-timeout SECONDS\n"
"                      how long a stopping agent may flush; 0: not at all.\n"
"                      Default: 300\n"
"\n"
"Figures for Prometheus\n"
"  --metrics ADDRESS   serve them by HTTP: a port of this machine, such as 9477\n"
"                      or [::1]:9477 (0: any that is free), or the path of a\n"
"                      socket. Default: nowhere\n"
"  --metrics-public    ADDRESS may be one that other machines reach\n"
"  --metrics-file PATH write them there every 10 s, for the node exporter's\n"
"                      textfile collector; a name ending in .prom\n"
"\n"
"Running\n"
"  --config FILE       lines \"name = value\", the names as here without the\n"
"                      dashes; flags are yes or no. What the environment and the\n"
"                      command line say goes before. Default:\n"
"                      /etc/shardkeep/shardkeepd.conf as root, else\n"
"                      $XDG_CONFIG_HOME/shardkeep/shardkeepd.conf, where there\n"
"                      is one\n"
"  --check-config      say what would hold, and who says it, and end\n"
"  --detach            go to the background; the log goes to agent.log beside\n"
"                      the socket\n"
"  --keeper            a parent of the agent's own keeps what memory holds, and\n"
"                      begins another agent should this one be killed. The\n"
"                      default with --detach; systemd keeps it where it started\n"
"                      the agent as a service of Type=notify\n"
"  --takeover          take the place of the agent that runs, with all that it\n"
"                      holds; it goes on where that cannot be. Has a keeper\n"
"  --no-keeper         what memory holds ends with the agent\n"
"  --ready-fd N        write a byte to descriptor N once clients can connect\n"
"  --idle-exit SECONDS end when nobody has been connected for that long\n"
"  --log-level LEVEL   error, warning, info or debug. Default: info\n"
"  --version, --help\n"
"\n"
"SIGTERM and SIGINT let the agent flush the newest complete snapshot of every\n"
"job that is not on disk yet, and end; a second one ends it at once.\n"
"\n"
"Exit status: 0 in order (also when another agent serves there already),\n"
"1 something could not be made durable or the agent could not start,\n"
"2 an option makes no sense.\n";

const struct option option_list[] = {
	{ "socket", required_argument, NULL, OPTION_SOCKET },
	{ "store", required_argument, NULL, OPTION_STORE },
	{ "memory", required_argument, NULL, OPTION_MEMORY },
	{ "device-memory", required_argument, NULL, OPTION_DEVICE },
	{ "gpu-worker", required_argument, NULL, OPTION_WORKER },
	{ "user-memory", required_argument, NULL, OPTION_USER },
	{ "user-layouts", required_argument, NULL, OPTION_LAYOUTS },
	{ "admin-uid", required_argument, NULL, OPTION_ADMIN },
	{ "seal-writes", no_argument, NULL, OPTION_SEAL },
	{ "flush-rate", required_argument, NULL, OPTION_RATE },
	{ "flush-interval", required_argument, NULL, OPTION_INTERVAL },
	{ "no-direct", no_argument, NULL, OPTION_NO_DIRECT },
	{ "backend", required_argument, NULL, OPTION_BACKEND },
	{ "keep-last", required_argument, NULL, OPTION_KEEP_LAST },
	{ "keep-every", required_argument, NULL, OPTION_KEEP_EVERY },
	{ "keep-age", required_argument, NULL, OPTION_KEEP_AGE },
	{ "keep-bytes", required_argument, NULL, OPTION_KEEP_BYTES },
	{ "scrub-rate", required_argument, NULL, OPTION_SCRUB },
	{ "config", required_argument, NULL, OPTION_CONFIG },
	{ "check-config", no_argument, NULL, OPTION_CHECK_CONFIG },
	{ "metrics", required_argument, NULL, OPTION_METRICS },
	{ "metrics-public", no_argument, NULL, OPTION_METRICS_PUBLIC },
	{ "metrics-file", required_argument, NULL, OPTION_METRICS_FILE },
	{ "stop-timeout", required_argument, NULL, OPTION_STOP },
	{ "detach", no_argument, NULL, OPTION_DETACH },
	{ "keeper", no_argument, NULL, OPTION_KEEPER },
	{ "no-keeper", no_argument, NULL, OPTION_NO_KEEPER },
	{ "takeover", no_argument, NULL, OPTION_TAKEOVER },
	{ "ready-fd", required_argument, NULL, OPTION_READY },
	{ "idle-exit", required_argument, NULL, OPTION_IDLE },
	{ "log-level", required_argument, NULL, OPTION_LEVEL },
	{ "version", no_argument, NULL, OPTION_VERSION },
	{ "help", no_argument, NULL, OPTION_HELP },
	{ NULL, 0, NULL, 0 },
};
static_assert(SK_ARRAY_SIZE(option_list) == OPTION_COUNT + 1,
	      "what is counted is what is listed");

int option_complain(const char *what, const char *value, const char *want)
{
	fprintf(stderr, "shardkeepd: %s \"%s\" makes no sense; %s\n", what,
		value, want);
	return -EINVAL;
}

static uint64_t physical(void)
{
	return sk_memory_total(sk_os_linux());
}

static int parse_size(const char *what, const char *text, bool percent,
		      uint64_t *ret)
{
	if (sk_size_parse(text, percent ? physical() : 0, ret, NULL) >= 0)
		return 0;
	return option_complain(what, text, percent ?
		"it is a size such as 64G, or a percentage" :
		"it is a size such as 500M");
}

int option_size(const char *what, const char *text, bool percent,
		uint64_t *ret)
{
	int r = parse_size(what, text, percent, ret);

	if (r < 0 || !sk_size_lacks_unit(text, *ret))
		return r;
	return option_complain(what, text, "of bytes that is next to nothing; "
			       "is a K, M, G or T missing?");
}

int option_size_or_none(const char *what, const char *text, bool percent,
			uint64_t *ret)
{
	*ret = 0;
	return strcmp(text, "0") == 0 ? 0 :
					option_size(what, text, percent, ret);
}

/* Bytes per second are often said in digits, but not so few. */
static int set_rate(const char *what, const char *text, uint64_t *ret)
{
	int r = parse_size(what, text, false, ret);

	if (r < 0 || *ret >= RATE_LEAST || !sk_size_lacks_unit(text, *ret))
		return r;
	return option_complain(what, text, "so few bytes per second are next "
			       "to none; is a K, M or G missing?");
}

/* 0 is no rate, but says that there is to be none. */
static int set_rate_or_none(const char *what, const char *text, uint64_t *ret)
{
	*ret = 0;
	return strcmp(text, "0") == 0 ? 0 : set_rate(what, text, ret);
}

static int set_unsigned(const char *what, const char *text, unsigned long most,
			unsigned *ret)
{
	unsigned long value;
	char want[64], *end;

	errno = 0;
	value = strtoul(text, &end, 10);
	if (!isdigit((unsigned char)*text) || *end || errno || value > most) {
		(void)snprintf(want, sizeof(want), "it is a whole number from "
			       "0 to %lu", most);
		return option_complain(what, text, want);
	}
	*ret = (unsigned)value;
	return 0;
}

int option_text(char **to, const char *what, const char *text)
{
	if (!*text)
		return option_complain(what, text, "it is a path");
	free(*to);
	*to = strdup(text);
	return *to ? 0 : -ENOMEM;
}

int option_socket(char **to, const char *what, const char *text)
{
	/* With the zero at its end. */
	if (strlen(text) >= sizeof(((struct sockaddr_un *)0)->sun_path))
		return option_complain(what, text, "a socket's path has no "
				       "more than 107 bytes");
	return option_text(to, what, text);
}

static int set_backend(const char *text, struct options *o)
{
	static const char *const names[] = { "auto", "uring", "threads" };

	for (int i = 0; i < (int)SK_ARRAY_SIZE(names); i++) {
		if (strcmp(text, names[i]) != 0)
			continue;
		o->backend = (enum sk_io_backend)i;
		return 0;
	}
	return option_complain("--backend", text, "it is auto, uring or threads");
}

static int set_level(const char *text, struct options *o)
{
	int level = log_level_parse(text);

	if (level < 0)
		return option_complain("--log-level", text,
				"it is error, warning, info or debug");
	o->level = (enum log_level)level;
	return 0;
}

static int set_fd(const char *what, const char *text, int *ret)
{
	unsigned fd;
	int r = set_unsigned(what, text, 1u << 20, &fd);

	if (r == 0)
		*ret = (int)fd;
	return r;
}

static int set_age(const char *text, struct options *o)
{
	unsigned seconds;
	int r = set_unsigned("--keep-age", text, UINT32_MAX, &seconds);

	if (r == 0)
		o->retention.keep_age_s = seconds;
	return r;
}

/* Who says one of them has said all. */
static int set_retention(int option, const char *arg, struct options *o)
{
	struct sk_retention *keep = &o->retention;

	if (!o->retention_said)
		*keep = (struct sk_retention){ 0 };
	o->retention_said = true;
	switch (option) {
	case OPTION_KEEP_LAST:
		return set_unsigned("--keep-last", arg, UINT32_MAX,
				    &keep->keep_last);
	case OPTION_KEEP_EVERY:
		return set_unsigned("--keep-every", arg, UINT32_MAX,
				    &keep->keep_every);
	case OPTION_KEEP_AGE:
		return set_age(arg, o);
	default:
		return option_size_or_none("--keep-bytes", arg, false,
					   &keep->keep_bytes);
	}
}

static void set_keeper(enum keep keep, bool yes, struct options *o)
{
	if (yes)
		o->keeper = keep;
	else if (o->keeper == keep)
		o->keeper = KEEP_DEFAULT;
}

/* Those without a value; false: it is none of them. */
static bool set_flag(int option, bool yes, struct options *o)
{
	switch (option) {
	case OPTION_SEAL:
		o->seal_writes = yes;
		return true;
	case OPTION_METRICS_PUBLIC:
		o->metrics_public = yes;
		return true;
	case OPTION_NO_DIRECT:
		o->no_direct = yes;
		return true;
	case OPTION_DETACH:
		o->detach = yes;
		return true;
	case OPTION_KEEPER:
		set_keeper(KEEP_ALWAYS, yes, o);
		return true;
	case OPTION_NO_KEEPER:
		set_keeper(KEEP_NEVER, yes, o);
		return true;
	case OPTION_TAKEOVER:
		o->takeover = yes;
		return true;
	default:
		return false;
	}
}

void option_unset(int option, struct options *o)
{
	(void)set_flag(option, false, o);
}

int option_set(int option, const char *arg, struct options *o)
{
	if (set_flag(option, true, o))
		return 0;
	if (option >= OPTION_KEEP_LAST && option <= OPTION_KEEP_BYTES)
		return set_retention(option, arg, o);
	switch (option) {
	case OPTION_SOCKET:
		return option_socket(&o->socket, "--socket", arg);
	case OPTION_STORE:
		return option_text(&o->store, "--store", arg);
	case OPTION_METRICS:
		return option_text(&o->metrics, "--metrics", arg);
	case OPTION_METRICS_FILE:
		return option_text(&o->metrics_file, "--metrics-file", arg);
	case OPTION_MEMORY:
		return option_size("--memory", arg, true, &o->memory);
	case OPTION_DEVICE:
		return option_size_or_none("--device-memory", arg, false,
					   &o->device_memory);
	case OPTION_WORKER:
		return set_fd("--gpu-worker", arg, &o->worker_fd);
	case OPTION_USER:
		return option_size_or_none("--user-memory", arg, true,
					   &o->user_memory);
	case OPTION_LAYOUTS:
		return option_size_or_none("--user-layouts", arg, true,
					   &o->user_layouts);
	case OPTION_ADMIN:
		return set_unsigned("--admin-uid", arg, UINT32_MAX - 1,
				    &o->admin_uid);
	case OPTION_RATE:
		return set_rate_or_none("--flush-rate", arg, &o->flush_rate);
	case OPTION_INTERVAL:
		return set_unsigned("--flush-interval", arg, 1u << 20,
				    &o->flush_interval_s);
	case OPTION_SCRUB:
		return set_rate_or_none("--scrub-rate", arg, &o->scrub_rate);
	case OPTION_BACKEND:
		return set_backend(arg, o);
	case OPTION_STOP:
		return set_unsigned("--stop-timeout", arg, 1u << 30,
				    &o->stop_timeout_s);
	case OPTION_READY:
		return set_fd("--ready-fd", arg, &o->ready_fd);
	case OPTION_IDLE:
		return set_unsigned("--idle-exit", arg, 1u << 30,
				    &o->idle_exit_s);
	case OPTION_LEVEL:
		return set_level(arg, o);
	case OPTION_VERSION:
		printf("shardkeepd %s\n", SK_VERSION);
		return 1;
	case OPTION_HELP:
		fputs(help, stdout);
		return 1;
	default:
		fprintf(stderr, "Try 'shardkeepd --help'.\n");
		return -EINVAL;
	}
}
