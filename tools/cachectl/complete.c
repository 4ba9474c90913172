/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a word may become. The shells' own completions are thin: they ask
 * `cachectl --complete WORD...`, so that they know what this program knows.
 */
#include <stdio.h>
#include <string.h>

#include "commands.h"
#include "lists.h"
#include "show.h"
#include "tensor/name.h"

#define TIMEOUT_MS 1000		/* somebody waits at the keyboard */
#define FILES ":files"

struct typed {
	const char *word;		/* the last one, as far as it goes */
	const struct command *command;	/* NULL: not typed yet */
	char *arguments[2];		/* of the command, before the word */
	int n_arguments;
	const struct option_info *wants;	/* its value is being typed */
};

static void offer(const struct typed *t, const char *value,
		  const char *description)
{
	if (strncmp(value, t->word, strlen(t->word)) == 0)
		printf("%s\t%.*s\n", value,
		       (int)strcspn(description, "\n"), description);
}

/* ---- what was typed ---- */

/* The option that takes its value from the next word, or NULL. */
static const struct option_info *waits_for_value(const char *word)
{
	for (size_t i = 0; i < n_option_infos; i++) {
		const struct option_info *o = &option_infos[i];

		if (!o->argument)
			continue;
		if (strncmp(word, "--", 2) == 0 ?
		    strcmp(word + 2, o->name) == 0 :
		    o->brief && word[1] == o->letter && !word[2])
			return o;
	}
	return NULL;
}

static void take_option(struct context *ctx, struct typed *t, char *word)
{
	t->wants = waits_for_value(word);
	if (strncmp(word, "--socket=", 9) == 0)
		ctx->socket = word + 9;
}

static void take_word(struct context *ctx, struct typed *t, char *word)
{
	if (t->wants) {
		if (t->wants->letter == 's')
			ctx->socket = word;
		t->wants = NULL;
	} else if (*word == '-') {
		take_option(ctx, t, word);
	} else if (!t->command) {
		t->command = find_command(word);
	} else {
		if (t->n_arguments < (int)SK_ARRAY_SIZE(t->arguments))
			t->arguments[t->n_arguments] = word;
		t->n_arguments++;
	}
}

/* ---- what it may become ---- */

static void offer_options(const struct typed *t)
{
	char name[32];

	for (size_t i = 0; i < n_option_infos; i++) {
		if (!takes_option(t->command, option_infos[i].letter))
			continue;
		(void)snprintf(name, sizeof(name), "--%s",
			       option_infos[i].name);
		offer(t, name, option_infos[i].text);
	}
}

static void offer_commands(const struct typed *t)
{
	for (size_t i = 0; i < n_commands; i++)
		offer(t, commands[i].name, commands[i].summary);
}

/* Would the command take it, or refuse it right away? */
static bool fits(const struct typed *t, const struct sk_wire_snapshot *s)
{
	if (strcmp(t->command->name, "unpin") == 0)
		return s->flags & SK_SNAP_PINNED;
	if (strcmp(t->command->name, "flush") == 0)
		return !(s->flags & SK_SNAP_DURABLE);
	return true;
}

/* The same step was taken by another run that is listed before @s. */
static bool older_run(const struct listed *all,
		      const struct sk_wire_snapshot *s)
{
	struct listed_walk walk = listed_find(all, &s->id);
	const struct sk_wire_snapshot *other;

	while ((other = listed_next(&walk)))
		if (other < s)
			return true;
	return false;
}

static void offer_snapshots(struct context *ctx, const struct typed *t)
{
	_cleanup_free_ struct sk_wire_snapshot *all = NULL;
	struct sk_wire_id any = { .step = -1, .rank = -1 };
	char name[SK_JOB_MAX + 64], words[160];
	struct listed listed = { 0 };
	size_t n = 0;

	if (ask_snapshots(ctx, &any, &all, &n) < 0 ||
	    listed_note(&listed, all, sizeof(*all), n) < 0)
		return;
	for (size_t i = 0; i < n; i++) {
		const struct sk_wire_id *id = &all[i].id;

		if (!fits(t, &all[i]))
			continue;
		if (!i || strcmp(id->job, all[i - 1].id.job) != 0)
			offer(t, id->job, "the newest snapshot");
		if (strchr(t->word, '@') || older_run(&listed, &all[i]))
			(void)snprintf(name, sizeof(name), "%s@%llu/%lld",
				       id->job, (unsigned long long)id->run,
				       (long long)id->step);
		else
			(void)snprintf(name, sizeof(name), "%s/%lld",
				       id->job, (long long)id->step);
		offer(t, name, snapshot_words(&all[i], words, sizeof(words)));
	}
	listed_free(&listed);
}

static void offer_names(const struct typed *t, const struct rows *rows)
{
	char shape[160];

	/* What nobody can type is nothing to complete. */
	for (size_t i = 0; i < rows->n; i++) {
		const struct sk_spec *spec = &rows->rows[i].item->spec;

		if (!sk_name_check_said(spec->name, "tensor", NULL))
			offer(t, spec->name,
			      format_shape(spec, shape, sizeof(shape)));
	}
}

static void offer_tensors(struct context *ctx, const struct typed *t)
{
	struct sk_wire_snapshot s;
	struct images im = { 0 };
	struct rows rows = { 0 };

	if (ask_snapshot(ctx, t->arguments[0], &s) >= 0 &&
	    images_list(ctx, &s.id, &im) >= 0 &&
	    rows_collect(ctx, &im, &rows) >= 0)
		offer_names(t, &rows);
	rows_free(&rows);
	images_free(&im);
}

static void offer_argument(struct context *ctx, const struct typed *t)
{
	const char *name = t->command->name;

	if (t->n_arguments >= t->command->max_args)
		return;
	if (t->n_arguments == 0 || strcmp(name, "verify") == 0)
		offer_snapshots(ctx, t);
	else if (strcmp(name, "show") == 0)
		offer_tensors(ctx, t);
	else
		puts(FILES);
}

int complete(struct context *ctx, int n, char **words)
{
	struct typed t = { .word = n ? words[n - 1] : "" };

	ctx->timeout_ms = TIMEOUT_MS;
	for (int i = 0; i + 1 < n; i++)
		take_word(ctx, &t, words[i]);
	if (t.wants && t.wants->letter == 's')
		puts(FILES);
	else if (t.wants)
		;	/* a text or a size of one's own */
	else if (*t.word == '-')
		offer_options(&t);
	else if (!t.command)
		offer_commands(&t);
	else
		offer_argument(ctx, &t);
	if (ctx->conn.sock >= 0)
		sk_conn_close(&ctx->conn);
	return EXIT_FINE;
}
