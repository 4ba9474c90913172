/* SPDX-License-Identifier: Apache-2.0 */
#include "nccl/nccl.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>

#include "base/util.h"

#define PLAIN_NAME "libnccl.so.2"

/* One line of the table. */
struct function {
	const char *name;
	int since;
	bool required;
	size_t at;		/* in struct sk_nccl */
};

enum { OPTIONAL, REQUIRED };

#define LINE(function, since, need, result, params)			\
	{ #function, since, need, offsetof(struct sk_nccl, function) },

static const struct function table[] = { SK_NCCL_TABLE(LINE) };

static int find_all(const struct sk_os *os, void *library, const char *file,
		    struct sk_nccl *nccl, struct sk_err *err)
{
	for (size_t i = 0; i < SK_ARRAY_SIZE(table); i++) {
		const struct function *f = &table[i];
		void *found = NULL;

		if (os->dlsym(os, library, f->name, &found) < 0)
			found = NULL;
		if (!found && f->required)
			return sk_err_set(err, -ENODEV, "\"%s\" has no %s, "
					  "which NCCL has since %d.%d", file,
					  f->name, f->since / 10000,
					  f->since / 100 % 100);
		*(void **)((char *)nccl + f->at) = found;
	}
	return 0;
}

static int check_version(struct sk_nccl *nccl, const char *file,
			 struct sk_err *err)
{
	if (nccl->ncclGetVersion(&nccl->version) != SK_NCCL_SUCCESS)
		return sk_err_set(err, -ENODEV, "\"%s\" does not say which "
				  "version of NCCL it is", file);
	if (nccl->version >= SK_NCCL_VERSION_LEAST)
		return 0;
	return sk_err_set(err, -ENODEV, "\"%s\" is NCCL of version code %d, "
			  "and 2.18 is the oldest that is used; update it",
			  file, nccl->version);
}

/* Whoever names a file means that one; else there is to be one of them in
 * this process. */
static int open_library(const struct sk_os *os, const char **file,
			void **ret_library)
{
	const char *said = *file ? *file : getenv("SHARDKEEP_LIBNCCL");

	*file = said && *said ? said : PLAIN_NAME;
	if (!(said && *said) &&
	    os->dlopen(os, PLAIN_NAME, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD,
		       ret_library) >= 0)
		return 0;
	return os->dlopen(os, *file, RTLD_NOW | RTLD_LOCAL, ret_library);
}

int sk_nccl_open(const struct sk_os *os, const char *file,
		 struct sk_nccl *ret_nccl, struct sk_err *err)
{
	struct sk_nccl nccl = { 0 };
	void *library;
	int r = open_library(os, &file, &library);

	if (r < 0) {
		const char *why = dlerror();

		return sk_err_set(err, -ENODEV, "no NCCL: %.200s",
				  why ? why : file);
	}
	r = find_all(os, library, file, &nccl, err);
	if (r >= 0)
		r = check_version(&nccl, file, err);
	if (r >= 0)
		*ret_nccl = nccl;
	return r;
}
