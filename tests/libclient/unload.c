/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A plugin of a trainer brings the library along and goes again, while a
 * thread that called it lives on and ends later: what the library has left
 * with that thread is given back all the same. Argument: libshardkeep.so.
 */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "shardkeep.h"

#define LIVES 3

#define CHECK(x) do {							\
	if (!(x)) {							\
		fprintf(stderr, "line %d: %s\n", __LINE__, #x);		\
		exit(1);						\
	}								\
} while (0)

struct plugin {
	void *handle;		/* of dlopen() */
	pthread_barrier_t meet;
};

typedef int (*open_fn)(const struct sk_options *opts, struct sk **ret_sk);
typedef const char *(*error_fn)(void);

static void *fail_and_stay(void *arg)
{
	const struct sk_options none = { .socket = "/nowhere/agent.sock" };
	struct plugin *p = arg;
	open_fn open = (open_fn)dlsym(p->handle, "sk_open");
	error_fn error = (error_fn)dlsym(p->handle, "sk_error");
	struct sk *sk = NULL;

	CHECK(open && error);
	CHECK(open(&none, &sk) == -ENOENT);
	CHECK(*error());
	(void)pthread_barrier_wait(&p->meet);	/* it may be unloaded */
	(void)pthread_barrier_wait(&p->meet);	/* it is */
	return NULL;
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	for (int life = 0; life < LIVES; life++) {
		struct plugin p = { .handle = dlopen(argv[1], RTLD_NOW) };
		pthread_t thread;

		CHECK(p.handle);
		CHECK(!pthread_barrier_init(&p.meet, NULL, 2));
		CHECK(!pthread_create(&thread, NULL, fail_and_stay, &p));
		(void)pthread_barrier_wait(&p.meet);
		CHECK(!dlclose(p.handle));
		(void)pthread_barrier_wait(&p.meet);
		CHECK(!pthread_join(thread, NULL));
		(void)pthread_barrier_destroy(&p.meet);
	}
	return 0;
}
