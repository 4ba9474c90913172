/* SPDX-License-Identifier: Apache-2.0 */
#include "base/process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "base/util.h"

#define FIELDS_BEFORE 19	/* starttime's, from the state on */

static uint32_t space_of(const struct sk_os *os)
{
	struct stat st;

	if (os->fstatat(os, AT_FDCWD, "/proc/self/ns/pid", 0, &st) < 0)
		return 0;
	return (uint32_t)st.st_ino;
}

/* The field with so many before it, from the state on; 0: not to be had. A name
 * may hold whatever a line may. */
static uint64_t field_of(const struct sk_os *os, pid_t pid, int before)
{
	char path[48], text[1024], *at;

	(void)snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	if (sk_text_read(os, path, text, sizeof(text)) < 0)
		return 0;
	at = strrchr(text, ')');
	for (int i = 0; at && i <= before; i++)
		at = strchr(at + 1, ' ');
	return at ? strtoull(at + 1, NULL, 10) : 0;
}

static uint64_t born_at(const struct sk_os *os, pid_t pid)
{
	return field_of(os, pid, FIELDS_BEFORE);
}

pid_t sk_process_parent(const struct sk_os *os, pid_t pid)
{
	return pid > 0 ? (pid_t)field_of(os, pid, 1) : 0;
}

void sk_process_of(const struct sk_os *os, pid_t pid,
		   struct sk_process *ret)
{
	struct sk_process p = { .pid = (int32_t)pid };

	*ret = (struct sk_process){ 0 };
	if (pid <= 0)
		return;
	p.space = space_of(os);
	p.born = p.space ? born_at(os, pid) : 0;
	if (p.born)
		*ret = p;
}

bool sk_process_gone(const struct sk_os *os, const struct sk_process *p)
{
	struct pollfd ends = { .events = POLLIN };
	uint64_t born;
	bool gone;

	if (!p->born || p->pid <= 0 || p->space != space_of(os))
		return false;
	ends.fd = os->pidfd_open(os, p->pid);
	if (ends.fd < 0)
		return ends.fd == -ESRCH;
	/* Nobody waits for a child that has ended: it is there, and ended. */
	gone = os->poll(os, &ends, 1, 0) > 0;
	born = gone ? 0 : born_at(os, p->pid);
	(void)os->close(os, ends.fd);
	return gone || (born && born != p->born);
}
