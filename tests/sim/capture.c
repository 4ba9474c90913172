/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The simulated driver: streams that capture graphs, and what spoils that.
 *
 * A capture forbids what is potentially unsafe to its own thread, but where it
 * is relaxed, and to all others where it is global; who has said for his thread
 * that he knows what he does may. What asks for, or waits for, all of a context
 * conflicts with any capture in it, whatever was said.
 */
#include "vcuda.h"

/* What the thread may do while streams capture; 0: nothing unsafe. */
static _Thread_local sk_cu_enum thread_mode;

sk_cu_result cuThreadExchangeStreamCaptureMode(sk_cu_enum *mode)
{
	sk_cu_enum before = thread_mode;

	VCU_ENTER(cuThreadExchangeStreamCaptureMode);
	if (*mode > SK_CU_CAPTURE_MODE_RELAXED)
		return SK_CU_INVALID_VALUE;
	thread_mode = *mode;
	*mode = before;
	return SK_CU_SUCCESS;
}

/* Whether the calling thread may do nothing unsafe beside that capture. */
static bool forbids(const struct CUstream_st *s)
{
	bool own = pthread_equal(s->capturer, pthread_self());

	if (!s->capture || thread_mode == SK_CU_CAPTURE_MODE_RELAXED)
		return false;
	return own ? s->capture_mode != SK_CU_CAPTURE_MODE_RELAXED :
		     s->capture_mode == VCU_CAPTURE_MODE_GLOBAL &&
		     thread_mode == VCU_CAPTURE_MODE_GLOBAL;
}

sk_cu_result vcu_check_unsafe(void)
{
	sk_cu_result r = SK_CU_SUCCESS;

	for (struct CUstream_st *s = vcu()->streams; s; s = s->next)
		if (forbids(s)) {
			s->capture = VCU_INVALIDATED;
			r = SK_CU_CAPTURE_UNSUPPORTED;
		}
	return r;
}

sk_cu_result vcu_check_unsafe_now(void)
{
	sk_cu_result r;

	vcu_lock();
	r = vcu_check_unsafe();
	vcu_unlock();
	return r;
}

/* Those of a context, or of it those that block with the legacy stream; whether
 * there are any. */
static bool spoil(const struct CUctx_st *context, bool blocking_only)
{
	bool any = false;

	for (struct CUstream_st *s = vcu()->streams; s; s = s->next)
		if (s->capture && s->context == context &&
		    (s->blocking || !blocking_only)) {
			s->capture = VCU_INVALIDATED;
			any = true;
		}
	return any;
}

sk_cu_result vcu_check_whole(void)
{
	return spoil(vcu_current(), false) ? SK_CU_CAPTURE_UNSUPPORTED :
					     SK_CU_SUCCESS;
}

sk_cu_result vcu_stream(sk_cu_stream handle, struct CUstream_st **ret)
{
	struct CUstream_st *stream = vcu_lookup(handle);

	if (!stream || stream->context != vcu_current())
		return SK_CU_INVALID_HANDLE;
	if (stream == stream->context->legacy && spoil(stream->context, true))
		return SK_CU_CAPTURE_IMPLICIT;
	if (stream->capture)
		vcu_misuse("work on a stream that captures: it would become "
			   "part of the trainer's graph");
	*ret = stream;
	return SK_CU_SUCCESS;
}

/* ---- of one stream ---- */

sk_cu_result cuStreamBeginCapture_v2(sk_cu_stream handle, sk_cu_enum mode)
{
	sk_cu_result r = SK_CU_INVALID_HANDLE;

	VCU_ENTER_CONTEXT(cuStreamBeginCapture);
	vcu_lock();
	if ((uintptr_t)handle > SK_CU_STREAM_LEGACY && vcu_is_stream(handle)) {
		handle->capture = VCU_ACTIVE;
		handle->capture_mode = mode;
		handle->capturer = pthread_self();
		r = SK_CU_SUCCESS;
	}
	vcu_unlock();
	return r;
}

/* With the lock held. */
static sk_cu_result end(sk_cu_stream handle)
{
	bool active = handle->capture == VCU_ACTIVE;

	if (handle->capture_mode != SK_CU_CAPTURE_MODE_RELAXED &&
	    !pthread_equal(handle->capturer, pthread_self()))
		return SK_CU_CAPTURE_WRONG_THREAD;
	handle->capture = VCU_NONE;
	return active ? SK_CU_SUCCESS : VCU_CAPTURE_INVALIDATED;
}

sk_cu_result cuStreamEndCapture(sk_cu_stream handle, vcu_graph *graph)
{
	sk_cu_result r = SK_CU_INVALID_HANDLE;

	VCU_ENTER_CONTEXT(cuStreamEndCapture);
	vcu_lock();
	if (vcu_is_stream(handle) && handle->capture) {
		r = end(handle);
		*graph = NULL;
	}
	vcu_unlock();
	return r;
}

static bool any_blocking(const struct CUctx_st *context)
{
	for (struct CUstream_st *s = vcu()->streams; s; s = s->next)
		if (s->capture && s->blocking && s->context == context)
			return true;
	return false;
}

sk_cu_result cuStreamIsCapturing(sk_cu_stream handle, sk_cu_enum *status)
{
	sk_cu_result r = SK_CU_SUCCESS;
	struct CUstream_st *stream;

	VCU_ENTER_CONTEXT(cuStreamIsCapturing);
	vcu_lock();
	stream = vcu_lookup(handle);
	if (!stream)
		r = SK_CU_INVALID_HANDLE;
	else if (stream == stream->context->legacy &&
		 any_blocking(stream->context))
		r = SK_CU_CAPTURE_IMPLICIT;
	else
		*status = stream->capture;
	vcu_unlock();
	return r;
}
