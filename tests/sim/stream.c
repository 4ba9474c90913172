/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The simulated driver: streams that run later, each on a thread of its own,
 * and events.
 *
 * $VCUDA_SCHED: eager, as soon as may be; late, only what somebody waits for;
 * else after a moment drawn at random from $VCUDA_SEED. Whatever is legal may
 * happen, so whoever forgets to wait is found out.
 */
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "vcuda.h"

#define PART ((size_t)64 << 10)	/* copied at a time */
#define DELAY_NS 100000u
#define PAGE ((uintptr_t)4096)

bool vcu_reached(struct vcu_point point)
{
	return !point.stream || point.stream->done >= point.number;
}

static void demand(struct vcu_point point)
{
	if (!point.stream || point.stream->demanded >= point.number)
		return;
	point.stream->demanded = point.number;
	(void)pthread_cond_signal(&point.stream->work);
}

void vcu_reach(struct vcu_point point)
{
	demand(point);
	while (!vcu_reached(point))
		(void)pthread_cond_wait(&vcu()->changed, &vcu()->lock);
}

static struct vcu_point end_of(struct CUstream_st *stream)
{
	return (struct vcu_point){ stream, stream->queued };
}

void vcu_drain(const struct CUctx_st *context)
{
	for (struct CUstream_st *s = vcu()->streams; s; s = s->next)
		if (s->context == context)
			vcu_reach(end_of(s));
}

/* ---- running ---- */

static void delay(struct CUstream_st *stream)
{
	struct timespec t = { 0 };

	stream->random = stream->random * 6364136223846793005u + 1442695u;
	t.tv_nsec = (long)((stream->random >> 33) % DELAY_NS);
	(void)nanosleep(&t, NULL);
}

/* No race that tools would tell. */
static void set_racing(char *dst, unsigned char byte, size_t n)
{
	char bytes[256];

	memset(bytes, byte, sizeof(bytes));
	for (size_t at = 0; at < n; at += sizeof(bytes)) {
		size_t part = n - at < sizeof(bytes) ? n - at : sizeof(bytes);
		struct iovec from = { bytes, part }, to = { dst + at, part };

		if (process_vm_writev(getpid(), &from, 1, &to, 1, 0) < 0)
			vcu_misuse("a race that is meant cannot be written");
	}
}

static void move_row(const struct vcu_op *op, size_t row)
{
	char *dst = op->dst + row * op->dst_pitch;
	const char *src = op->src + row * op->src_pitch;

	for (size_t at = 0; at < op->width; at += PART) {
		size_t n = op->width - at < PART ? op->width - at : PART;

		if (op->kind == VCU_SET && op->race)
			set_racing(dst + at, op->byte, n);
		else if (op->kind == VCU_SET)
			memset(dst + at, op->byte, n);
		else
			memcpy(dst + at, src + at, n);
		if (op->width > PART)
			(void)sched_yield();
	}
}

/* A driver may have one thread for all of them. */
static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local bool inside;

bool vcu_is_inside(void)
{
	return inside;
}

static void call_trainer(const struct vcu_op *op)
{
	(void)pthread_mutex_lock(&one_at_a_time);
	inside = true;
	op->function(op->data);
	inside = false;
	(void)pthread_mutex_unlock(&one_at_a_time);
}

/* What copies to, or from, pages that are gone is asked for nothing more: the
 * device would go on with those that it knows. */
static void check_pages(const char *at, size_t bytes)
{
	const uintptr_t begin = (uintptr_t)at & ~(uintptr_t)(PAGE - 1);

	/* It does nothing, but where there is nothing. */
	if (msync((void *)begin, (uintptr_t)at + bytes - begin, MS_ASYNC) &&
	    errno == ENOMEM)
		vcu_misuse("a copy is under way in the %zu bytes at %p, which "
			   "were unmapped", bytes, (const void *)at);
}

/* The driver's view is mapped as long as that may be; so it is the host's
 * side that is looked at. */
static void check_sides(const struct vcu_op *op)
{
	if (!op->locked)
		return;
	check_pages(op->dst, op->dst_pitch * (op->height - 1) + op->width);
	check_pages(op->src, op->src_pitch * (op->height - 1) + op->width);
}

