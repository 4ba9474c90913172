/* SPDX-License-Identifier: Apache-2.0 */
#include "base/array.h"

#include <assert.h>
#include <stdlib.h>

#define ROOM_LEAST 8u

void *sk_array_fit_(void *v, size_t *room, size_t want, size_t size)
{
	size_t more = *room < ROOM_LEAST / 2 ? ROOM_LEAST : *room * 2;
	void *larger;

	assert(size);
	assert(v || !*room);
	if (v && *room >= want)
		return v;
	/* *room elements lie in memory: doubled, their number cannot wrap. */
	more = more < want ? want : more;
	/* Allocators need not say no to such a size: sanitizers' do not. */
	if (more > PTRDIFF_MAX / size)
		return NULL;
	larger = realloc(v, more * size);
	if (larger)
		*room = more;
	return larger;
}
