/* SPDX-License-Identifier: Apache-2.0 */
/* cachectl: lists, inspects, verifies, pins, evicts, flushes. */
#include "cachectl.h"

#include <getopt.h>
#include <stdio.h>
#include <string.h>

#define TIMEOUT_MS 30000

const struct command commands[] = {
	{ "list", "[JOB[/STEP]]", "list snapshots, newest first",
	  "Lists what is in memory and on disk. With -v, says of incomplete "
	  "snapshots what\nis missing and of failed flushes why.",
	  "v", 0, 1, command_list },
	{ "show", "SNAPSHOT [TENSOR]",
	  "show images and tensors, or who holds a tensor",
	  "Shows the images of each rank and every tensor with dtype, global "
	  "shape, mesh and\nplacements. With TENSOR, draws which rank holds "
	  "which part of it.", "", 1, 2, command_show },
	{ "verify", "[SNAPSHOT...]", "check every byte against its checksum",
	  "Reads images in memory and on disk, all or those named. Bad ones "
	  "are set aside:\nrestores use another holder. Exit code 5 if any is "
	  "bad.", "", 0, 1000, command_verify },
	{ "pin", "SNAPSHOT", "keep it until unpinned",
	  "A pinned snapshot is not evicted from memory or deleted from disk. "
	  "Pins last as\nlong as the agent runs.", "", 1, 1, command_pin },
	{ "unpin", "SNAPSHOT", "undo pin", "", "", 1, 1, command_unpin },
	{ "evict", "SNAPSHOT", "free its memory, or delete it from disk",
	  "Refuses, and says why, what is protected: the newest complete "
	  "snapshot, a pinned\none, one in use by a restore, one not yet "
	  "durable where a store is configured.\n--force overrides all but "
	  "use by a restore.", "fmd", 1, 1, command_evict },
	{ "flush", "SNAPSHOT", "write it to disk now",
	  "Asks the agent to make it durable; --wait waits for that and shows "
	  "progress.", "w", 1, 1, command_flush },
	{ "export", "SNAPSHOT PATH", "write whole tensors as safetensors",
	  "Puts the tensors together, verified, into PATH.safetensors, or into "
	  "a directory:\nmodel.safetensors or, with --shard-size, several "
	  "files and an index. Blobs stay\nout. --prefix takes the tensors "
	  "whose names begin with it, and leaves it out of\nthe names.",
	  "xS", 2, 2, command_export },
	{ "stats", "", "counters and gauges",
	  "With --prometheus, in Prometheus' text format.", "p", 0, 0,
	  command_stats },
	{ "version", "", "versions of this program and of the agent", "", "",
	  0, 0, command_version },
	{ "stop", "", "flush what is not durable, then end the agent",
	  "What is in memory only, and has no store to go to, is lost. --wait "
	  "waits.", "w", 0, 0, command_stop },
};
const size_t n_commands = SK_ARRAY_SIZE(commands);

static const struct option options[] = {
	{ "help", no_argument, NULL, 'h' },
	{ "version", no_argument, NULL, 'V' },
	{ "json", no_argument, NULL, 'j' },
	{ "prometheus", no_argument, NULL, 'p' },
	{ "socket", required_argument, NULL, 's' },
	{ "verbose", no_argument, NULL, 'v' },
	{ "force", no_argument, NULL, 'f' },
	{ "memory", no_argument, NULL, 'm' },
	{ "disk", no_argument, NULL, 'd' },
	{ "wait", no_argument, NULL, 'w' },
	{ "prefix", required_argument, NULL, 'x' },
	{ "shard-size", required_argument, NULL, 'S' },
	{ "commands", no_argument, NULL, 'C' },	/* for shell completion */
	{ NULL, 0, NULL, 0 },
};

static const struct {
	char letter;
	const char *text;
} option_help[] = {
	{ 'v', "  -v, --verbose      say what is missing, and why" },
	{ 'f', "  -f, --force        evict what is protected as well" },
	{ 'm', "  -m, --memory       evict from memory (the default)" },
	{ 'd', "  -d, --disk         delete from disk" },
	{ 'w', "  -w, --wait         wait until it is done" },
	{ 'x', "      --prefix TEXT  only names that begin so, without it" },
	{ 'S', "      --shard-size SIZE\n"
	       "                     most bytes in a file, such as 5G" },
	{ 'p', "      --prometheus   Prometheus text format" },
};

static void print_help(void)
{
	puts("usage: cachectl [--socket PATH] [--json] COMMAND [ARGUMENT...]\n"
	     "\n"
	     "Looks into and steers Shardkeep's agent on this node.\n");
	for (size_t i = 0; i < n_commands; i++)
		printf("  %-8s %-18s %s\n", commands[i].name,
		       commands[i].arguments, commands[i].summary);
	puts("\n"
	     "A SNAPSHOT is JOB (its newest), JOB/STEP, or JOB@RUN/STEP.\n"
	     "\n"
	     "  -s, --socket PATH  of the agent; else $SHARDKEEP_SOCKET,\n"
	     "                     /run/shardkeep, $XDG_RUNTIME_DIR\n"
	     "  -j, --json         one JSON document, exact numbers\n"
	     "  -h, --help         this; COMMAND --help for one command\n"
	     "  -V, --version      this program's version\n"
	     "\n"
	     "exit codes: 0 fine, 1 refused or failed, 2 usage, 3 no agent,\n"
	     "4 not found, 5 verification found bad bytes");
}

