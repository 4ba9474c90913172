/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Growing arrays: a pointer, how many there are, and for how many there is
 * room, wherever their owner keeps the three. Thread-safety: the owner's.
 */
#ifndef SK_CACHE_BASE_ARRAY_H
#define SK_CACHE_BASE_ARRAY_H

#include <errno.h>
#include <stddef.h>
#include <stdint.h>

/** Room in @v (NULL: nothing yet) for @want elements of @size bytes; *room is
 * how many there is room for, and at least doubles when it grows, so that
 * adding one by one costs the same for each. NULL: no memory, or more bytes
 * than there are; @v and *room stay. What is new is not cleared. */
void *sk_array_fit_(void *v, size_t *room, size_t want, size_t size);

/** The same for a pointer and a count of any integer type. 0 or -ENOMEM.
 * The count must be wide enough for twice what its owner admits. Both are
 * evaluated more than once. */
#define sk_array_fit(v, room, want) ({					\
	size_t room_ = (size_t)(room);					\
	void *fit_ = sk_array_fit_((v), &room_, (want), sizeof(*(v)));	\
	if (fit_) {							\
		(v) = fit_;						\
		(room) = (__typeof__(room))room_;			\
	}								\
	fit_ ? 0 : -ENOMEM;						\
})

#endif
