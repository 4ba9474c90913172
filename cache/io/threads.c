/* SPDX-License-Identifier: Apache-2.0 */
/* Io by a pool whose threads pread and pwrite, where io_uring is not to be
 * had. */
#include "io/backend.h"

#include <assert.h>
#include <pthread.h>

/* More only wait for the same device. */
#define THREADS_MAX 32u

struct threads {
	struct sk_io_engine engine;	/* first: cast back */
	const struct sk_os *os;
	struct sk_pool *pool;
	pthread_mutex_t lock;		/* over all below */
	pthread_cond_t done;
	struct sk_io_request *finished;	/* in no set order */
};

static struct threads *of(struct sk_io_engine *engine)
{
	return (struct threads *)engine;
}

static struct sk_io_request *request_of(struct sk_task *task)
{
	return (struct sk_io_request *)(void *)((char *)task -
			offsetof(struct sk_io_request, task));
}

static void perform(struct sk_task *task, size_t unit)
{
	struct sk_io_request *request = request_of(task);

	(void)unit;
	request->result = sk_io_perform(of(request->engine)->os, request);
}

static void hand_back(struct sk_task *task)
{
	struct sk_io_request *request = request_of(task);
	struct threads *t = of(request->engine);

	pthread_mutex_lock(&t->lock);
	request->next = t->finished;
	t->finished = request;
	pthread_cond_signal(&t->done);
	pthread_mutex_unlock(&t->lock);
}

static void threads_submit(struct sk_io_engine *engine,
			   struct sk_io_request *request)
{
	request->engine = engine;
	request->task = (struct sk_task){ .units = 1, .run = perform,
					  .done = hand_back };
	sk_pool_submit(of(engine)->pool, &request->task);
}

static int threads_wait(struct sk_io_engine *engine,
			struct sk_io_request **ret_request)
{
	struct threads *t = of(engine);

	pthread_mutex_lock(&t->lock);
	while (!t->finished)
		pthread_cond_wait(&t->done, &t->lock);
	*ret_request = t->finished;
	t->finished = t->finished->next;
	pthread_mutex_unlock(&t->lock);
	return 0;
}

static void threads_free(struct sk_io_engine *engine)
{
	struct threads *t = of(engine);

	sk_pool_free(t->pool);
	assert(!t->finished);
	pthread_cond_destroy(&t->done);
	pthread_mutex_destroy(&t->lock);
	free(t);
}

static const char *threads_describe(const struct sk_io_engine *engine)
{
	(void)engine;
	return "threads";
}

static const struct sk_io_engine_ops threads_ops = {
	.free = threads_free,
	.submit = threads_submit,
	.wait = threads_wait,
	.describe = threads_describe,
};

/* Fewer threads than asked for are only slower. */
static int start(struct threads *t, unsigned count, struct sk_err *err)
{
	int r;

	do {
		r = sk_pool_new(count, -1, "sk-io", &t->pool, err);
		count /= 2;
	} while (r == -EAGAIN && count);
	return r;
}

int sk_io_threads_new(const struct sk_os *os, unsigned depth,
		      struct sk_io_engine **ret_engine, struct sk_err *err)
{
	struct threads *t = calloc(1, sizeof(*t));
	int r;

	if (!t)
		return sk_err_errno(err, -ENOMEM, "cannot make I/O threads");
	t->engine.ops = &threads_ops;
	t->os = os;
	/* Default attributes: these two cannot fail on Linux. */
	pthread_mutex_init(&t->lock, NULL);
	pthread_cond_init(&t->done, NULL);
	r = start(t, depth < THREADS_MAX ? depth : THREADS_MAX, err);
	if (r < 0) {
		threads_free(&t->engine);
		return sk_err_prefix(err, r, "cannot start I/O threads");
	}
	*ret_engine = &t->engine;
	return 0;
}