/* Without the lock. */
static void perform(const struct vcu_op *op)
{
	if (op->kind == VCU_HOST && op->trainers)
		call_trainer(op);
	else if (op->kind == VCU_HOST)
		op->function(op->data);
	check_sides(op);
	if (op->kind == VCU_COPY || op->kind == VCU_SET)
		for (size_t row = 0; row < op->height; row++)
			move_row(op, row);
}

/* With the lock held; NULL: there will be none. */
static struct vcu_op *next_op(struct CUstream_st *stream)
{
	bool late = vcu_said("VCUDA_SCHED", "late");

	while (!stream->destroyed &&
	       (!stream->head || (late && stream->demanded <= stream->done)))
		(void)pthread_cond_wait(&stream->work, &vcu()->lock);
	return stream->head;
}

/* Whoever makes and destroys streams for hours has no more of them to walk,
 * and no threads. */
static void leave(struct CUstream_st *stream)
{
	struct CUstream_st **at = &vcu()->streams;

	while (*at != stream)
		at = &(*at)->next;
	*at = stream->next;
	stream->next_ended = vcu()->ended;
	vcu()->ended = stream;
}

static void *run(void *arg)
{
	struct CUstream_st *stream = arg;
	bool eager = vcu_said("VCUDA_SCHED", "eager");

	vcu_lock();
	for (struct vcu_op *op; (op = next_op(stream));) {
		if (op->kind == VCU_WAIT)
			vcu_reach(op->after);
		stream->running = true;
		vcu_unlock();
		if (!eager && op->kind != VCU_MARK)
			delay(stream);
		/* Nothing is done in a context that is broken. */
		if (!__atomic_load_n(&stream->context->sticky,
				     __ATOMIC_RELAXED))
			perform(op);
		vcu_lock();
		stream->running = false;
		stream->head = op->next;
		if (!stream->head)
			stream->tail = &stream->head;
		stream->done++;
		vcu_landed(op);
		free(op->staged);
		free(op);
		(void)pthread_cond_broadcast(&vcu()->changed);
	}
	leave(stream);
	vcu_unlock();
	return NULL;
}

/* ---- memory that goes ---- */

static bool is_within(const char *at, size_t pitch, const struct vcu_op *op,
		      const char *view, size_t bytes)
{
	return at && op->height && at < view + bytes &&
	       view < at + pitch * (op->height - 1) + op->width;
}

static bool touches(const struct vcu_op *op, const char *view, size_t bytes)
{
	if (op->kind != VCU_COPY && op->kind != VCU_SET)
		return false;
	return is_within(op->dst, op->dst_pitch, op, view, bytes) ||
	       is_within(op->src, op->src_pitch, op, view, bytes);
}

/* A copy that runs, or code of a device's, which may touch anything: this
 * process must not take the bytes from under it. */
static bool is_at(const struct CUstream_st *s, const char *view, size_t bytes)
{
	const struct vcu_op *op = s->head;

	return s->running && (touches(op, view, bytes) ||
			      (op->kind == VCU_HOST && !op->trainers));
}

void vcu_vanish(const char *view, size_t bytes)
{
	struct CUstream_st *s;

	for (s = vcu()->streams; s; s = s->next)
		for (struct vcu_op *op = s->head; op; op = op->next)
			if (touches(op, view, bytes))
				vcu_spoil(s->context, SK_CU_ILLEGAL_ADDRESS);
	do {
		for (s = vcu()->streams; s && !is_at(s, view, bytes);)
			s = s->next;
		if (s)
			(void)pthread_cond_wait(&vcu()->changed, &vcu()->lock);
	} while (s);
}

/* A device's own work, which ends. */
static bool is_at_work(const struct CUstream_st *s)
{
	return s->running && (s->head->kind == VCU_COPY ||
			      s->head->kind == VCU_SET || s->head->kernel);
}

/* As a device's work is over once it is told that it failed. */
void vcu_settle(const struct CUctx_st *context)
{
	struct CUstream_st *s;

	do {
		for (s = vcu()->streams;
		     s && (s->context != context || !is_at_work(s));)
			s = s->next;
		if (s)
			(void)pthread_cond_wait(&vcu()->changed, &vcu()->lock);
	} while (s);
}

/* ---- queues ---- */

static struct vcu_point append(struct CUstream_st *stream,
			       const struct vcu_op *op)
{
	struct vcu_op *copy = malloc(sizeof(*copy));

	if (!copy)
		vcu_misuse("out of memory");
	*copy = *op;
	copy->next = NULL;
	*stream->tail = copy;
	stream->tail = &copy->next;
	stream->queued++;
	(void)pthread_cond_signal(&stream->work);
	return end_of(stream);
}

