/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <string.h>

#include "metrics/address.h"
#include "metrics/sample.h"
#include "metrics/text.h"

static const struct metric one = { .name = "one", .help = "h" };
static const struct metric two = { .name = "two_total", .help = "i",
				   .counter = true };

static void check_text(struct sample *v, size_t n, const char *want)
{
	const struct samples s = { .v = v, .n = n };
	size_t bytes = 0;
	char *text = metrics_text(&s, &bytes);

	cr_assert(text);
	cr_assert_str_eq(text, want);
	cr_assert_eq(bytes, strlen(want));
	free(text);
}

Test(text, each_metric_is_described_once)
{
	struct sample v[] = {
		{ .metric = &one, .value = 1.5 },
		{ .metric = &two, .value = 9007199254740991.0, .job = "a",
		  .uid = (uid_t)-2 },
		{ .metric = &two, .value = 0, .job = "b", .key = "state",
		  .word = "sealed" },
		{ .metric = &two, .value = -1, .key = "k", .word = "w" },
	};

	check_text(v, 4,
		   "# HELP shardkeep_one h\n# TYPE shardkeep_one gauge\n"
		   "shardkeep_one 1.5\n"
		   "# HELP shardkeep_two_total i\n"
		   "# TYPE shardkeep_two_total counter\n"
		   "shardkeep_two_total{job=\"a\",uid=\"4294967294\"} "
		   "9007199254740991\n"
		   "shardkeep_two_total{job=\"b\",uid=\"0\",state=\"sealed\"} "
		   "0\n"
		   "shardkeep_two_total{k=\"w\"} -1\n");
	check_text(NULL, 0, "");
}

Test(text, values_of_labels_are_escaped)
{
	struct sample v[] = {
		{ .metric = &one, .job = "a\"b\\c\n1", .key = "k",
		  .word = "\"\n\\" },
	};

	check_text(v, 1,
		   "# HELP shardkeep_one h\n# TYPE shardkeep_one gauge\n"
		   "shardkeep_one{job=\"a\\\"b\\\\c\\n1\",uid=\"0\","
		   "k=\"\\\"\\n\\\\\"} 0\n");
}

Test(list, names_and_units_agree)
{
	for (size_t i = 0; i < n_metrics; i++) {
		const struct metric *m = &metrics[i];
		const char *name = m->name;

		cr_assert(name && m->help, "%zu", i);
		cr_assert_eq(!!strstr(name, "_total"), m->counter, "%s", name);
		cr_assert(m->unit != METRIC_SECONDS ||
			  strstr(name, "_seconds"), "%s", name);
		cr_assert(m->unit != METRIC_BYTES || strstr(name, "_bytes"),
			  "%s", name);
		cr_assert(!strpbrk(m->help, "\\\n"), "%s", name);
		cr_assert_lt(strlen(m->help), 128, "%s: STATS cuts it", name);
		cr_assert_lt(strlen(name), 56 - sizeof("shardkeep_"), "%s",
			     name);
		for (size_t k = 0; k < i; k++)
			cr_assert_str_neq(name, metrics[k].name);
	}
}

static int parse(const char *text, bool public_too)
{
	struct address at;
	struct sk_err err = { "" };
	int r = address_parse(text, public_too, &at, &err);

	cr_assert_eq(r < 0, err.text[0] != 0, "%s", text);
	return r;
}

Test(address, what_this_machine_alone_reaches)
{
	static const char *const ours[] = {
		"9477", "0", "127.0.0.1:9477", "localhost:1", "[::1]:65535",
		"127.255.0.9:1", "/run/x.sock",
	};
	static const char *const others[] = {
		"0.0.0.0:1", "[::]:1", "128.0.0.1:1", "[::ffff:127.0.0.1]:1",
	};
	static const char *const none[] = {
		"", ":", ":1", "a", "65536", "-1", "1 ", " 1", "1:2", "[::1]",
		"::1:9477x", "127.1:1", "host:1", "[]:1", "+1", "0x1",
	};

	for (size_t i = 0; i < SK_ARRAY_SIZE(ours); i++)
		cr_assert_eq(parse(ours[i], false), 0, "%s", ours[i]);
	for (size_t i = 0; i < SK_ARRAY_SIZE(others); i++) {
		cr_assert_eq(parse(others[i], false), -EPERM, "%s", others[i]);
		cr_assert_eq(parse(others[i], true), 0, "%s", others[i]);
	}
	for (size_t i = 0; i < SK_ARRAY_SIZE(none); i++)
		cr_assert_eq(parse(none[i], true), -EINVAL, "%s", none[i]);
}
