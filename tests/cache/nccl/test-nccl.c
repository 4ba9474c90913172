/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The loader, on the simulated NCCL that $SHARDKEEP_LIBNCCL names: each test
 * is a process of its own.
 */
#include <criterion/criterion.h>
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "fault-os.h"
#include "sim/trainer-nccl.h"

struct line {
	const char *name;
	int since;
	bool required;
	size_t at;
};

enum { OPTIONAL, REQUIRED };

#define LINE(function, since, need, result, params)			\
	{ #function, since, need, offsetof(struct sk_nccl, function) },

static const struct line lines[] = { SK_NCCL_TABLE(LINE) };

static int open_nccl(const char *file, struct sk_nccl *ret, struct sk_err *err)
{
	return sk_nccl_open(sk_os_linux(), file, ret, err);
}

static void assert_refused(const char *file, const char *word)
{
	struct sk_nccl nccl;
	struct sk_err err = { "" };

	cr_assert_eq(open_nccl(file, &nccl, &err), -ENODEV);
	cr_assert(strstr(err.text, word), "\"%s\" lacks \"%s\"", err.text,
		  word);
}

Test(nccl, finds_all)
{
	struct trainer_nccl nccl;
	struct sk_err err = { "" };

	cr_assert_eq(trainer_nccl_open(&nccl, &err), 0, "%s", err.text);
	for (size_t i = 0; i < SK_ARRAY_SIZE(lines); i++)
		cr_assert_not_null(*(void **)((char *)&nccl.lib +
					      lines[i].at), "%s",
				   lines[i].name);
	cr_assert_eq(nccl.lib.version, SK_NCCL_VERSION(2, 28, 9));
	cr_assert_not_null(nccl.calls);
}

/* What is required is in every version that is used. */
Test(nccl, oldest_version_has_all)
{
	for (size_t i = 0; i < SK_ARRAY_SIZE(lines); i++)
		cr_assert_leq(lines[i].since, SK_NCCL_VERSION_LEAST, "%s",
			      lines[i].name);
}

Test(nccl, says_that_there_is_none)
{
	assert_refused("libnobody.so.7", "libnobody.so.7");
}

Test(nccl, says_that_it_is_none)
{
	assert_refused("libm.so.6", "ncclGetVersion");
}

Test(nccl, says_that_it_is_too_old)
{
	setenv("VNCCL_VERSION", "21703", 1);
	assert_refused(NULL, "21703");
	setenv("VNCCL_VERSION", "21800", 1);
	cr_assert_eq(open_nccl(NULL, &(struct sk_nccl){ 0 }, NULL), 0);
}

Test(nccl, names_what_is_missing)
{
	for (size_t i = 0; i < SK_ARRAY_SIZE(lines); i++) {
		struct sk_nccl nccl;
		struct sk_err err = { "" };
		struct sk_fault_os fault;
		int r;

		sk_fault_os_init(&fault, sk_os_linux());
		sk_fault_os_fail(&fault, SK_FAULT_DLSYM, i + 1, 1, ENOENT);
		r = sk_nccl_open(&fault.os, NULL, &nccl, &err);
		if (!lines[i].required) {
			cr_assert_eq(r, 0, "%s: %s", lines[i].name, err.text);
			cr_assert_null(*(void **)((char *)&nccl +
						  lines[i].at));
			continue;
		}
		cr_assert_eq(r, -ENODEV, "%s", lines[i].name);
		cr_assert(strstr(err.text, lines[i].name), "%s", err.text);
	}
}

/* One that the process has open under its name, wherever it lies. */
Test(nccl, takes_the_trainer_s_copy)
{
	const char *file = getenv("SHARDKEEP_LIBNCCL");
	void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
	struct sk_nccl nccl;

	cr_assert_not_null(library);
	unsetenv("SHARDKEEP_LIBNCCL");
	cr_assert_eq(open_nccl(NULL, &nccl, NULL), 0);
	cr_assert_eq((void *)nccl.ncclSend, dlsym(library, "ncclSend"));
}

Test(nccl, results_have_names)
{
	static const struct {
		sk_nccl_result result;
		int r;
		const char *word;
	} cases[] = {
		{ SK_NCCL_CUDA_ERROR, -EIO, "cuda error (1)" },
		{ SK_NCCL_INVALID_USAGE, -EINVAL, "invalid usage (5)" },
		{ SK_NCCL_INVALID_ARGUMENT, -EINVAL, "(4)" },
		{ SK_NCCL_REMOTE_ERROR, -ECONNRESET, "(6)" },
		{ SK_NCCL_IN_PROGRESS, -EINPROGRESS, "(7)" },
		{ 99, -EIO, "(99)" },
	};
	struct sk_nccl nccl;

	cr_assert_eq(open_nccl(NULL, &nccl, NULL), 0);
	for (size_t i = 0; i < SK_ARRAY_SIZE(cases); i++) {
		struct sk_err err = { "" };

		cr_assert_eq(sk_nccl_failed(&nccl, cases[i].result, NULL,
					    "ncclSend", &err), cases[i].r);
		cr_assert(strstr(err.text, cases[i].word) &&
			  strstr(err.text, "ncclSend"), "%s", err.text);
	}
}
