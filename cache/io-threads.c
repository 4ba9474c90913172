/* SPDX-License-Identifier: Apache-2.0 */
/* Io by threads that pread and pwrite, where io_uring is not to be had. */
#include "io-backend.h"

#include <pthread.h>
#include <signal.h>

/* More only wait for the same device. */
#define THREADS_MAX 32u

struct list {
	struct sk_io_request *head, **tail;
};

struct threads {
	struct sk_io_engine engine;	/* first: cast back */
	const struct sk_os *os;
	pthread_mutex_t lock;		/* over all below */
	pthread_cond_t work, done;
	struct list queue, finished;
	bool stop;
	unsigned count;
	pthread_t thread[];
};

static struct threads *of(struct sk_io_engine *engine)
{
	return (struct threads *)engine;
}

static void push(struct list *list, struct sk_io_request *request)
{
	request->next = NULL;
	*list->tail = request;
	list->tail = &request->next;
}

static struct sk_io_request *pop(struct list *list)
{
	struct sk_io_request *request = list->head;

	list->head = request->next;
	if (!list->head)
		list->tail = &list->head;
	return request;
}

static void *worker(void *arg)
{
	struct threads *t = arg;
	struct sk_io_request *request;

	pthread_mutex_lock(&t->lock);
	for (;;) {
		while (!t->queue.head && !t->stop)
			pthread_cond_wait(&t->work, &t->lock);
		if (!t->queue.head)
			break;
		request = pop(&t->queue);
		pthread_mutex_unlock(&t->lock);
		request->result = sk_io_perform(t->os, request);
		pthread_mutex_lock(&t->lock);
		push(&t->finished, request);
		pthread_cond_signal(&t->done);
	}
	pthread_mutex_unlock(&t->lock);
	return NULL;
}

static void threads_submit(struct sk_io_engine *engine,
			   struct sk_io_request *request)
{
	struct threads *t = of(engine);

	pthread_mutex_lock(&t->lock);
	push(&t->queue, request);
	pthread_cond_signal(&t->work);
	pthread_mutex_unlock(&t->lock);
}

static int threads_wait(struct sk_io_engine *engine,
			struct sk_io_request **ret_request)
{
	struct threads *t = of(engine);

	pthread_mutex_lock(&t->lock);
	while (!t->finished.head)
		pthread_cond_wait(&t->done, &t->lock);
	*ret_request = pop(&t->finished);
	pthread_mutex_unlock(&t->lock);
	return 0;
}

static void threads_free(struct sk_io_engine *engine)
{
	struct threads *t = of(engine);

	pthread_mutex_lock(&t->lock);
	t->stop = true;
	pthread_cond_broadcast(&t->work);
	pthread_mutex_unlock(&t->lock);
	for (unsigned i = 0; i < t->count; i++)
		pthread_join(t->thread[i], NULL);
	pthread_cond_destroy(&t->done);
	pthread_cond_destroy(&t->work);
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

/* Signals are the program's business, not these threads'. Fewer threads than
 * asked for are only slower. */
static int start(struct threads *t, unsigned count)
{
	sigset_t all, before;
	int r = 0;

	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, &before);
	while (t->count < count && r == 0) {
		r = pthread_create(&t->thread[t->count], NULL, worker, t);
		t->count += r == 0;
	}
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return t->count ? 0 : -r;
}

int sk_io_threads_new(const struct sk_os *os, unsigned depth,
		      struct sk_io_engine **ret_engine, struct sk_err *err)
{
	struct threads *t;
	int r;

	depth = depth < THREADS_MAX ? depth : THREADS_MAX;
	t = calloc(1, sizeof(*t) + depth * sizeof(t->thread[0]));
	if (!t)
		return sk_err_errno(err, -ENOMEM, "cannot make I/O threads");
	t->engine.ops = &threads_ops;
	t->os = os;
	t->queue.tail = &t->queue.head;
	t->finished.tail = &t->finished.head;
	/* Default attributes: these three cannot fail on Linux. */
	pthread_mutex_init(&t->lock, NULL);
	pthread_cond_init(&t->work, NULL);
	pthread_cond_init(&t->done, NULL);
	r = start(t, depth);
	if (r < 0) {
		threads_free(&t->engine);
		return sk_err_errno(err, r, "cannot start an I/O thread");
	}
	*ret_engine = &t->engine;
	return 0;
}
