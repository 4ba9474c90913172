/* SPDX-License-Identifier: Apache-2.0 */
/* Who is let in at the door of a meeting, and what waiting there takes. */
#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <errno.h>
#include <netinet/in.h>
#include <sys/resource.h>

#include "base/util.h"
#include "comm/links.h"
#include "comm/seek.h"

static const struct sk_hello like = { .magic = SK_HELLO_MAGIC,
				      .kind = SK_HELLO_JOIN };

static int knock(const struct sk_door *door, int32_t rank)
{
	const struct sk_os *os = sk_os_linux();
	struct sk_spot at = { .family = AF_INET, .port = door->port,
			      .ip = { 127, 0, 0, 1 } };
	struct sk_hello hello = like;
	int fd;

	hello.rank = rank;
	cr_assert_eq(sk_seek_connect(os, &at, sk_until_ms(os, 30000), &fd), 0);
	cr_assert_eq(sk_link_send(os, fd, &hello, sizeof(hello),
				  sk_until_ms(os, 30000)), 0);
	return fd;
}

/* It had no answer in time, and comes again. */
Test(door, who_has_left_before_he_was_heard_has_not_come)
{
	const struct sk_os *os = sk_os_linux();
	struct sk_err err = { "" };
	struct sk_hello hello;
	struct sk_door door;
	int fd, own, at;

	cr_assert_eq(sk_door_open(os, 0, &door, &err), 0, "%s", err.text);
	cr_assert_eq(os->close(os, knock(&door, 1)), 0);
	own = knock(&door, 2);
	cr_assert_eq(sk_door_next(&door, &like, NULL, 0,
				  sk_until_ms(os, 30000), &hello, &fd, &at),
		     0);
	cr_assert_eq(hello.rank, 2);
	(void)os->close(os, fd);
	(void)os->close(os, own);
	sk_door_close(&door);
}

/* Of a world as large as the limit of open files, most have not come yet. */
Test(door, who_has_not_come_takes_no_descriptor)
{
	const struct rlimit few = { 40, 40 };
	const struct sk_os *os = sk_os_linux();
	struct sk_err err = { "" };
	struct sk_hello hello;
	struct sk_door door;
	int watch[100], fd, at;

	for (int i = 0; i < 100; i++)
		watch[i] = -1;
	cr_assert_eq(sk_door_open(os, 0, &door, &err), 0, "%s", err.text);
	cr_assert_eq(setrlimit(RLIMIT_NOFILE, &few), 0);
	watch[70] = knock(&door, 1);
	cr_assert_eq(sk_door_next(&door, &like, watch, 100,
				  sk_until_ms(os, 30000), &hello, &fd, &at),
		     0);
	cr_assert_eq(sk_door_next(&door, &like, watch, 100,
				  os->now_ns(os), &hello, &fd, &at),
		     -ETIMEDOUT);
	/* And the others are seen as who they are. */
	(void)os->close(os, fd);
	cr_assert_eq(sk_door_next(&door, &like, watch, 100,
				  sk_until_ms(os, 30000), &hello, &fd, &at),
		     1);
	cr_assert_eq(at, 70);
	sk_door_close(&door);
}
