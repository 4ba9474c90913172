/* SPDX-License-Identifier: Apache-2.0 */
/* Each option means what the help says, from the command line, the file and
 * the environment; what makes no sense is refused. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/util.h"
#include "options.h"

struct number {
	const char *name, *value;	/* NULL: a flag */
	size_t offset, size;		/* in struct options */
	uint64_t means;
};

#define FIELD(field)							\
	offsetof(struct options, field), sizeof(((struct options *)0)->field)

static const struct number numbers[] = {
	{ "memory", "3M", FIELD(memory), 3u << 20 },
	{ "device-memory", "5K", FIELD(device_memory), 5u << 10 },
	{ "device-memory", "0", FIELD(device_memory), 0 },
	{ "user-memory", "7K", FIELD(user_memory), 7u << 10 },
	{ "user-memory", "0", FIELD(user_memory), 0 },
	{ "user-layouts", "9M", FIELD(user_layouts), 9u << 20 },
	{ "user-layouts", "0", FIELD(user_layouts), 0 },
	{ "admin-uid", "0", FIELD(admin_uid), 0 },
	{ "admin-uid", "4294967294", FIELD(admin_uid), UINT32_MAX - 1 },
	{ "seal-writes", NULL, FIELD(seal_writes), true },
	{ "flush-rate", "11K", FIELD(flush_rate), 11u << 10 },
	{ "flush-rate", "0", FIELD(flush_rate), 0 },
	{ "flush-interval", "0", FIELD(flush_interval_s), 0 },
	{ "flush-interval", "1048576", FIELD(flush_interval_s), 1u << 20 },
	{ "no-direct", NULL, FIELD(no_direct), true },
	{ "backend", "auto", FIELD(backend), SK_IO_AUTO },
	{ "backend", "uring", FIELD(backend), SK_IO_URING },
	{ "backend", "threads", FIELD(backend), SK_IO_THREADS },
	{ "keep-last", "0", FIELD(retention.keep_last), 0 },
	{ "keep-last", "12", FIELD(retention.keep_last), 12 },
	{ "keep-every", "4294967295", FIELD(retention.keep_every),
	  UINT32_MAX },
	{ "keep-age", "13", FIELD(retention.keep_age_s), 13 },
	{ "keep-bytes", "14K", FIELD(retention.keep_bytes), 14u << 10 },
	{ "keep-bytes", "0", FIELD(retention.keep_bytes), 0 },
	{ "keep-last", "12", FIELD(retention_said), true },
	{ "scrub-rate", "0", FIELD(scrub_rate), 0 },
	{ "scrub-rate", "15M", FIELD(scrub_rate), 15u << 20 },
	{ "metrics-public", NULL, FIELD(metrics_public), true },
	{ "stop-timeout", "16", FIELD(stop_timeout_s), 16 },
	{ "detach", NULL, FIELD(detach), true },
	{ "keeper", NULL, FIELD(keeper), KEEP_ALWAYS },
	{ "no-keeper", NULL, FIELD(keeper), KEEP_NEVER },
	{ "takeover", NULL, FIELD(takeover), true },
	{ "ready-fd", "17", FIELD(ready_fd), 17 },
	{ "ready-fd", "1048576", FIELD(ready_fd), 1u << 20 },
	{ "gpu-worker", "18", FIELD(worker_fd), 18 },
	{ "idle-exit", "19", FIELD(idle_exit_s), 19 },
	{ "log-level", "error", FIELD(level), LOG_LEVEL_ERROR },
	{ "log-level", "debug", FIELD(level), LOG_LEVEL_DEBUG },
};