static void print_command_help(const struct command *c)
{
	printf("usage: cachectl %s%s%s%s\n\n%s%s%s", c->name,
	       *c->options ? " [OPTION]" : "", *c->arguments ? " " : "",
	       c->arguments, *c->help ? c->help : c->summary, "\n",
	       *c->options ? "\n" : "");
	for (size_t i = 0; i < SK_ARRAY_SIZE(option_help); i++)
		if (strchr(c->options, option_help[i].letter))
			puts(option_help[i].text);
}

static void print_commands(void)
{
	for (size_t i = 0; i < n_commands; i++)
		puts(commands[i].name);
}

static int usage(const char *fmt, const char *what)
{
	fputs("cachectl: ", stderr);
	fprintf(stderr, fmt, what);
	fputs("; cachectl --help\n", stderr);
	return EXIT_USAGE;
}

static const struct command *find_command(const char *name)
{
	for (size_t i = 0; i < n_commands; i++)
		if (strcmp(commands[i].name, name) == 0)
			return &commands[i];
	return NULL;
}

static bool parse_size(const char *text, uint64_t *ret)
{
	static const char units[] = "KMGT";
	unsigned long long value;
	const char *unit;
	char *end;

	errno = 0;
	value = strtoull(text, &end, 10);
	if (errno || end == text || *text < '0' || *text > '9' || !value)
		return false;
	unit = *end ? strchr(units, *end & ~0x20) : NULL;
	if (*end && (!unit || end[1]))
		return false;
	for (const char *u = units; unit && u <= unit; u++)
		if (__builtin_mul_overflow(value, 1024, &value))
			return false;
	*ret = value;
	return true;
}

static int exit_code(int r)
{
	switch (r) {
	case 0:
		return EXIT_FINE;
	case -ENOTCONN:
		return EXIT_NO_AGENT;
	case -ENOENT:
		return EXIT_NOT_FOUND;
	case -EBADMSG:
		return EXIT_DAMAGED;
	default:
		return EXIT_REFUSED;
	}
}

static int run(struct context *ctx, const struct command *c, int argc,
	       char **argv)
{
	_cleanup_report_ struct report *report = report_new();
	int r, e = 0;

	ctx->report = report;
	r = report ? c->run(ctx, argc, argv) :
		     sk_err_set(&ctx->err, -ENOMEM, "out of memory");
	/* What verify found is shown along with its verdict. */
	if (report && (r >= 0 || r == -EBADMSG))
		e = report_print(report, ctx->output, ctx->colour, stdout);
	if (ctx->conn.sock >= 0)
		sk_conn_close(&ctx->conn);
	if (r >= 0 && e < 0)
		r = sk_err_set(&ctx->err, e, "cannot print: %s",
			       strerror(-e));
	if (r < 0)
		fprintf(stderr, "cachectl: %s\n", ctx->err.text[0] ?
			ctx->err.text : strerror(-r));
	return exit_code(r < 0 ? r : 0);
}

/* True if the option is for every command, or one that @c takes. */
static bool takes(const struct command *c, int letter)
{
	return strchr("jshV", letter) || strchr(c->options, letter);
}

int main(int argc, char **argv)
{
	struct context ctx = { .timeout_ms = TIMEOUT_MS, .conn.sock = -1 };
	const struct command *c;
	char given[16] = "";
	bool help = false;
	int o;

	while ((o = getopt_long(argc, argv, "hVjps:vfmdw", options, NULL)) !=
	       -1) {
		if (o == '?')
			return EXIT_USAGE;
		if (strlen(given) + 1 < sizeof(given) && !strchr(given, o))
			given[strlen(given)] = (char)o;
		switch (o) {
		case 'h': help = true; break;
		case 'C': print_commands(); return EXIT_FINE;
		case 'V': puts(sk_version()); return EXIT_FINE;
		case 'j': ctx.output = OUTPUT_JSON; break;
		case 'p': ctx.output = OUTPUT_PROMETHEUS; break;
		case 's': ctx.socket = optarg; break;
		case 'v': ctx.verbose = true; break;
		case 'f': ctx.force = true; break;
		case 'm': ctx.memory = true; break;
		case 'd': ctx.disk = true; break;
		case 'w': ctx.wait = true; break;
		case 'x': ctx.prefix = optarg; break;
		case 'S':
			if (!parse_size(optarg, &ctx.shard_bytes))
				return usage("\"%s\" is no size such as 5G",
					     optarg);
			break;
		}
	}
	if (optind == argc) {
		if (!help)
			return usage("%s", "no command is given");
		print_help();
		return EXIT_FINE;
	}
	c = find_command(argv[optind]);
	if (!c)
		return usage("there is no command \"%s\"", argv[optind]);
	if (help) {
		print_command_help(c);
		return EXIT_FINE;
	}
	for (const char *g = given; *g; g++)
		if (!takes(c, *g))
			return usage("%s does not take one of those options",
				     c->name);
	argc -= optind + 1;
	argv += optind + 1;
	if (argc < c->min_args)
		return usage("%s needs an argument", c->name);
	if (argc > c->max_args)
		return usage("%s has too many arguments", c->name);
	ctx.colour = isatty(STDOUT_FILENO) && !getenv("NO_COLOR");
	return run(&ctx, c, argc, argv);
}
