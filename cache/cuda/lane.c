/* SPDX-License-Identifier: Apache-2.0 */
/* Lanes: streams of ours, what they wait for, and who waits for them. */
#include <assert.h>

#include "base/util.h"
#include "cuda/gather.h"
#include "cuda/private.h"
#include "cuda/table.h"

#define EVENT_FLAGS (SK_CU_EVENT_BLOCKING_SYNC | SK_CU_EVENT_DISABLE_TIMING)

struct sk_cuda_mark {
	const struct sk_cuda_device *device;
	sk_cu_event event;
};

static int failed(const struct sk_cuda_device *device, sk_cu_result result,
		  const char *what, struct sk_err *err)
{
	return result == SK_CU_SUCCESS ? 0 :
	       sk_cuda_driver_failed(device->driver, result, what, err);
}

/* ---- making ---- */

/* Within the device's context. */
static int make_streams(struct sk_cuda_lane *lane, struct sk_err *err)
{
	const struct sk_cuda_driver *driver = lane->device->driver;
	int least = 0, greatest = 0, r;

	r = failed(lane->device,
		   driver->cuCtxGetStreamPriorityRange(&least, &greatest),
		   "cuCtxGetStreamPriorityRange", err);
	if (r < 0)
		return r;
	for (int i = 0; i < 2 && r >= 0; i++)
		r = failed(lane->device,
			   driver->cuStreamCreateWithPriority(
				   i ? &lane->side : &lane->stream,
				   SK_CU_STREAM_NON_BLOCKING, least),
			   "cuStreamCreateWithPriority", err);
	return r;
}

/* Within the device's context. */
static int make_events(struct sk_cuda_lane *lane, struct sk_err *err)
{
	sk_cu_event *events[] = { &lane->follow, &lane->end, &lane->there,
				  &lane->back };
	int r = 0;

	for (size_t i = 0; i < SK_ARRAY_SIZE(events) && r >= 0; i++)
		r = failed(lane->device,
			   lane->device->driver->cuEventCreate(events[i],
							       EVENT_FLAGS),
			   "cuEventCreate", err);
	return r;
}

int sk_cuda_lane_new(struct sk_cuda_device *device,
		     struct sk_cuda_lane **ret_lane, struct sk_err *err)
{
	struct sk_cuda_lane *lane = calloc(1, sizeof(*lane));
	struct sk_cuda_scope scope;
	int r;

	if (!lane)
		return sk_err_set(err, -ENOMEM, "out of memory");
	lane->device = device;
	lane->chunk = SK_CUDA_CHUNK;
	(void)pthread_mutex_init(&lane->lock, NULL);
	(void)pthread_mutex_init(&lane->stage_lock, NULL);
	r = sk_cuda_enter(device, &scope, err);
	if (r >= 0) {
		r = make_streams(lane, err);
		if (r >= 0)
			r = make_events(lane, err);
		sk_cuda_leave(&scope);
	}
	if (r < 0) {
		sk_cuda_lane_free(lane);
		return r;
	}
	*ret_lane = lane;
	return 0;
}

/* Within the device's context. */
static void destroy(const struct sk_cuda_lane *lane)
{
	const struct sk_cuda_driver *driver = lane->device->driver;
	const sk_cu_event events[] = { lane->follow, lane->end, lane->there,
				       lane->back };
	const sk_cu_stream streams[] = { lane->stream, lane->side };

	for (size_t i = 0; i < SK_ARRAY_SIZE(events); i++)
		if (events[i])
			(void)driver->cuEventDestroy(events[i]);
	for (size_t i = 0; i < SK_ARRAY_SIZE(streams); i++)
		if (streams[i])
			(void)driver->cuStreamDestroy(streams[i]);
}

struct sk_cuda_lane *sk_cuda_lane_free(struct sk_cuda_lane *lane)
{
	struct sk_cuda_scope scope;

	if (!lane)
		return NULL;
	(void)sk_cuda_gather_free(lane->gather);
	(void)sk_cuda_table_free(lane->table);
	sk_cuda_release(lane->device, lane->stage);
	if (sk_cuda_enter(lane->device, &scope, NULL) >= 0) {
		destroy(lane);
		sk_cuda_leave(&scope);
	}
	(void)pthread_mutex_destroy(&lane->stage_lock);
	(void)pthread_mutex_destroy(&lane->lock);
	free(lane);
	return NULL;
}

uint64_t sk_cuda_lane_stream(const struct sk_cuda_lane *lane)
{
	return (uintptr_t)lane->stream;
}

/* ---- after the trainer's stream ---- */

static bool is_default(uint64_t stream)
{
	return stream <= SK_CU_STREAM_PER_THREAD;
}

static int captures(const struct sk_cuda_device *device, struct sk_err *err)
{
	return sk_err_set(err, -EBUSY, "a stream of CUDA device %d is "
			  "capturing a graph, which what is ordered after it "
			  "would be part of; wait for the end of the capture",
			  device->ordinal);
}