static void append_wait(struct CUstream_st *stream, struct vcu_point after)
{
	if (after.stream != stream && !vcu_reached(after))
		(void)append(stream, &(struct vcu_op){ .kind = VCU_WAIT,
						       .after = after });
}

/* The legacy stream and those that block with it wait for each other. */
static void order(struct CUstream_st *stream)
{
	struct CUstream_st *legacy = stream->context->legacy;

	if (stream != legacy) {
		if (legacy && stream->blocking)
			append_wait(stream, end_of(legacy));
		return;
	}
	for (struct CUstream_st *s = vcu()->streams; s; s = s->next)
		if (s != stream && s->blocking &&
		    s->context == stream->context)
			append_wait(stream, end_of(s));
}

struct vcu_point vcu_append(struct CUstream_st *stream,
			    const struct vcu_op *op)
{
	order(stream);
	return append(stream, op);
}

static struct CUstream_st *new_stream(struct CUctx_st *context, bool blocking)
{
	struct CUstream_st *stream = calloc(1, sizeof(*stream));
	struct vcu *v = vcu();

	if (!stream)
		vcu_misuse("out of memory");
	stream->context = context;
	stream->blocking = blocking;
	stream->tail = &stream->head;
	(void)pthread_cond_init(&stream->work, NULL);
	stream->random = (uint64_t)vcu_setting("VCUDA_SEED", 1) * 77 +
			 ++v->ids;
	stream->next = v->streams;
	v->streams = stream;
	if (pthread_create(&stream->thread, NULL, run, stream))
		vcu_misuse("no thread for a stream");
	(void)pthread_detach(stream->thread);
	return stream;
}

static struct CUstream_st *legacy_stream(struct CUctx_st *context)
{
	if (!context->legacy)
		context->legacy = new_stream(context, true);
	return context->legacy;
}

bool vcu_is_stream(const struct CUstream_st *stream)
{
	for (struct CUstream_st *s = vcu()->streams; s; s = s->next)
		if (s == stream)
			return !s->destroyed;
	return false;
}

/* A driver reads what it has freed, or takes it for the next one that lies
 * there. */
static void refuse_destroyed(sk_cu_stream handle)
{
	for (struct CUstream_st *s = vcu()->streams; s; s = s->next)
		if (s == handle && s->destroyed)
			vcu_misuse("a stream that was destroyed is used");
	for (struct CUstream_st *s = vcu()->ended; s; s = s->next_ended)
		if (s == handle)
			vcu_misuse("a stream that was destroyed is used");
}

/* The thread's own default stream, which blocks with the legacy one. */
static struct CUstream_st *thread_stream(struct CUctx_st *context)
{
	static _Thread_local struct CUstream_st *own[VCU_DEVICES_MAX];
	struct CUstream_st **at = &own[context->device];

	if (!*at)
		*at = new_stream(context, true);
	return *at;
}

/* NULL: there is none. */
struct CUstream_st *vcu_lookup(sk_cu_stream handle)
{
	if ((uintptr_t)handle <= SK_CU_STREAM_LEGACY)
		return legacy_stream(vcu_current());
	if ((uintptr_t)handle == SK_CU_STREAM_PER_THREAD)
		return thread_stream(vcu_current());
	refuse_destroyed(handle);
	return vcu_is_stream(handle) ? handle : NULL;
}

/* ---- streams ---- */

static sk_cu_result create(sk_cu_stream *stream, unsigned flags)
{
	if (flags & ~(unsigned)SK_CU_STREAM_NON_BLOCKING)
		return SK_CU_INVALID_VALUE;
	vcu_lock();
	*stream = new_stream(vcu_current(), !flags);
	vcu()->live_streams++;
	vcu_unlock();
	return SK_CU_SUCCESS;
}

sk_cu_result cuStreamCreate(sk_cu_stream *stream, unsigned flags)
{
	VCU_ENTER_CONTEXT(cuStreamCreate);
	return create(stream, flags);
}

sk_cu_result cuStreamCreateWithPriority(sk_cu_stream *stream, unsigned flags,
					int priority)
{
	VCU_ENTER_CONTEXT(cuStreamCreateWithPriority);
	(void)priority;		/* clamped, whatever it is */
	return create(stream, flags);
}

