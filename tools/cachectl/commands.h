/* SPDX-License-Identifier: Apache-2.0 */
/* Commands and options of cachectl, as help and completion need them too. */
#ifndef SK_CACHECTL_COMMANDS_H
#define SK_CACHECTL_COMMANDS_H

#include "cachectl.h"

struct command {
	const char *name;
	const char *arguments;
	const char *summary;	/* one line */
	const char *help;	/* more, for `cachectl COMMAND --help` */
	const char *examples;	/* lines */
	const char *options;	/* letters of the options it takes */
	int min_args, max_args;
	int (*run)(struct context *ctx, int argc, char **argv);
	bool live;		/* it prints by itself, again and again */
	bool again;		/* what it asks goes together, and may be said
				 * twice: it is begun anew where the agent ends
				 * and another one is in its place */
};

extern const struct command commands[];
extern const size_t n_commands;

struct option_info {
	char letter;
	bool brief;		/* -LETTER is understood as well */
	const char *name;
	const char *argument;	/* NULL: none */
	const char *text;	/* lines */
};

extern const struct option_info option_infos[];
extern const size_t n_option_infos;

/** NULL: there is none of that name. */
const struct command *find_command(const char *name);
const struct option_info *find_option(int letter);
/** For every command, or one that @c takes. @c NULL: before a command. */
bool takes_option(const struct command *c, int letter);

/* ---- help.c ---- */

void print_help(void);
void print_command_help(const struct command *c);

/* ---- complete.c ---- */

/**
 * Prints what the last of @words may become, for the shells' completions: a
 * line each, with a tab and a description. ":files" alone asks for the shell's
 * own file names. @words are those after the program's name. Silent when there
 * is no agent. Returns the exit code.
 */
int complete(struct context *ctx, int n, char **words);

#endif
