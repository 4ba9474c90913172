/* SPDX-License-Identifier: Apache-2.0 */
#include "nccl/conf.h"

#include <errno.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/text.h"
#include "base/util.h"

#define OF_ALL "/etc/nccl.conf"
/* They have some lines; what is behind that is not looked at. */
#define ROOM ((size_t)64 << 10)
/* Of a user's entry in passwd. */
#define ROOM_USER 4096

/* The home that passwd has, which $HOME need not be. */
static void of_user(char *ret, size_t room)
{
	const char *said = getenv("NCCL_CONF_FILE");
	struct passwd user, *found = NULL;
	char text[ROOM_USER];

	ret[0] = '\0';
	if (said && *said)
		(void)snprintf(ret, room, "%s", said);
	else if (!getpwuid_r(getuid(), &user, text, sizeof(text), &found) &&
		 found)
		(void)snprintf(ret, room, "%s/.nccl.conf", user.pw_dir);
}

/* The value of the first line "variable=value", to the letter: the first word
 * stands there. Ends it; NULL: there is none. */
static const char *find_line(char *text, const char *variable)
{
	size_t n = strlen(variable);

	for (char *line = text, *next; line; line = next) {
		next = strchr(line, '\n');
		if (next)
			*next++ = '\0';
		if (!strncmp(line, variable, n) && line[n] == '=')
			return line + n + 1;
	}
	return NULL;
}

/* What the file says of it, in @text; NULL: nothing. */
static const char *read_file(const struct sk_os *os, const char *file,
			     const char *variable, char *text)
{
	int r = *file ? sk_text_read(os, file, text, ROOM) : -ENOENT;

	return r >= 0 || r == -EFBIG ? find_line(text, variable) : NULL;
}

/* As strtoll() has it: a number may have more behind it. */
static bool is_number(const char *said, int64_t *ret)
{
	if (!said || !*said)
		return false;
	errno = 0;
	*ret = strtoll(said, NULL, 0);
	return !errno;
}

bool sk_nccl_conf(const struct sk_os *os, const char *variable,
		  struct sk_nccl_said *ret)
{
	_cleanup_free_ char *text = malloc(ROOM);
	const char *first = getenv(variable), *said = NULL;
	char files[2][sizeof(ret->file)] = { "", OF_ALL };
	int at;

	of_user(files[0], sizeof(files[0]));
	for (at = 0; text && at < 2; at++) {
		said = read_file(os, files[at], variable, text);
		if (said)
			break;
	}
	/* Of the environment, which may have it from the file by now. */
	if (first && said && strcmp(first, said))
		said = NULL;
	ret->file[0] = '\0';
	if (said)
		memcpy(ret->file, files[at], sizeof(ret->file));
	return is_number(first ? first : said, &ret->value);
}
