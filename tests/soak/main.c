/* SPDX-License-Identifier: Apache-2.0 */
#include "soak/soak.h"

#include <ftw.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const struct kind {
	const char *name;
	trial_fn run;
} kinds[] = {
	{ "kill", trial_kill },
	{ "agent", trial_agent },
	{ "flip", trial_flip },
	{ "fuzz", trial_fuzz },
	{ "property", trial_property },
	{ "retain", trial_retain },
};

static const char usage[] =
"usage: soak [OPTION...] AGENT [KIND...]\n"
"\n"
"Runs trials against the shardkeepd at AGENT until one fails or the time is\n"
"over. KINDs: kill, agent, flip, fuzz, property, retain (all of them, in\n"
"turn).\n"
"\n"
"  -m, --minutes N    of each kind (1)\n"
"  -t, --trials N     of each kind, whatever time they take\n"
"  -s, --seed N       of the first trial; the next has the next (the clock)\n"
"  -c, --cachectl PATH    which retain needs\n"
"  -r, --scrubbing PATH   for it, an agent that reads all the time what it has\n"
"  -h, --help         this\n"
"\n"
"Exit codes: 0 nothing was wrong, 1 something was, 2 usage.\n";

struct settings {
	uint64_t minutes, trials, seed;
	char *cachectl, *scrubbing;	/* programs */
};

static uint64_t now_s(void)
{
	struct timespec ts;

	CHECK(!clock_gettime(CLOCK_MONOTONIC, &ts));
	return (uint64_t)ts.tv_sec;
}

static void say(const struct kind *kind, const struct tally *t)
{
	printf("%s: %llu trials, %llu lives, %llu ranks and %llu agents "
	       "killed, %llu bits flipped, %llu messages, %llu restores, no "
	       "wrong byte\n", kind->name, (unsigned long long)t->trials,
	       (unsigned long long)t->lives, (unsigned long long)t->kills,
	       (unsigned long long)t->agent_kills,
	       (unsigned long long)t->flips, (unsigned long long)t->messages,
	       (unsigned long long)t->restores);
	if (t->commands)
		printf("%s: %llu commands, %llu of them refused, %llu restores "
		       "that found nothing\n", kind->name,
		       (unsigned long long)t->commands,
		       (unsigned long long)t->refused,
		       (unsigned long long)t->none);
	if (t->steps)
		printf("%s: %llu takeovers, %llu steps, %llu calls failed; served again after "
		       "%llu ms at most, %llu times after 500 ms or more\n",
		       kind->name, (unsigned long long)t->takeovers,
		       (unsigned long long)t->steps,
		       (unsigned long long)t->lost,
		       (unsigned long long)t->longest_ms,
		       (unsigned long long)t->slow);
	fflush(stdout);
}

static int no_left_over(const char *path, const struct stat *st, int type,
			struct FTW *ftw)
{
	const char *name = path + ftw->base;

	(void)st;
	(void)type;
	CHECK(!strstr(name, ".tmp") && !strstr(name, ".deleted-") &&
	      !strstr(name, ".agent-"), "%s is left", path);
	return 0;
}

/* However many agents were killed: the last one ended in order, and nothing
 * is on the store that is half of something. */
static void end_scene(struct scene *scene)
{
	scene_stop_agent(scene, SIGTERM);
	if (access(scene->store, F_OK) == 0)
		CHECK(!nftw(scene->store, no_left_over, 16, FTW_PHYS));
	scene_close(scene);
}

/* A scene for every few trials: what they leave goes with it. */
static void run_kind(const struct kind *kind, const struct settings *s,
		     char **argv)
{
	uint64_t end = now_s() + s->minutes * 60, seed = s->seed;
	struct tally tally = { 0 };

	while (s->trials ? tally.trials < s->trials : now_s() < end) {
		struct scene scene;

		scene_open(&scene, argv[2] ? 3 : 2, argv);
		for (int i = 0; i < 8; i++) {
			if (s->trials && tally.trials == s->trials)
				break;
			fprintf(stderr, "\r%s: seed %llu ", kind->name,
				(unsigned long long)seed);
			kind->run(&scene, seed++, &tally);
			tally.trials++;
		}
		end_scene(&scene);
	}
	fputc('\n', stderr);
	say(kind, &tally);
}

static bool chosen(const struct kind *kind, char **names, int n)
{
	for (int i = 0; i < n; i++) {
		if (strcmp(names[i], kind->name) == 0)
			return true;
	}
	return !n;
}

static bool known(const char *name)
{
	for (size_t i = 0; i < SK_ARRAY_SIZE(kinds); i++) {
		if (strcmp(name, kinds[i].name) == 0)
			return true;
	}
	fprintf(stderr, "soak: there is no kind \"%s\"\n", name);
	return false;
}

static bool number(const char *text, uint64_t *ret)
{
	char *end;

	errno = 0;
	*ret = strtoull(text, &end, 10);
	if (!errno && end != text && !*end)
		return true;
	fprintf(stderr, "soak: \"%s\" is not a number\n", text);
	return false;
}

/* 0 go on, 1 done, -1 usage. */
static int parse(int argc, char **argv, struct settings *ret)
{
	static const struct option options[] = {
		{ "minutes", required_argument, NULL, 'm' },
		{ "trials", required_argument, NULL, 't' },
		{ "seed", required_argument, NULL, 's' },
		{ "cachectl", required_argument, NULL, 'c' },
		{ "scrubbing", required_argument, NULL, 'r' },
		{ "help", no_argument, NULL, 'h' },
		{ NULL, 0, NULL, 0 },
	};
	int c;

	while ((c = getopt_long(argc, argv, "m:t:s:c:r:h", options,
				NULL)) >= 0) {
		uint64_t *to = c == 'm' ? &ret->minutes :
			       c == 't' ? &ret->trials : &ret->seed;

		if (c == 'h')
			return puts(usage) < 0 ? -1 : 1;
		if (c == 'c' || c == 'r') {
			*(c == 'c' ? &ret->cachectl : &ret->scrubbing) = optarg;
			continue;
		}
		if (c == '?' || !number(optarg, to))
			return -1;
	}
	if (optind == argc)
		return -1;
	for (int i = optind + 1; i < argc; i++) {
		if (!known(argv[i]))
			return -1;
	}
	return 0;
}

int main(int argc, char **argv)
{
	struct settings s = { .minutes = 1, .seed = (uint64_t)time(NULL) };
	int r = parse(argc, argv, &s);

	if (r) {
		if (r < 0)
			fputs(usage, stderr);
		return r < 0 ? 2 : 0;
	}
	for (size_t i = 0; i < SK_ARRAY_SIZE(kinds); i++) {
		bool scrubs = kinds[i].run == trial_retain && s.scrubbing;
		char *of_scene[] = { argv[0], scrubs ? s.scrubbing :
				     argv[optind], s.cachectl, NULL };

		if (chosen(&kinds[i], argv + optind + 1, argc - optind - 1))
			run_kind(&kinds[i], &s, of_scene);
	}
	return 0;
}
