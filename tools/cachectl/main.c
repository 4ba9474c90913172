/* SPDX-License-Identifier: Apache-2.0 */
/* cachectl: lists, inspects, verifies, pins, evicts, flushes. */
#include "commands.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>

#include "base/size.h"
#include "base/standard.h"

#define TIMEOUT_MS 30000
#define OPTIONS_MAX 32
#define COLUMNS_LEAST 20

__attribute__((format(printf, 1, 2)))
static int usage(const char *fmt, ...)
{
	va_list ap;

	fputs("cachectl: ", stderr);
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fputs("; cachectl --help says more\n", stderr);
	return EXIT_USAGE;
}

static int printed(void)
{
	if (!fflush(stdout) && !ferror(stdout))
		return EXIT_FINE;
	fprintf(stderr, "cachectl: cannot print: %s\n", strerror(errno));
	return EXIT_REFUSED;
}

static int exit_code(int r)
{
	switch (r) {
	case 0:
		return EXIT_FINE;
	case -ENOENT:
		return EXIT_NOT_FOUND;
	case -EBADMSG:
		return EXIT_DAMAGED;
	default:
		return EXIT_REFUSED;
	}
}

/* What was gathered of an agent that has ended since is not shown. */
static int run_once(struct context *ctx, const struct command *c, int argc,
		    char **argv)
{
	ctx->report = report_free(ctx->report);
	ctx->report = report_new();
	ctx->unreachable = ctx->degraded = ctx->unfit = ctx->found = false;
	return ctx->report ? c->run(ctx, argc, argv) :
			     sk_err_set(&ctx->err, -ENOMEM, "out of memory");
}

static int run(struct context *ctx, const struct command *c, int argc,
	       char **argv)
{
	int r = run_once(ctx, c, argc, argv), e = 0;

	for (int i = 0; c->again && i < AGAIN_MOST && r == -ECONNRESET; i++)
		r = run_once(ctx, c, argc, argv);
	/* What verify and stop found is shown along with the verdict. */
	if (ctx->report && !c->live &&
	    (r >= 0 || ctx->found || ctx->lost))
		e = report_print(ctx->report, ctx->output, &ctx->style,
				 stdout);
	ctx->report = report_free(ctx->report);
	/* One that ends meanwhile, or hangs, does not answer either. */
	ctx->unreachable |= r == -ECONNRESET ||
			    (r == -ETIMEDOUT && ctx->conn.sock < 0);
	sk_conn_close(&ctx->conn);
	/* Of an agent that does not answer it would have told. */
	if (r >= 0 && e < 0) {
		ctx->unreachable = false;
		r = sk_err_set(&ctx->err, e, "cannot print: %s",
			       strerror(-e));
	}
	if (r < 0)
		fprintf(stderr, "cachectl: %s\n", ctx->err.text[0] ?
			ctx->err.text : strerror(-r));
	if (r >= 0 && (ctx->degraded || ctx->unfit))
		return ctx->unfit ? EXIT_UNFIT : EXIT_DEGRADED;
	return ctx->misused ? EXIT_USAGE :
	       ctx->unreachable && r < 0 ? EXIT_NO_AGENT :
	       ctx->lost ? EXIT_LOST : exit_code(r < 0 ? r : 0);
}

/* https://no-color.org: any value but an empty one. */
struct style choose_style(void)
{
	const char *no = getenv("NO_COLOR"), *term = getenv("TERM");
	struct winsize w = { 0 };
	bool able = isatty(STDOUT_FILENO) &&
		    !(term && strcmp(term, "dumb") == 0);

	/* In a pipe, too, a table is for people: scripts have --json. A
	 * terminal that says less than this has not been told its size. */
	if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &w) < 0)
		w.ws_col = w.ws_row = 0;
	return (struct style){
		.colour = able && !(no && *no),
		.clears = able,
		.columns = w.ws_col >= COLUMNS_LEAST ? w.ws_col : 0,
		.rows = w.ws_row,
	};
}

/* The table in getopt's form; its letters are values, brief or not. */
static void make_options(struct option *ret, char *ret_brief)
{
	*ret_brief = 0;
	for (size_t i = 0; i < n_option_infos; i++) {
		const struct option_info *o = &option_infos[i];

		ret[i] = (struct option){ o->name, o->argument ?
			required_argument : no_argument, NULL, o->letter };
		if (o->brief)
			sprintf(ret_brief + strlen(ret_brief), "%c%s",
				o->letter, o->argument ? ":" : "");
	}
	ret[n_option_infos] = (struct option){ 0 };
}

static bool is_number(const char *text, uint64_t most, uint64_t *ret)
{
	char *end;

	errno = 0;
	*ret = strtoull(text, &end, 10);
	return *text >= '0' && *text <= '9' && !*end && !errno && *ret <= most;
}

