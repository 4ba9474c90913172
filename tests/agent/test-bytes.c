/* SPDX-License-Identifier: Apache-2.0 */
/* What does not fit a message: it is there whole and cannot change, or it is
 * not there. */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fault-os.h"
#include "memory/bytes.h"
#include "support/files.h"

static const char text[] = "what there is, and nothing else";

static void is_whole(int fd)
{
	char back[sizeof(text) + 1];

	cr_assert_eq(pread(fd, back, sizeof(back), 0), sizeof(text));
	cr_assert_eq(memcmp(back, text, sizeof(text)), 0);
	cr_assert_neq(pwrite(fd, "x", 1, 0), 1);
	cr_assert_neq(ftruncate(fd, 1), 0);
	cr_assert(fcntl(fd, F_GET_SEALS) & F_SEAL_SHRINK);
}

static ssize_t write_little(const struct sk_os *os, int fd, const void *data,
			    size_t n)
{
	(void)os;
	return write(fd, data, n < 7 ? n : 7);
}

Test(bytes, are_whole_where_little_is_written_at_once)
{
	struct sk_os os = *sk_os_linux();
	struct sk_err err = { "" };
	int fd;

	os.write = write_little;
	fd = bytes_fd(&os, "test", text, sizeof(text), &err);
	cr_assert_geq(fd, 0, "%s", err.text);
	is_whole(fd);
	close(fd);
}

Test(bytes, are_whole_or_not_there)
{
	struct sk_fault_os fault;
	int fds = count_fds();

	for (unsigned n = 1; ; n++) {
		struct sk_err err = { "" };
		int fd;

		sk_fault_os_init(&fault, sk_os_linux());
		sk_fault_os_fail(&fault, SK_FAULT_ANY, n, 1, ENOSPC);
		fd = bytes_fd(&fault.os, "test", text, sizeof(text), &err);
		if (fd >= 0)
			is_whole(fd);
		else
			cr_assert(err.text[0], "call %u", n);
		if (!sk_fault_os_hits(&fault)) {
			cr_assert_geq(fd, 0);
			close(fd);
			break;
		}
		cr_assert(fd == -ENOSPC, "call %u: %d", n, fd);
		cr_assert_eq(count_fds(), fds, "call %u", n);
	}
	cr_assert_eq(count_fds(), fds);
}
