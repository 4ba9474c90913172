/* SPDX-License-Identifier: Apache-2.0 */
#include "options.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "base/cgroup.h"
#include "base/util.h"
#include "config.h"
#include "metrics/address.h"
#include "metrics/http.h"
#include "option.h"
#include "paths.h"

#define KEEP_LAST 4u
#define FLUSH_INTERVAL_S 30u
#define SCRUB_RATE ((uint64_t)16 << 20)
#define MEMORY_DEVICES 1u	/* /dev/null, for one */

/* Texts live as long as the arguments and the environment do. */
struct said {
	struct options *o;
	const char *path;		/* of the file; NULL: none */
	struct {
		const char *by;		/* NULL: nobody, the default holds */
		int line;		/* of the file */
		char *value;	/* as a file has it, owned; NULL: no memory */
	} v[OPTION_COUNT];
	bool check;
	bool again;			/* by one that serves */
	bool keeper, no_keeper;		/* by the file, or the command line */
	char usual[4096];
	char *named;			/* --config, from where we started */
};

static void note(struct said *s, size_t i, const char *by, int line,
		 const char *value)
{
	s->v[i].by = by;
	s->v[i].line = line;
	free(s->v[i].value);
	s->v[i].value = config_written(value ? value : "yes");
}

static void forget(struct said *s)
{
	for (size_t i = 0; i < OPTION_COUNT; i++)
		free(s->v[i].value);
	free(s->named);
}

/* Those that are of one start alone, or of no file. */
static bool fits_file(int option)
{
	return option != OPTION_WORKER && option != OPTION_READY &&
	       option != OPTION_TAKEOVER && option != OPTION_CONFIG &&
	       option != OPTION_CHECK_CONFIG && option != OPTION_VERSION &&
	       option != OPTION_HELP;
}

/* Within the file, or the command line, which of them counts is not told by the
 * order; the command line goes before the file. */
static int check_keepers(struct said *s, int option, bool yes)
{
	if (option == OPTION_KEEPER)
		s->keeper = yes;
	if (option == OPTION_NO_KEEPER)
		s->no_keeper = yes;
	if (!s->keeper || !s->no_keeper)
		return 0;
	fputs("shardkeepd: --keeper and --no-keeper contradict each other; "
	      "leave one of them away\n", stderr);
	return -EINVAL;
}

static int set_from_file(void *ctx, const char *name, const char *value,
			 int line)
{
	struct said *s = ctx;
	int r;

	for (size_t i = 0; i < OPTION_COUNT; i++) {
		const struct option *l = &option_list[i];
		bool flag = l->has_arg == no_argument;
		bool no = flag && strcmp(value, "no") == 0;

		if (strcmp(l->name, name) != 0 || !fits_file(l->val))
			continue;
		if (flag && !no && strcmp(value, "yes") != 0)
			return option_complain(name, value, "it is yes or no");
		note(s, i, s->path, line, value);
		r = check_keepers(s, l->val, !no);
		if (r == 0 && no)
			option_unset(l->val, s->o);
		return r || no ? r : option_set(l->val, value, s->o);
	}
	return option_complain("the name", name, "no option of a file is called so");
}

/* As the command line is read afterwards, shortened names and all; what is
 * wrong there is said then. NULL: none is named. */
static const char *named_file(int argc, char **argv)
{
	const char *path = NULL;
	int option, said = opterr;

	optind = opterr = 0;
	while ((option = getopt_long(argc, argv, "", option_list, NULL)) != -1)
		if (option == OPTION_CONFIG)
			path = optarg;
	opterr = said;
	return path;
}

/* Who reads it may wait for good, and who serves must not: as of the pipe that
 * a shell gave at the start. */
static bool may_wait(const char *path)
{
	struct stat st;

	if (stat(path, &st) < 0)
		return false;
	return S_ISFIFO(st.st_mode) || (S_ISCHR(st.st_mode) &&
	       major(st.st_rdev) != MEMORY_DEVICES);
}