/* What holds where nobody says anything, memory apart. */
static const struct number usual[] = {
	{ "user-memory", NULL, FIELD(user_memory), 0 },
	{ "user-layouts", NULL, FIELD(user_layouts), 1u << 30 },
	{ "admin-uid", NULL, FIELD(admin_uid), UINT32_MAX },
	{ "flush-rate", NULL, FIELD(flush_rate), 0 },
	{ "flush-interval", NULL, FIELD(flush_interval_s), 30 },
	{ "scrub-rate", NULL, FIELD(scrub_rate), 16u << 20 },
	{ "keep-last", NULL, FIELD(retention.keep_last), 4 },
	{ "keep-last", NULL, FIELD(retention_said), false },
	{ "stop-timeout", NULL, FIELD(stop_timeout_s), 300 },
	{ "ready-fd", NULL, FIELD(ready_fd), UINT32_MAX },
	{ "gpu-worker", NULL, FIELD(worker_fd), UINT32_MAX },
	{ "log-level", NULL, FIELD(level), LOG_LEVEL_INFO },
	{ "keeper", NULL, FIELD(keeper), KEEP_DEFAULT },
	{ "device-memory", NULL, FIELD(device_memory), 0 },
};

static const char *const nonsense[] = {
	"--memory=", "--memory=x", "--memory=5%%", "--device-memory=5%",
	"--flush-rate=5%", "--admin-uid=-1", "--admin-uid=4294967295",
	"--admin-uid=root", "--flush-interval=1048577", "--flush-interval= 1",
	"--flush-interval=1s", "--backend=fast", "--backend=", "--keep-last=",
	"--keep-last=4294967296", "--keep-every=-1", "--keep-age=1h",
	"--keep-bytes=many", "--scrub-rate=x", "--stop-timeout=1073741825",
	/* A unit is missing. */
	"--keep-bytes=500", "--memory=64", "--memory=1048575",
	"--ready-fd=1048577", "--ready-fd=x", "--gpu-worker=-1",
	"--idle-exit=1073741825", "--log-level=loud", "--socket=", "--store=",
	"--metrics=", "--metrics-file=", "--metrics=no:such:place", "--what",
	"word", "--config=/nonexistent/shardkeepd.conf",
};

/* No file and nothing in the environment, unless a test says so. */
static void clear(void)
{
	cr_assert_eq(setenv("HOME", "/nonexistent", 1), 0);
	cr_assert_eq(unsetenv("XDG_CONFIG_HOME"), 0);
	cr_assert_eq(unsetenv("SHARDKEEP_SOCKET"), 0);
	cr_assert_eq(unsetenv("SHARDKEEP_STORE"), 0);
	cr_assert_eq(unsetenv("SHARDKEEP_MEMORY"), 0);
	cr_assert_eq(unsetenv("SHARDKEEP_DEVICE_MEMORY"), 0);
}

TestSuite(options, .init = clear);

/* options_again() reads them once more, until the next call. */
static int parse(const char *one, const char *other, struct options *ret)
{
	/* Not what this machine's agent is told. */
	static char name[] = "shardkeepd", config[] = "--config=/dev/null";
	static char *argv[5];

	argv[0] = name;
	argv[1] = config;
	argv[2] = (char *)one;
	argv[3] = (char *)other;
	*ret = (struct options){ 0 };
	return options_parse(2 + !!one + !!other, argv, ret);
}

static uint64_t value_of(const struct options *o, const struct number *n)
{
	uint64_t value = 0;

	memcpy(&value, (const char *)o + n->offset, n->size);
	return value;
}

Test(options, what_holds_where_nobody_says_anything)
{
	struct options o;

	cr_assert_eq(parse(NULL, NULL, &o), 0);
	for (size_t i = 0; i < SK_ARRAY_SIZE(usual); i++)
		cr_assert_eq(value_of(&o, &usual[i]), usual[i].means, "%s",
			     usual[i].name);
	cr_assert(!o.socket && !o.store && !o.metrics && !o.metrics_file);
	cr_assert(!o.seal_writes && !o.no_direct && !o.detach && !o.takeover);
	cr_assert_geq(o.memory, 1u << 20);
	options_free(&o);
}

Test(options, each_on_the_command_line)
{
	for (size_t i = 0; i < SK_ARRAY_SIZE(numbers); i++) {
		const struct number *n = &numbers[i];
		struct options o;
		char word[80];

		(void)snprintf(word, sizeof(word), "--%s%s%s", n->name,
			       n->value ? "=" : "", n->value ? n->value : "");
		cr_assert_eq(parse(word, NULL, &o), 0, "%s", word);
		cr_assert_eq(value_of(&o, n), n->means, "%s", word);
		options_free(&o);
	}
}