/* What is to stay. 0, or the exit code. */
static int take_keep(struct context *ctx, int letter)
{
	struct sk_wire_retention *keep = &ctx->keep;
	uint64_t n = 0;

	ctx->keeps = true;
	if (letter == 'b') {
		/* 0 is no size; it is no limit. */
		if (strcmp(optarg, "0") != 0 &&
		    sk_size_parse(optarg, 0, &n, &ctx->err) < 0)
			return usage("--bytes: %s", ctx->err.text);
		if (n && sk_size_lacks_unit(optarg, n))
			return usage("--bytes: of bytes %s is next to nothing; "
				     "is a K, M, G or T missing?", optarg);
		keep->keep_bytes = n;
		return 0;
	}
	if (!is_number(optarg, letter == 'a' ? INT64_MAX : UINT32_MAX, &n))
		return usage("\"%s\" is not a number of %s", optarg,
			     letter == 'a' ? "seconds" : "steps");
	if (letter == 'a')
		keep->keep_age_s = n;
	else if (letter == 'e')
		keep->keep_every = (uint32_t)n;
	else
		keep->keep_last = (uint32_t)n;
	return 0;
}

/* 0, or the exit code. */
static int take_option(struct context *ctx, int letter)
{
	switch (letter) {
	case 'j': ctx->output = OUTPUT_JSON; break;
	case 'p': ctx->output = OUTPUT_PROMETHEUS; break;
	case 's':
		if (!*optarg)
			return usage("%s", "the path of --socket is empty");
		ctx->socket = optarg;
		break;
	case 'v': ctx->verbose = true; break;
	case 'f': ctx->force = true; break;
	case 'm': ctx->memory = true; break;
	case 'd': ctx->disk = true; break;
	case 'w': ctx->wait = true; break;
	case 'x': ctx->prefix = optarg; break;
	case 'l':
	case 'e':
	case 'a':
	case 'b':
		return take_keep(ctx, letter);
	case 'i':
		if (!is_number(optarg, 86400, &ctx->interval_s) ||
		    !ctx->interval_s)
			return usage("\"%s\" is not a number of seconds",
				     optarg);
		break;
	case 'n':
		if (!is_number(optarg, UINT32_MAX, &ctx->count) || !ctx->count)
			return usage("\"%s\" is not a number from 1 on",
				     optarg);
		break;
	case 'D': ctx->keep_default = true; break;
	case 'S':
		if (sk_size_parse(optarg, 0, &ctx->shard_bytes,
				  &ctx->err) < 0)
			return usage("--shard-size: %s", ctx->err.text);
		break;
	case '?':	/* getopt has said what */
		fputs("cachectl --help says more\n", stderr);
		return EXIT_USAGE;
	}
	return 0;
}

/* Every letter that was given, once, in @given. 0, or the exit code. */
static int take_options(struct context *ctx, int argc, char **argv,
			char given[OPTIONS_MAX])
{
	struct option options[OPTIONS_MAX];
	char brief[2 * OPTIONS_MAX];
	int letter, r;

	assert(n_option_infos < OPTIONS_MAX);
	make_options(options, brief);
	while ((letter = getopt_long(argc, argv, brief, options, NULL)) !=
	       -1) {
		r = take_option(ctx, letter);
		if (r)
			return r;
		if (!strchr(given, letter))
			given[strlen(given)] = (char)letter;
	}
	return 0;
}

/* Whether the command takes all that was given. 0, or the exit code. */
static int check(const struct command *c, const char *given, int n_args)
{
	for (const char *g = given; *g; g++)
		if (!takes_option(c, *g))
			return usage("%s has no option --%s", c->name,
				      find_option(*g)->name);
	if (strchr(given, 'j') && strchr(given, 'p'))
		return usage("%s", "--json and --prometheus exclude each "
			     "other");
	if (n_args < c->min_args)
		return usage("%s needs %s", c->name, c->arguments);
	if (n_args > c->max_args)
		return usage("%s takes no more than %s", c->name,
			      *c->arguments ? c->arguments : "options");
	return 0;
}

int main(int argc, char **argv)
{
	struct context ctx = { .os = sk_os_linux(), .timeout_ms = TIMEOUT_MS,
			       .conn = SK_CONN_NULL };
	char given[OPTIONS_MAX] = "";
	const struct command *c;
	int r;

	/* What is printed must not go to the agent's socket. */
	sk_standard_hold(ctx.os, O_RDONLY);
	/* A limit of files' sizes is said as a full disk is. */
	(void)signal(SIGXFSZ, SIG_IGN);
	if (argc > 1 && strcmp(argv[1], "--complete") == 0)
		return complete(&ctx, argc - 2, argv + 2);
	r = take_options(&ctx, argc, argv, given);
	if (r)
		return r;
	c = optind < argc ? find_command(argv[optind]) : NULL;
	if (optind < argc && !c)
		return usage("there is no command \"%s\"", argv[optind]);
	if (strchr(given, 'V')) {
		puts(sk_version());
		return printed();
	}
	if (strchr(given, 'h')) {
		if (c)
			print_command_help(c);
		else
			print_help();
		return printed();
	}
	if (!c)
		return usage("%s", "no command is given");
	argc -= optind + 1;
	argv += optind + 1;
	r = check(c, given, argc);
	if (r)
		return r;
	ctx.style = choose_style();
	return run(&ctx, c, argc, argv);
}
