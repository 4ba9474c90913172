/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <errno.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/pages.h"
#include "base/util.h"
#include "fault-os.h"

#define BYTES ((size_t)3 * SK_PAGE)

static bool is_mapped(void *pages)
{
	unsigned char seen[BYTES / SK_PAGE];

	return !mincore(pages, BYTES, seen);
}

Test(pages, are_of_this_process_alone)
{
	const struct sk_os *os = sk_os_linux();
	char *pages = sk_pages_new(os, BYTES);
	int status;
	pid_t pid;

	cr_assert_not_null(pages);
	cr_assert_eq((uintptr_t)pages % SK_PAGE, 0);
	for (size_t i = 0; i < BYTES; i++)
		cr_assert_eq(pages[i], 0);
	pages[0] = 1;
	pid = fork();
	if (!pid)
		_exit(is_mapped(pages));
	cr_assert_eq(waitpid(pid, &status, 0), pid);
	cr_assert_eq(status, 0);
	cr_assert(is_mapped(pages));
	cr_assert_null(sk_pages_free(os, pages, BYTES));
	cr_assert_null(sk_pages_free(os, NULL, BYTES));
}

/* A system that cannot keep them from children gives none, and loses none. */
Test(pages, or_there_are_none)
{
	static const enum sk_fault_op ops[] = { SK_FAULT_MMAP,
						SK_FAULT_MADVISE };
	struct sk_fault_os fault;

	for (size_t i = 0; i < SK_ARRAY_SIZE(ops); i++) {
		sk_fault_os_init(&fault, sk_os_linux());
		sk_fault_os_fail(&fault, ops[i], 1, 1, ENOMEM);
		cr_assert_null(sk_pages_new(&fault.os, BYTES));
		cr_assert_eq(sk_fault_os_hits(&fault), 1);
		cr_assert_eq(sk_fault_os_calls(&fault, SK_FAULT_MUNMAP), i);
	}
}