sk_cu_result cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
	VCU_ENTER_CONTEXT(cuCtxGetStreamPriorityRange);
	*least = 0;
	*greatest = -5;
	return SK_CU_SUCCESS;
}

/* What is queued is still done. */
sk_cu_result cuStreamDestroy_v2(sk_cu_stream handle)
{
	sk_cu_result r = SK_CU_INVALID_HANDLE;

	VCU_ENTER_CONTEXT(cuStreamDestroy);
	vcu_lock();
	refuse_destroyed(handle);
	if ((uintptr_t)handle > SK_CU_STREAM_LEGACY && vcu_is_stream(handle)) {
		if (handle->waiters)
			vcu_misuse("a stream is destroyed that another thread "
				   "waits for");
		handle->destroyed = true;
		vcu()->live_streams--;
		(void)pthread_cond_signal(&handle->work);
		r = SK_CU_SUCCESS;
	}
	vcu_unlock();
	return r;
}

sk_cu_result cuStreamGetCtx(sk_cu_stream handle, sk_cu_context *context)
{
	struct CUstream_st *stream;

	VCU_ENTER_CONTEXT(cuStreamGetCtx);
	vcu_lock();
	stream = vcu_lookup(handle);
	if (stream)
		*context = stream->context;
	vcu_unlock();
	return stream ? SK_CU_SUCCESS : SK_CU_INVALID_HANDLE;
}

static sk_cu_result broken(const struct CUctx_st *context)
{
	return __atomic_load_n(&context->sticky, __ATOMIC_RELAXED);
}

static _Thread_local uint64_t waits;

uint64_t vcu_waits(void)
{
	return waits;
}

sk_cu_result cuStreamSynchronize(sk_cu_stream handle)
{
	struct CUstream_st *stream;
	sk_cu_result r;

	VCU_ENTER_CONTEXT(cuStreamSynchronize);
	waits++;
	vcu_lock();
	r = vcu_check_unsafe();
	stream = vcu_lookup(handle);
	if (!stream)
		r = SK_CU_INVALID_HANDLE;
	if (r == SK_CU_SUCCESS) {
		if (stream == stream->context->legacy)
			order(stream);
		vcu()->busy++;
		stream->waiters++;
		vcu_reach(end_of(stream));
		stream->waiters--;
		r = broken(stream->context);
	}
	vcu_unlock();
	return r;
}

sk_cu_result cuStreamQuery(sk_cu_stream handle)
{
	sk_cu_result r = SK_CU_INVALID_HANDLE;
	struct CUstream_st *stream;

	VCU_ENTER_CONTEXT(cuStreamQuery);
	vcu_lock();
	stream = vcu_lookup(handle);
	if (stream) {
		r = vcu_check_unsafe();
		if (r == SK_CU_SUCCESS && !vcu_reached(end_of(stream)))
			r = SK_CU_NOT_READY;
		demand(end_of(stream));
	}
	vcu_unlock();
	return r;
}

sk_cu_result cuCtxSynchronize(void)
{
	sk_cu_result r;

	VCU_ENTER_CONTEXT(cuCtxSynchronize);
	waits++;
	vcu_lock();
	r = vcu_check_whole();
	if (r == SK_CU_SUCCESS)
		vcu_drain(vcu_current());
	vcu_unlock();
	return r == SK_CU_SUCCESS ? broken(vcu_current()) : r;
}

sk_cu_result cuLaunchHostFunc(sk_cu_stream handle, vcu_host_function function,
			      void *data)
{
	const struct vcu_op op = { .kind = VCU_HOST, .function = function,
				   .trainers = true, .data = data };
	struct CUstream_st *stream;
	sk_cu_result r;

	VCU_ENTER_CONTEXT(cuLaunchHostFunc);
	vcu_lock();
	r = vcu_stream(handle, &stream);
	if (r == SK_CU_SUCCESS)
		(void)vcu_append(stream, &op);
	vcu_unlock();
	return r;
}

/* ---- for the simulated NCCL ---- */

/* A kernel of another library: what it does is done on the stream's thread. */
bool vcudaEnqueue(sk_cu_stream handle, void (*function)(void *), void *data)
{
	const struct vcu_op op = { .kind = VCU_HOST, .function = function,
				   .data = data };
	bool known;

	vcu_lock();
	known = (uintptr_t)handle > SK_CU_STREAM_LEGACY &&
		vcu_is_stream(handle);
	if (known && handle->capture)
		vcu_misuse("NCCL on a stream that captures");
	if (known)
		(void)vcu_append(handle, &op);
	vcu_unlock();
	return known;
}

