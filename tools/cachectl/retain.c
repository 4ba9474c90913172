/* SPDX-License-Identifier: Apache-2.0 */
/* cachectl retain: what is to stay of a job on disk. */
#include "cachectl.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/size.h"

int ask_retention(struct context *ctx, const char *job,
		  struct sk_wire_retain *ret)
{
	struct sk_msg msg = { .type = SK_MSG_RETAIN };
	int r;

	msg.body.retain.id.step = -1;
	msg.body.retain.id.rank = -1;
	(void)snprintf(msg.body.retain.id.job, sizeof(msg.body.retain.id.job),
		       "%s", job);
	r = ask(ctx, &msg);
	if (r >= 0)
		*ret = msg.body.retain;
	return r;
}

__attribute__((format(printf, 3, 4)))
static void add(char *buf, size_t size, const char *fmt, ...)
{
	size_t at = strlen(buf);
	va_list ap;

	if (at)
		at += (size_t)snprintf(buf + at, size - at, ", ");
	if (at >= size)
		return;
	va_start(ap, fmt);
	(void)vsnprintf(buf + at, size - at, fmt, ap);
	va_end(ap);
}

char *retention_words(const struct sk_wire_retention *keep, char *buf,
		      size_t size)
{
	char text[SK_SIZE_TEXT], age[32];

	*buf = 0;
	if (keep->keep_last)
		add(buf, size, "the newest %" PRIu32, keep->keep_last);
	if (keep->keep_every && keep->keep_last)
		add(buf, size, "every multiple of %" PRIu32, keep->keep_every);
	if (keep->keep_age_s)
		add(buf, size, "none older than the newest by %s",
		    format_age((int64_t)keep->keep_age_s, age, sizeof(age)));
	(void)sk_size_format(keep->keep_bytes, text, sizeof(text));
	if (keep->keep_bytes)
		add(buf, size, "at most %s", text);
	if (!*buf)
		add(buf, size, "everything");
	return buf;
}

const char *retention_from(uint32_t from)
{
	static const char *const names[] = { "nobody", "default", "agent",
					     "job", "operator" };

	return from < SK_ARRAY_SIZE(names) ? names[from] : "?";
}

static void report(struct context *ctx, const struct sk_wire_retain *is)
{
	const struct sk_wire_retention *keep = &is->retention;
	char words[160];

	report_text(ctx->report, "job", NULL, "%s", is->id.job);
	report_text(ctx->report, "said_by", NULL, "%s",
		    retention_from(is->from));
	report_number(ctx->report, "keep_last", NULL, CELL_INT,
		      keep->keep_last);
	report_number(ctx->report, "keep_every", NULL, CELL_INT,
		      keep->keep_every);
	report_number(ctx->report, "keep_age_s", NULL, CELL_INT,
		      (int64_t)keep->keep_age_s);
	report_number(ctx->report, "keep_bytes", NULL, CELL_INT,
		      (int64_t)keep->keep_bytes);
	report_draw(ctx->report, "%s keeps %s (%s)\n", is->id.job,
		    retention_words(keep, words, sizeof(words)),
		    retention_from(is->from));
}

int command_retain(struct context *ctx, int argc, char **argv)
{
	_cleanup_free_ struct sk_wire_snapshot *all = NULL;
	struct sk_msg msg = { .type = SK_MSG_RETAIN };
	struct sk_wire_retain *said = &msg.body.retain;
	size_t n = 0;
	int r;

	(void)argc;
	if (ctx->keeps && ctx->keep_default) {
		ctx->misused = true;
		return sk_err_set(&ctx->err, -EINVAL, "either --default, or "
				  "what is to stay");
	}
	r = ask_parse_snapshot(ctx, argv[0], &said->id);
	if (r >= 0 && (said->id.run || said->id.step >= 0 ||
		       ask_is_latest(argv[0]))) {
		ctx->misused = true;
		r = sk_err_set(&ctx->err, -EINVAL, "what is to stay is said of "
			       "a job, not of a snapshot; \"cachectl pin\" keeps "
			       "one");
	}
	/* The agent need not have met it since it was started. */
	if (r >= 0)
		r = ask_newest(ctx, &said->id, &all, &n);
	if (r < 0)
		return r;
	said->retention = ctx->keep;
	said->flags = ctx->keeps ? SK_RETAIN_SET :
		      ctx->keep_default ? SK_RETAIN_DEFAULT : 0;
	r = ask(ctx, &msg);
	if (r >= 0)
		report(ctx, said);
	return r;
}
