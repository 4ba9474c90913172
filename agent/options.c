/* SPDX-License-Identifier: Apache-2.0 */
/* The command line and the environment. */
#include "options.h"

#include <ctype.h>
#include <getopt.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/size.h"
#include "base/util.h"
#include "shardkeep-version.h"

#define KEEP_LAST 4u
#define FLUSH_INTERVAL_S 30u
#define SCRUB_RATE ((uint64_t)16 << 20)

static const char help[] =
"Usage: shardkeepd [OPTION]...\n"
"\n"
"Keeps snapshots of training jobs in this node's memory, where no crashed\n"
"trainer can take them along, and writes them to disk in the background.\n"
"\n"
"Where\n"
"  --socket PATH       where clients connect. Default: /run/shardkeep/agent.sock\n"
"                      as root, else $XDG_RUNTIME_DIR/shardkeep/agent.sock, else\n"
"                      /tmp/shardkeep-UID/agent.sock\n"
"  --store DIR         where snapshots go to disk. Default: $SHARDKEEP_STORE,\n"
"                      else nowhere: memory alone\n"
"  --memory SIZE       most memory that snapshots may take: bytes, with K, M, G\n"
"                      or T, or a percentage of this machine's. Default:\n"
"                      $SHARDKEEP_MEMORY, else 50%\n"
"  --device-memory SIZE\n"
"                      most memory of each GPU that snapshots may take on their\n"
"                      way to this node's memory, as --flush-rate. Default:\n"
"                      $SHARDKEEP_DEVICE_MEMORY, else none\n"
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
"                      how long a stopping agent may flush. Default: 300\n"
"\n"
"Running\n"
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

enum { O_SOCKET = 256, O_STORE, O_MEMORY, O_DEVICE, O_WORKER, O_USER,
       O_LAYOUTS, O_ADMIN, O_SEAL,
       O_RATE, O_NO_DIRECT, O_BACKEND, O_STOP, O_DETACH, O_READY, O_IDLE,
       O_LEVEL, O_KEEPER, O_NO_KEEPER, O_TAKEOVER, O_VERSION, O_KEEP_LAST,
       O_KEEP_EVERY, O_KEEP_AGE, O_KEEP_BYTES, O_INTERVAL, O_SCRUB,
       O_HELP };

static const struct option long_options[] = {
	{ "socket", required_argument, NULL, O_SOCKET },
	{ "store", required_argument, NULL, O_STORE },
	{ "memory", required_argument, NULL, O_MEMORY },
	{ "device-memory", required_argument, NULL, O_DEVICE },
	{ "gpu-worker", required_argument, NULL, O_WORKER },
	{ "user-memory", required_argument, NULL, O_USER },
	{ "user-layouts", required_argument, NULL, O_LAYOUTS },
	{ "admin-uid", required_argument, NULL, O_ADMIN },
	{ "seal-writes", no_argument, NULL, O_SEAL },
	{ "flush-rate", required_argument, NULL, O_RATE },
	{ "flush-interval", required_argument, NULL, O_INTERVAL },
	{ "no-direct", no_argument, NULL, O_NO_DIRECT },
	{ "backend", required_argument, NULL, O_BACKEND },
	{ "keep-last", required_argument, NULL, O_KEEP_LAST },
	{ "keep-every", required_argument, NULL, O_KEEP_EVERY },
	{ "keep-age", required_argument, NULL, O_KEEP_AGE },
	{ "keep-bytes", required_argument, NULL, O_KEEP_BYTES },
	{ "scrub-rate", required_argument, NULL, O_SCRUB },
	{ "stop-timeout", required_argument, NULL, O_STOP },
	{ "detach", no_argument, NULL, O_DETACH },
	{ "keeper", no_argument, NULL, O_KEEPER },
	{ "no-keeper", no_argument, NULL, O_NO_KEEPER },
	{ "takeover", no_argument, NULL, O_TAKEOVER },
	{ "ready-fd", required_argument, NULL, O_READY },
	{ "idle-exit", required_argument, NULL, O_IDLE },
	{ "log-level", required_argument, NULL, O_LEVEL },
	{ "version", no_argument, NULL, O_VERSION },
	{ "help", no_argument, NULL, O_HELP },
	{ NULL, 0, NULL, 0 },
};

static int complain(const char *what, const char *value, const char *want)
{
	fprintf(stderr, "shardkeepd: %s \"%s\" makes no sense; %s\n", what,
		value, want);
	return -EINVAL;
}

static uint64_t physical(void)
{
	return (uint64_t)sysconf(_SC_PHYS_PAGES) *
	       (uint64_t)sysconf(_SC_PAGESIZE);
}

static int set_size(const char *what, const char *text, bool percent,
		    uint64_t *ret)
{
	if (sk_size_parse(text, percent ? physical() : 0, ret, NULL) == 0)
		return 0;
	return complain(what, text, percent ?
			"it is a size such as 64G, or a percentage" :
			"it is a size such as 500M");
}

/* 0 is no size. */
static int set_limit(const char *what, const char *text, uint64_t *ret)
{
	*ret = 0;
	return strcmp(text, "0") == 0 ? 0 : set_size(what, text, false, ret);
}

static int set_unsigned(const char *what, const char *text, unsigned long most,
			unsigned *ret)
{
	unsigned long value;
	char *end;

	errno = 0;
	value = strtoul(text, &end, 10);
	if (!isdigit((unsigned char)*text) || *end || errno || value > most)
		return complain(what, text, "it is a whole number");
	*ret = (unsigned)value;
	return 0;
}