/* The one that is named, or the usual one, which need not be. */
static int from_file(struct said *s, int argc, char **argv)
{
	const char *named = named_file(argc, argv);
	int r;

	config_usual(s->usual, sizeof(s->usual));
	if (named && !*named)
		return option_complain("--config", named, "it is a path");
	if (named) {
		s->named = path_from(s->o->here, named);
		if (!s->named)
			return -ENOMEM;
	}
	s->path = named ? s->named : s->usual;
	if (!*s->path)
		return 0;
	if (s->again && may_wait(s->path))
		return option_complain("--config", s->path, "it is a pipe or a "
				       "device, and is not read again");
	r = config_read(sk_os_linux(), s->path, set_from_file, s);
	/* It was said, and who came with another's HOME has no file there. */
	if (r == -EACCES && !named)
		return 0;
	if (r != -ENOENT)
		return r < 0 ? -EINVAL : 0;
	if (!named)
		return 0;
	return option_complain("--config", s->path, "there is no such file");
}

static void note_environment(struct said *s)
{
	static const struct {
		const char *name;
		int option;
	} variables[] = {
		{ "SHARDKEEP_SOCKET", OPTION_SOCKET },
		{ "SHARDKEEP_STORE", OPTION_STORE },
		{ "SHARDKEEP_MEMORY", OPTION_MEMORY },
		{ "SHARDKEEP_DEVICE_MEMORY", OPTION_DEVICE },
	};

	for (size_t k = 0; k < SK_ARRAY_SIZE(variables); k++) {
		const char *value = getenv(variables[k].name);

		for (size_t i = 0; value && *value && i < OPTION_COUNT; i++)
			if (option_list[i].val == variables[k].option)
				note(s, i, variables[k].name, 0, value);
	}
}

/* A path keeps to its line, too, and no terminal obeys it. */
static void print_by(const char *by, int line)
{
	for (; *by; by++)
		putchar(iscntrl((unsigned char)*by) ? '?' : *by);
	if (line)
		printf(":%d", line);
}

static void print_said(const struct said *s)
{
	for (size_t i = 0; i < OPTION_COUNT; i++) {
		const char *name = option_list[i].name;

		if (!fits_file(option_list[i].val))
			continue;
		if (!s->v[i].by) {
			printf("# %s: default\n", name);
			continue;
		}
		printf("%s = %s\t# ", name,
		       s->v[i].value ? s->v[i].value : "?");
		print_by(s->v[i].by, s->v[i].line);
		puts("");
	}
}

static bool is_retention(int option)
{
	return option >= OPTION_KEEP_LAST && option <= OPTION_KEEP_BYTES;
}

static bool is_keeper(int option)
{
	return option == OPTION_KEEPER || option == OPTION_NO_KEEPER;
}

/* Lines of the file that do not hold beside that of the command line, whose
 * names are others. */
static void overrule(struct said *s, int option)
{
	for (size_t i = 0; i < OPTION_COUNT; i++) {
		int other = option_list[i].val;

		if (s->v[i].line &&
		    ((is_retention(option) && is_retention(other)) ||
		     (is_keeper(option) && is_keeper(other))))
			s->v[i].by = NULL;
	}
}

/* What it says of retention is all that is said. */
static int from_command_line(struct said *s, int argc, char **argv)
{
	int option, i = 0, r = 0;
	bool by_file = s->o->retention_said;

	s->o->retention_said = s->keeper = s->no_keeper = false;
	optind = 0;	/* they may have been read before */
	while (r == 0 && (option = getopt_long(argc, argv, "", option_list,
					       &i)) != -1) {
		if (option == OPTION_CHECK_CONFIG)
			s->check = true;
		else if (option != OPTION_CONFIG)
			r = check_keepers(s, option, true);
		if (r == 0 && option != OPTION_CHECK_CONFIG &&
		    option != OPTION_CONFIG)
			r = option_set(option, optarg, s->o);
		overrule(s, option);
		if (r == 0)
			note(s, (size_t)i, "command line", 0, optarg);
	}
	s->o->retention_said |= by_file;
	return r;
}