/* Of its own lines, or none where they are of one start alone. */
static int parse_file(const char *text, struct options *ret)
{
	char path[] = "/tmp/shardkeep-options-XXXXXX", word[64];
	int fd = mkstemp(path), r;

	cr_assert_geq(fd, 0);
	cr_assert_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
	close(fd);
	(void)snprintf(word, sizeof(word), "--config=%s", path);
	r = parse(word, NULL, ret);
	(void)unlink(path);
	return r;
}

Test(options, each_in_a_file)
{
	for (size_t i = 0; i < SK_ARRAY_SIZE(numbers); i++) {
		const struct number *n = &numbers[i];
		bool once = strcmp(n->name, "takeover") == 0 ||
			    strcmp(n->name, "ready-fd") == 0 ||
			    strcmp(n->name, "gpu-worker") == 0;
		struct options o;
		char line[80];

		(void)snprintf(line, sizeof(line), "%s = %s\n", n->name,
			       n->value ? n->value : "yes");
		cr_assert_eq(parse_file(line, &o), once ? -EINVAL : 0, "%s",
			     line);
		cr_assert(once || value_of(&o, n) == n->means, "%s", line);
		options_free(&o);
	}
}

Test(options, flags_are_yes_or_no)
{
	struct options o;

	cr_assert_eq(parse_file("detach = no\n", &o), 0);
	cr_assert_not(o.detach);
	options_free(&o);
	cr_assert_eq(parse_file("detach = maybe\n", &o), -EINVAL);
	cr_assert_eq(parse_file("nothing = 1\n", &o), -EINVAL);
}

Test(options, what_makes_no_sense_is_refused)
{
	for (size_t i = 0; i < SK_ARRAY_SIZE(nonsense); i++) {
		struct options o;

		cr_assert_eq(parse(nonsense[i], NULL, &o), -EINVAL, "%s",
			     nonsense[i]);
	}
}

/* Of where the agent was started: it goes elsewhere, and reads them again. */
static void is_from(const char *here, const char *path, const char *got)
{
	size_t n = strcmp(here, "/") ? strlen(here) : 0;

	cr_assert(strncmp(got, here, n) == 0 && got[n] == '/', "%s", got);
	cr_assert_str_eq(got + n + 1, path);
}

Test(options, texts)
{
	char here[4096], long_name[120];
	struct options o, again;

	cr_assert(getcwd(here, sizeof(here)));
	cr_assert_eq(parse("--store=/b", "--store=/c", &o), 0);
	cr_assert_str_eq(o.store, "/c");
	options_free(&o);
	cr_assert_eq(parse("--metrics-file=/d", NULL, &o), 0);
	cr_assert_str_eq(o.metrics_file, "/d");
	options_free(&o);
	cr_assert_eq(parse("--store=b", "--metrics-file=d/e", &o), 0);
	is_from(here, "b", o.store);
	is_from(here, "d/e", o.metrics_file);
	cr_assert_eq(chdir("/"), 0);
	cr_assert_eq(options_again(&o, &again), 0);
	cr_assert_str_eq(again.store, o.store);
	cr_assert_str_eq(again.metrics_file, o.metrics_file);
	options_free(&again);
	options_free(&o);
	cr_assert_eq(parse("--socket=a", "--store=b", &o), 0);
	cr_assert_str_eq(o.socket, "/a");
	cr_assert_str_eq(o.store, "/b");
	options_free(&o);
	/* Its whole path would be no address. */
	cr_assert_eq(chdir("/tmp"), 0);
	(void)snprintf(long_name, sizeof(long_name), "--socket=%0*d", 104, 0);
	cr_assert_eq(parse(long_name, NULL, &o), 0);
	cr_assert_str_eq(o.socket, long_name + 9);
	options_free(&o);
}

Test(options, there_is_a_keeper_or_none)
{
	struct options o;

	cr_assert_eq(parse("--no-keeper", "--keeper", &o), -EINVAL);
	cr_assert_eq(parse("--keeper", "--no-keeper", &o), -EINVAL);
	cr_assert_eq(parse("--keeper", "--keeper", &o), 0);
	options_free(&o);
}