static int check_capture(const struct sk_cuda_device *device,
			 sk_cu_stream stream, struct sk_err *err)
{
	sk_cu_enum status = SK_CU_CAPTURE_NONE;
	sk_cu_result result;

	result = device->driver->cuStreamIsCapturing(stream, &status);
	/* The default stream cannot be used while one that blocks with it
	 * captures. */
	if (result == SK_CU_CAPTURE_IMPLICIT ||
	    (result == SK_CU_SUCCESS && status != SK_CU_CAPTURE_NONE))
		return captures(device, err);
	return failed(device, result, "cuStreamIsCapturing", err);
}

/* The context of the trainer's stream, where an event for it is made. */
static int context_of(const struct sk_cuda_device *device,
		      sk_cu_stream stream, sk_cu_context *ret,
		      struct sk_err *err)
{
	*ret = device->context;
	if (is_default((uintptr_t)stream))
		return 0;
	return failed(device, device->driver->cuStreamGetCtx(stream, ret),
		      "cuStreamGetCtx", err);
}

static int record_and_wait(struct sk_cuda_lane *lane, sk_cu_stream stream,
			   struct sk_err *err)
{
	const struct sk_cuda_driver *driver = lane->device->driver;
	int r;

	/* Between the two, nobody may record it elsewhere. */
	(void)pthread_mutex_lock(&lane->lock);
	r = failed(lane->device, driver->cuEventRecord(lane->follow, stream),
		   "cuEventRecord", err);
	if (r >= 0)
		r = failed(lane->device,
			   driver->cuStreamWaitEvent(lane->stream,
						     lane->follow, 0),
			   "cuStreamWaitEvent", err);
	(void)pthread_mutex_unlock(&lane->lock);
	return r;
}

/* An event of the other context; destroyed before it is reached, it is
 * reached all the same. */
static int follow_other(struct sk_cuda_lane *lane, sk_cu_context context,
			sk_cu_stream stream, struct sk_err *err)
{
	const struct sk_cuda_driver *driver = lane->device->driver;
	sk_cu_context popped;
	sk_cu_event event;
	int r;

	r = failed(lane->device, driver->cuCtxPushCurrent(context),
		   "cuCtxPushCurrent", err);
	if (r < 0)
		return r;
	r = failed(lane->device, driver->cuEventCreate(&event, EVENT_FLAGS),
		   "cuEventCreate", err);
	if (r < 0) {
		(void)driver->cuCtxPopCurrent(&popped);
		return r;
	}
	r = failed(lane->device, driver->cuEventRecord(event, stream),
		   "cuEventRecord", err);
	(void)driver->cuCtxPopCurrent(&popped);
	if (r >= 0)
		r = failed(lane->device,
			   driver->cuStreamWaitEvent(lane->stream, event, 0),
			   "cuStreamWaitEvent", err);
	(void)driver->cuEventDestroy(event);
	return r;
}

int sk_cuda_lane_follow(struct sk_cuda_lane *lane, uint64_t stream,
			struct sk_err *err)
{
	sk_cu_stream handle = (sk_cu_stream)(uintptr_t)stream;
	sk_cu_context context;
	struct sk_cuda_scope scope;
	int r = sk_cuda_enter(lane->device, &scope, err);

	if (r < 0)
		return r;
	sk_cuda_chunk_anew(lane);
	r = check_capture(lane->device, handle, err);
	if (r >= 0)
		r = context_of(lane->device, handle, &context, err);
	if (r >= 0)
		r = context == lane->device->context ?
		    record_and_wait(lane, handle, err) :
		    follow_other(lane, context, handle, err);
	sk_cuda_leave(&scope);
	return r;
}

/* ---- waiting ---- */

/* Who waits for a stream keeps a CPU busy, for as long as the link is; who
 * waits for an event that was made for it sleeps. */
static int wait_for_end(const struct sk_cuda_lane *lane, struct sk_err *err)
{
	const struct sk_cuda_driver *driver = lane->device->driver;
	int r = failed(lane->device,
		       driver->cuEventRecord(lane->end, lane->stream),
		       "cuEventRecord", err);

	if (r >= 0)
		r = failed(lane->device,
			   driver->cuEventSynchronize(lane->end),
			   "cuEventSynchronize", err);
	/* Whatever failed: what was asked for is under way. */
	if (r < 0)
		(void)driver->cuStreamSynchronize(lane->stream);
	return r;
}

int sk_cuda_lane_finish(struct sk_cuda_lane *lane, struct sk_err *err)
{
	int asked = sk_cuda_batch_flush(lane, err), r;
	struct sk_cuda_scope scope;

	/* What was asked for before is waited for all the same. */
	err = asked < 0 ? NULL : err;
	r = sk_cuda_enter(lane->device, &scope, err);
	if (r < 0)
		return asked < 0 ? asked : r;
	r = wait_for_end(lane, err);
	sk_cuda_chunk_anew(lane);
	sk_cuda_leave(&scope);
	return asked < 0 ? asked : r;
}