static int from_environment(struct options *o)
{
	const char *socket = getenv("SHARDKEEP_SOCKET");
	const char *store = getenv("SHARDKEEP_STORE");
	const char *memory = getenv("SHARDKEEP_MEMORY");
	const char *device = getenv("SHARDKEEP_DEVICE_MEMORY");
	int r = 0;

	if (device && *device)
		r = option_size_or_none("SHARDKEEP_DEVICE_MEMORY", device,
					false, &o->device_memory);
	/* As clients, who look nowhere else then. */
	if (r == 0 && socket && *socket)
		r = option_socket(&o->socket, "SHARDKEEP_SOCKET", socket);
	if (r == 0 && store && *store)
		r = option_text(&o->store, "SHARDKEEP_STORE", store);
	if (r == 0 && memory && *memory)
		r = option_size("SHARDKEEP_MEMORY", memory, true, &o->memory);
	return r;
}

/* Others are wrong about where, and not about when. */
static int check_metrics(const struct options *o)
{
	struct address at;
	struct sk_err err = { "" };

	if (!o->metrics)
		return 0;
	if (!http_built())
		return option_complain("--metrics", o->metrics, "shardkeepd was "
				"built without libmicrohttpd; --metrics-file "
				"needs none");
	if (address_parse(o->metrics, o->metrics_public, &at, &err) == 0)
		return 0;
	fprintf(stderr, "shardkeepd: --metrics: %s\n", err.text);
	return -EINVAL;
}

/* What is asked for, and kept from having an effect by something else. */
static void say_idle(const struct options *o)
{
	const char *file = o->metrics_file;
	size_t n = file ? strlen(file) : 0;

	if (file && (n < 5 || strcmp(file + n - 5, ".prom") != 0))
		fprintf(stderr, "shardkeepd: --metrics-file %s: the node "
			"exporter's textfile collector reads *.prom alone\n",
			file);
	if (o->device_memory && o->seal_writes)
		fprintf(stderr, "shardkeepd: --device-memory has no effect "
			"with --seal-writes, as nobody but its rank could "
			"fill a slot; leave one of them away\n");
}

/* Where we are; NULL: nowhere any more. */
static char *find_here(void)
{
	const struct sk_os *os = sk_os_linux();
	char here[PATH_MAX];

	return os->getcwd(os, here, sizeof(here)) < 0 ? NULL : strdup(here);
}

static int parse(int argc, char **argv, char *here, bool again,
		 struct options *ret)
{
	struct options o = {
		.here = here,
		.memory = sk_memory_total(sk_os_linux()) / 2,
		.user_layouts = UINT64_C(1) << 30,
		.admin_uid = (uid_t)-1,
		.level = LOG_LEVEL_INFO, .ready_fd = -1, .worker_fd = -1,
		.stop_timeout_s = 300,
		.hangs_s = 30,	/* degraded.c says so */
		.retention = { .keep_last = KEEP_LAST },
		.flush_interval_s = FLUSH_INTERVAL_S,
		.scrub_rate = SCRUB_RATE,
	};
	struct said said = { .o = &o, .again = again };
	int r;

	r = from_file(&said, argc, argv);
	if (r == 0)
		r = from_environment(&o);
	note_environment(&said);
	if (r == 0)
		r = from_command_line(&said, argc, argv);
	if (r == 0 && o.takeover && o.keeper == KEEP_NEVER)
		r = option_complain("--takeover", "--no-keeper", "what is taken over "
			     "needs a keeper");
	if (r == 0)
		r = check_metrics(&o);
	if (r == 0 && optind < argc) {
		fprintf(stderr, "shardkeepd: \"%s\" is not an option\n"
			"Try 'shardkeepd --help'.\n", argv[optind]);
		r = -EINVAL;
	}
	if (r == 0)
		r = paths_fix(&o);
	if (r == 0)
		say_idle(&o);
	if (r == 0 && said.check) {
		print_said(&said);
		r = 1;
	}
	forget(&said);
	if (r) {
		options_free(&o);
		return r;
	}
	*ret = o;
	ret->argc = argc;
	ret->argv = argv;
	return 0;
}

int options_parse(int argc, char **argv, struct options *ret)
{
	return parse(argc, argv, find_here(), false, ret);
}

int options_again(const struct options *o, struct options *ret)
{
	assert(o->argv);
	return parse(o->argc, o->argv, o->here ? strdup(o->here) : NULL, true,
		     ret);
}

void options_free(struct options *o)
{
	free(o->socket);
	free(o->store);
	free(o->metrics);
	free(o->metrics_file);
	free(o->here);
}