/* Somebody waits for all that the stream has. */
void vcudaDemand(sk_cu_stream handle)
{
	vcu_lock();
	if (vcu_is_stream(handle))
		demand(end_of(handle));
	vcu_unlock();
}

/* ---- events ---- */

sk_cu_result cuEventCreate(sk_cu_event *event, unsigned flags)
{
	VCU_ENTER_CONTEXT(cuEventCreate);
	if (flags & ~3u)
		return SK_CU_INVALID_VALUE;
	*event = calloc(1, sizeof(**event));
	if (!*event)
		return SK_CU_OUT_OF_MEMORY;
	(*event)->context = vcu_current();
	(*event)->sleeps = flags & SK_CU_EVENT_BLOCKING_SYNC;
	vcu_lock();
	vcu()->live_events++;
	vcu_unlock();
	return SK_CU_SUCCESS;
}

/* With the lock held. */
static bool is_event(sk_cu_event event)
{
	if (event && event->gone)
		vcu_misuse("an event that was destroyed is used");
	return event;
}

/* What waits for it goes on waiting for its point. */
sk_cu_result cuEventDestroy_v2(sk_cu_event event)
{
	bool was;

	VCU_ENTER_CONTEXT(cuEventDestroy);
	vcu_lock();
	was = is_event(event);
	if (was) {
		if (event->waiters)
			vcu_misuse("an event is destroyed that another thread "
				   "waits for");
		event->gone = true;
		event->next_gone = vcu()->gone;
		vcu()->gone = event;
		vcu()->live_events--;
	}
	vcu_unlock();
	return was ? SK_CU_SUCCESS : SK_CU_INVALID_HANDLE;
}

sk_cu_result cuEventRecord(sk_cu_event event, sk_cu_stream handle)
{
	struct CUstream_st *stream;
	sk_cu_result r;

	VCU_ENTER_CONTEXT(cuEventRecord);
	vcu_lock();
	r = is_event(event) ? vcu_stream(handle, &stream) :
			      SK_CU_INVALID_HANDLE;
	if (r == SK_CU_SUCCESS && event->context != stream->context)
		r = SK_CU_INVALID_HANDLE;
	if (r == SK_CU_SUCCESS)
		event->point = vcu_append(stream, &(struct vcu_op){
			.kind = VCU_MARK });
	vcu_unlock();
	return r;
}

sk_cu_result cuEventQuery(sk_cu_event event)
{
	sk_cu_result r;

	VCU_ENTER_CONTEXT(cuEventQuery);
	vcu_lock();
	r = is_event(event) ? vcu_check_unsafe() : SK_CU_INVALID_HANDLE;
	if (r == SK_CU_SUCCESS && !vcu_reached(event->point))
		r = SK_CU_NOT_READY;
	if (event)
		demand(event->point);
	vcu_unlock();
	return r;
}

sk_cu_result cuEventSynchronize(sk_cu_event event)
{
	sk_cu_result r;

	VCU_ENTER_CONTEXT(cuEventSynchronize);
	waits++;
	vcu_lock();
	r = is_event(event) ? vcu_check_unsafe() : SK_CU_INVALID_HANDLE;
	if (r == SK_CU_SUCCESS) {
		vcu()->busy += !event->sleeps;
		event->waiters++;
		vcu_reach(event->point);
		event->waiters--;
	}
	vcu_unlock();
	return r == SK_CU_SUCCESS ? broken(event->context) : r;
}

/* Of another device's stream too. */
sk_cu_result cuStreamWaitEvent(sk_cu_stream handle, sk_cu_event event,
			       unsigned flags)
{
	struct CUstream_st *stream;
	sk_cu_result r;

	VCU_ENTER_CONTEXT(cuStreamWaitEvent);
	if (flags)
		return SK_CU_INVALID_VALUE;
	vcu_lock();
	r = is_event(event) ? vcu_stream(handle, &stream) :
			      SK_CU_INVALID_HANDLE;
	if (r == SK_CU_SUCCESS) {
		order(stream);
		append_wait(stream, event->point);
	}
	vcu_unlock();
	return r;
}