int sk_cuda_settle(const struct sk_cuda_device *device, struct sk_err *err)
{
	struct sk_cuda_scope scope;
	int r = sk_cuda_enter(device, &scope, err);

	if (r < 0)
		return r;
	r = failed(device, device->driver->cuCtxSynchronize(),
		   "cuCtxSynchronize", err);
	sk_cuda_leave(&scope);
	return r == -EBUSY ? captures(device, err) : r;
}

int sk_cuda_mark_new(struct sk_cuda_device *device,
		     struct sk_cuda_mark **ret_mark, struct sk_err *err)
{
	_cleanup_free_ struct sk_cuda_mark *mark = calloc(1, sizeof(*mark));
	struct sk_cuda_scope scope;
	int r;

	if (!mark)
		return sk_err_set(err, -ENOMEM, "out of memory");
	mark->device = device;
	r = sk_cuda_enter(device, &scope, err);
	if (r < 0)
		return r;
	r = failed(device, device->driver->cuEventCreate(&mark->event,
							 EVENT_FLAGS),
		   "cuEventCreate", err);
	sk_cuda_leave(&scope);
	if (r >= 0)
		*ret_mark = sk_take_ptr(mark);
	return r;
}

struct sk_cuda_mark *sk_cuda_mark_free(struct sk_cuda_mark *mark)
{
	struct sk_cuda_scope scope;

	if (!mark)
		return NULL;
	if (sk_cuda_enter(mark->device, &scope, NULL) >= 0) {
		(void)mark->device->driver->cuEventDestroy(mark->event);
		sk_cuda_leave(&scope);
	}
	free(mark);
	return NULL;
}

int sk_cuda_mark_set(struct sk_cuda_mark *mark, struct sk_cuda_lane *lane,
		     struct sk_err *err)
{
	int asked = sk_cuda_batch_flush(lane, err), r;
	struct sk_cuda_scope scope;

	assert(mark->device == lane->device);
	err = asked < 0 ? NULL : err;
	r = sk_cuda_enter(mark->device, &scope, err);
	if (r < 0)
		return asked < 0 ? asked : r;
	r = failed(mark->device,
		   mark->device->driver->cuEventRecord(mark->event,
						       lane->stream),
		   "cuEventRecord", err);
	sk_cuda_leave(&scope);
	return asked < 0 ? asked : r;
}

/* Within the device's context. */
static int hold(const struct sk_cuda_mark *mark, sk_cu_stream stream,
		struct sk_err *err)
{
	const struct sk_cuda_driver *driver = mark->device->driver;
	sk_cu_context context, popped;
	int r = context_of(mark->device, stream, &context, err);

	if (r >= 0)
		r = failed(mark->device, driver->cuCtxPushCurrent(context),
			   "cuCtxPushCurrent", err);
	if (r < 0)
		return r;
	r = failed(mark->device,
		   driver->cuStreamWaitEvent(stream, mark->event, 0),
		   "cuStreamWaitEvent", err);
	(void)driver->cuCtxPopCurrent(&popped);
	return r;
}

int sk_cuda_mark_hold(const struct sk_cuda_mark *mark, uint64_t stream,
		      struct sk_err *err)
{
	sk_cu_stream handle = (sk_cu_stream)(uintptr_t)stream;
	struct sk_cuda_scope scope;
	int r = sk_cuda_enter(mark->device, &scope, err);

	if (r < 0)
		return r;
	r = check_capture(mark->device, handle, err);
	if (r >= 0)
		r = hold(mark, handle, err);
	sk_cuda_leave(&scope);
	return r;
}

int sk_cuda_mark_reached(const struct sk_cuda_mark *mark, bool *ret_reached,
			 struct sk_err *err)
{
	struct sk_cuda_scope scope;
	sk_cu_result result;
	int r = sk_cuda_enter(mark->device, &scope, err);

	if (r < 0)
		return r;
	result = mark->device->driver->cuEventQuery(mark->event);
	sk_cuda_leave(&scope);
	*ret_reached = result == SK_CU_SUCCESS;
	return result == SK_CU_NOT_READY ? 0 :
	       failed(mark->device, result, "cuEventQuery", err);
}

int sk_cuda_mark_wait(const struct sk_cuda_mark *mark, struct sk_err *err)
{
	struct sk_cuda_scope scope;
	int r = sk_cuda_enter(mark->device, &scope, err);

	if (r < 0)
		return r;
	r = failed(mark->device,
		   mark->device->driver->cuEventSynchronize(mark->event),
		   "cuEventSynchronize", err);
	sk_cuda_leave(&scope);
	return r;
}