static int set_text(char **to, const char *what, const char *text)
{
	if (!*text)
		return complain(what, text, "it is a path");
	free(*to);
	*to = strdup(text);
	return *to ? 0 : -ENOMEM;
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
	return complain("--backend", text, "it is auto, uring or threads");
}

static int set_level(const char *text, struct options *o)
{
	int level = log_level_parse(text);

	if (level < 0)
		return complain("--log-level", text,
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
	case O_KEEP_LAST:
		return set_unsigned("--keep-last", arg, UINT32_MAX,
				    &keep->keep_last);
	case O_KEEP_EVERY:
		return set_unsigned("--keep-every", arg, UINT32_MAX,
				    &keep->keep_every);
	case O_KEEP_AGE:
		return set_age(arg, o);
	default:
		return set_limit("--keep-bytes", arg, &keep->keep_bytes);
	}
}

/* Those without a value; false: it is none of them. */
static bool set_flag(int option, struct options *o)
{
	switch (option) {
	case O_SEAL:
		o->seal_writes = true;
		return true;
	case O_NO_DIRECT:
		o->no_direct = true;
		return true;
	case O_DETACH:
		o->detach = true;
		return true;
	case O_KEEPER:
	case O_NO_KEEPER:
		o->keeper = option == O_KEEPER ? KEEP_ALWAYS : KEEP_NEVER;
		return true;
	case O_TAKEOVER:
		o->takeover = true;
		return true;
	default:
		return false;
	}
}

static int set_option(int option, const char *arg, struct options *o)
{
	if (set_flag(option, o))
		return 0;
	if (option >= O_KEEP_LAST && option <= O_KEEP_BYTES)
		return set_retention(option, arg, o);
	switch (option) {
	case O_SOCKET:
		return set_text(&o->socket, "--socket", arg);
	case O_STORE:
		return set_text(&o->store, "--store", arg);
	case O_MEMORY:
		return set_size("--memory", arg, true, &o->memory);
	case O_DEVICE:
		return set_size("--device-memory", arg, false,
				&o->device_memory);
	case O_WORKER:
		return set_fd("--gpu-worker", arg, &o->worker_fd);
	case O_USER:
		return set_size("--user-memory", arg, true,
				&o->user_memory);
	case O_LAYOUTS:
		return set_size("--user-layouts", arg, true,
				&o->user_layouts);
	case O_ADMIN:
		return set_unsigned("--admin-uid", arg, UINT32_MAX - 1,
				    &o->admin_uid);
	case O_RATE:
		return set_size("--flush-rate", arg, false, &o->flush_rate);
	case O_INTERVAL:
		return set_unsigned("--flush-interval", arg, 1u << 20,
				    &o->flush_interval_s);
	case O_SCRUB:
		return set_limit("--scrub-rate", arg, &o->scrub_rate);
	case O_BACKEND:
		return set_backend(arg, o);
	case O_STOP:
		return set_unsigned("--stop-timeout", arg, 1u << 30,
				    &o->stop_timeout_s);
	case O_READY:
		return set_fd("--ready-fd", arg, &o->ready_fd);
	case O_IDLE:
		return set_unsigned("--idle-exit", arg, 1u << 30,
				    &o->idle_exit_s);
	case O_LEVEL:
		return set_level(arg, o);
	case O_VERSION:
		printf("shardkeepd %s\n", SK_VERSION);
		return 1;
	case O_HELP:
		fputs(help, stdout);
		return 1;
	default:
		fprintf(stderr, "Try 'shardkeepd --help'.\n");
		return -EINVAL;
	}
}

static int from_environment(struct options *o)
{
	const char *store = getenv("SHARDKEEP_STORE");
	const char *memory = getenv("SHARDKEEP_MEMORY");
	const char *device = getenv("SHARDKEEP_DEVICE_MEMORY");
	int r = 0;

	if (device && *device)
		r = set_size("SHARDKEEP_DEVICE_MEMORY", device, false,
			     &o->device_memory);
	if (r == 0 && store && *store)
		r = set_text(&o->store, "SHARDKEEP_STORE", store);
	if (r == 0 && memory && *memory)
		r = set_size("SHARDKEEP_MEMORY", memory, true, &o->memory);
	return r;
}

int options_parse(int argc, char **argv, struct options *ret)
{
	struct options o = {
		.memory = physical() / 2, .user_layouts = UINT64_C(1) << 30,
		.admin_uid = (uid_t)-1,
		.level = LOG_LEVEL_INFO, .ready_fd = -1, .worker_fd = -1,
		.stop_timeout_s = 300,
		.retention = { .keep_last = KEEP_LAST },
		.flush_interval_s = FLUSH_INTERVAL_S,
		.scrub_rate = SCRUB_RATE,
	};
	int option, r;

	r = from_environment(&o);
	while (r == 0 && (option = getopt_long(argc, argv, "", long_options,
					       NULL)) != -1)
		r = set_option(option, optarg, &o);
	if (r == 0 && o.takeover && o.keeper == KEEP_NEVER)
		r = complain("--takeover", "--no-keeper", "what is taken over "
			     "needs a keeper");
	if (r == 0 && optind < argc) {
		fprintf(stderr, "shardkeepd: \"%s\" is not an option\n"
			"Try 'shardkeepd --help'.\n", argv[optind]);
		r = -EINVAL;
	}
	if (r) {
		options_free(&o);
		return r;
	}
	*ret = o;
	return 0;
}

void options_free(struct options *o)
{
	free(o->socket);
	free(o->store);
}