/* In a file, where a flag can be said not to be. */
Test(options, the_last_line_of_a_flag_holds)
{
	struct options o;

	cr_assert_eq(parse_file("seal-writes = yes\nseal-writes = no\n"
				"no-direct = no\nno-direct = yes\n"
				"keeper = yes\nkeeper = no\n", &o), 0);
	cr_expect(!o.seal_writes);
	cr_expect(o.no_direct);
	cr_expect_eq(o.keeper, KEEP_DEFAULT);
	options_free(&o);
	cr_assert_eq(parse_file("no-keeper = yes\nkeeper = no\n", &o), 0);
	cr_expect_eq(o.keeper, KEEP_NEVER);
	options_free(&o);
	cr_assert_eq(parse_file("keeper = yes\nkeeper = no\n"
				"no-keeper = yes\n", &o), 0);
	cr_expect_eq(o.keeper, KEEP_NEVER);
	options_free(&o);
}

Test(options, a_takeover_has_a_keeper)
{
	struct options o;

	cr_assert_eq(parse("--takeover", "--no-keeper", &o), -EINVAL);
	cr_assert_eq(parse("--takeover", "--keeper", &o), 0);
	options_free(&o);
}

Test(options, help_and_version_are_all_that_is_done)
{
	struct options o;

	cr_assert_eq(parse("--help", NULL, &o), 1);
	cr_assert_eq(parse("--version", NULL, &o), 1);
	cr_assert_eq(parse("--check-config", NULL, &o), 1);
	cr_assert_eq(parse("--check-config", "--memory=x", &o), -EINVAL);
}

/* The file, then the environment, then the command line: the last one holds. */
Test(options, who_goes_before_whom)
{
	struct options o;

	cr_assert_eq(setenv("SHARDKEEP_MEMORY", "2M", 1), 0);
	cr_assert_eq(setenv("SHARDKEEP_DEVICE_MEMORY", "3M", 1), 0);
	cr_assert_eq(setenv("SHARDKEEP_STORE", "/there/store", 1), 0);
	cr_assert_eq(setenv("SHARDKEEP_SOCKET", "/there", 1), 0);
	cr_assert_eq(parse_file("memory = 1M\nstore = here\nsocket = /here\n",
				&o), 0);
	cr_assert_str_eq(o.socket, "/there");
	cr_assert_eq(o.memory, 2u << 20);
	cr_assert_eq(o.device_memory, 3u << 20);
	cr_assert_str_eq(o.store, "/there/store");
	options_free(&o);
	cr_assert_eq(parse("--memory=4M", "--store=/else", &o), 0);
	cr_assert_eq(o.memory, 4u << 20);
	cr_assert_str_eq(o.store, "/else");
	cr_assert_str_eq(o.socket, "/there");
	options_free(&o);
	cr_assert_eq(parse("--socket=/else", NULL, &o), 0);
	cr_assert_str_eq(o.socket, "/else");
	options_free(&o);
	cr_assert_eq(setenv("SHARDKEEP_DEVICE_MEMORY", "x", 1), 0);
	cr_assert_eq(parse(NULL, NULL, &o), -EINVAL);
	cr_assert_eq(setenv("SHARDKEEP_DEVICE_MEMORY", "", 1), 0);
	cr_assert_eq(setenv("SHARDKEEP_MEMORY", "x", 1), 0);
	cr_assert_eq(parse(NULL, NULL, &o), -EINVAL);
	cr_assert_eq(setenv("SHARDKEEP_MEMORY", "", 1), 0);
	cr_assert_eq(parse(NULL, NULL, &o), 0);
	options_free(&o);
}

/* Who says one word of retention has said all of it. */
Test(options, retention_is_said_whole)
{
	struct options o;

	cr_assert_eq(parse("--keep-every=3", NULL, &o), 0);
	cr_assert(o.retention.keep_every == 3 && !o.retention.keep_last);
	options_free(&o);
	cr_assert_eq(parse("--keep-every=3", "--keep-last=2", &o), 0);
	cr_assert(o.retention.keep_every == 3 && o.retention.keep_last == 2);
	options_free(&o);
}
