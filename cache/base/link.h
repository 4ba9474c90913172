/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Link: circular doubly linked lists embedded in the objects they connect.
 *
 * A list is a link that stands for its head. A link on its own is an empty
 * list, so removing twice is harmless.
 */
#ifndef SK_CACHE_BASE_LINK_H
#define SK_CACHE_BASE_LINK_H

#include <stdbool.h>
#include <stddef.h>

struct sk_link {
	struct sk_link *prev, *next;
};

static inline void sk_link_init(struct sk_link *l)
{
	l->prev = l->next = l;
}

static inline bool sk_link_empty(const struct sk_link *head)
{
	return head->next == head;
}

/** Puts @l before @at; before the head is the end of the list. */
static inline void sk_link_insert(struct sk_link *at, struct sk_link *l)
{
	l->prev = at->prev;
	l->next = at;
	at->prev->next = l;
	at->prev = l;
}

static inline void sk_link_remove(struct sk_link *l)
{
	l->prev->next = l->next;
	l->next->prev = l->prev;
	sk_link_init(l);
}

#define sk_link_object(l, type, member) \
	((type *)(void *)((char *)(l) - offsetof(type, member)))

/**
 * Walks the objects of a list. The current one may be removed or freed, others
 * not. After the last, @it is what it was: nothing to be used. (Two plain
 * links walk, because analysers cannot read an expression of commas.)
 */
#define sk_link_each(it, head, member)					\
	for (struct sk_link *it##_at_ = (head)->next,			\
			    *it##_next_ = it##_at_->next;		\
	     it##_at_ != (head) &&					\
	     ((it) = sk_link_object(it##_at_, __typeof__(*(it)),	\
				    member));				\
	     it##_at_ = it##_next_, it##_next_ = it##_at_->next)

#endif
