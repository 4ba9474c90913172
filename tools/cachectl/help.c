/* SPDX-License-Identifier: Apache-2.0 */
#include "commands.h"

#include <stdio.h>
#include <string.h>

#include "report-private.h"

/* Prints each line of @text after @first, or as much room. */
static void print_lines(const char *first, int width, const char *text)
{
	for (int n; *text; text += n + (text[n] == '\n'), first = "") {
		n = (int)strcspn(text, "\n");
		printf("%-*s%.*s\n", width, first, n, text);
	}
}

/* A paragraph. */
static void print_filled(const char *text)
{
	size_t n, next;

	for (; *text; text += next) {
		n = text_line(text, 80, &next);
		printf("%.*s\n", (int)n, text);
	}
	puts("");
}

static void print_option(const struct option_info *o)
{
	char brief[8] = "   ", head[40];

	if (o->brief)
		(void)snprintf(brief, sizeof(brief), "-%c,", o->letter);
	(void)snprintf(head, sizeof(head), "  %s --%s%s%s", brief, o->name,
		       o->argument ? " " : "",
		       o->argument ? o->argument : "");
	print_lines(head, 26, o->text);
}

static void print_exit_codes(void)
{
	puts("exit codes: 0 fine, 1 refused or failed, 2 usage, 3 no agent,\n"
	     "4 not found, 5 something is damaged (verify, export, retain), 6\n"
	     "the agent ended and something was lost with it, 7 something is\n"
	     "not as it should be (status, doctor), 8 something does not work\n"
	     "(doctor)");
}

void print_help(void)
{
	puts("usage: cachectl [--socket PATH] [--json] COMMAND [ARGUMENT...]\n"
	     "\n"
	     "Looks into and steers Shardkeep's agent on this node.\n");
	for (size_t i = 0; i < n_commands; i++)
		printf("  %-8s %-18s %s\n", commands[i].name,
		       commands[i].arguments, commands[i].summary);
	puts("\nA SNAPSHOT is JOB (its newest), JOB/STEP, or JOB@RUN/STEP.\n");
	for (size_t i = 0; i < n_option_infos; i++)
		if (takes_option(NULL, option_infos[i].letter))
			print_option(&option_infos[i]);
	puts("");
	print_exit_codes();
}

void print_command_help(const struct command *c)
{
	printf("usage: cachectl %s%s%s%s\n\n", c->name,
	       *c->options ? " [OPTION...]" : "", *c->arguments ? " " : "",
	       c->arguments);
	print_filled(c->help);
	if (strstr(c->arguments, "SNAPSHOT"))
		puts("A SNAPSHOT is JOB (its newest), JOB/STEP, or "
		     "JOB@RUN/STEP.\n");
	for (size_t i = 0; i < n_option_infos; i++)
		if (takes_option(c, option_infos[i].letter) &&
		    option_infos[i].letter != 'V')
			print_option(&option_infos[i]);
	puts("\nfor example:");
	print_lines("", 2, c->examples);
	puts("");
	print_exit_codes();
}
