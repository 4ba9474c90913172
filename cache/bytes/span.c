/* SPDX-License-Identifier: Apache-2.0 */
/* Contiguous bytes, past the cache where that pays. */
#include <assert.h>
#include <stdint.h>
#include <string.h>

#include "bytes/copy.h"
#include "bytes/stream.h"

static void move_lines(const struct sk_stream *kernel, char *dst,
		       const char *src, size_t size, const char *next)
{
	if (next && kernel->copy_row)
		kernel->copy_row(dst, src, size, next);
	else
		kernel->copy(dst, src, size);
}

void sk_stream_row(const struct sk_stream *kernel, char *dst, const char *src,
		   size_t size, const char *next)
{
	size_t head = -(uintptr_t)dst % SK_LINE;
	size_t body;

	if (!kernel || size < head + SK_LINE) {
		memcpy(dst, src, size);
		return;
	}
	body = (size - head) / SK_LINE * SK_LINE;
	assert(head + body <= size);
	memcpy(dst, src, head);
	move_lines(kernel, dst + head, src + head, body, next);
	memcpy(dst + head + body, src + head + body, size - head - body);
}

void sk_stream_span(const struct sk_stream *kernel, char *dst,
		    const char *src, size_t size)
{
	sk_stream_row(kernel, dst, src, size, NULL);
}

void sk_stream_copy(void *dst, const void *src, size_t size)
{
	if (size < SK_STREAM_LEAST) {
		if (size)
			memcpy(dst, src, size);
		return;
	}
	sk_stream_span(sk_stream_best(), dst, src, size);
}

void sk_stream_copy_twice(void *dst, void *twin, const void *src, size_t size)
{
	const struct sk_stream *kernel = sk_stream_best();
	size_t head = -(uintptr_t)dst % SK_LINE, body;
	const char *from = src;
	char *to = dst, *too = twin;

	if (!kernel || size < SK_STREAM_LEAST) {
		if (!size)
			return;
		memcpy(twin, src, size);
		memcpy(dst, twin, size);
		return;
	}
	body = (size - head) / SK_LINE * SK_LINE;
	memcpy(too, from, head);
	memcpy(to, too, head);
	kernel->copy_twice(to + head, too + head, from + head, body);
	memcpy(too + head + body, from + head + body, size - head - body);
	memcpy(to + head + body, too + head + body, size - head - body);
}

void sk_stream_fence(void)
{
	const struct sk_stream *kernel = sk_stream_best();

	if (kernel)
		kernel->fence();
}

const char *sk_copy_backend(void)
{
	const struct sk_stream *kernel = sk_stream_best();

	return kernel ? kernel->name : "memcpy";
}
