/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/nccl-say.h"

#include <errno.h>
#include <stdio.h>

#include "conn/check.h"

/* The status of all: of the first that cannot, or why they do not fit. */
static int heard(struct sk_nccl_comm *c)
{
	struct sk_nccl_word *all = c->said;

	for (int32_t i = 0; i < c->world; i++) {
		all[i].text[sizeof(all[i].text) - 1] = '\0';
		if (all[i].status)
			return sk_err_set(&c->why, -ENODEV, "rank %d: %s", i,
					  all[i].text);
		if (all[i].version != all[0].version)
			return sk_err_set(&c->why, -ENODEV, "ranks 0 and %d "
					  "have NCCL of other versions, %d "
					  "and %d", i, all[0].version,
					  all[i].version);
	}
	return 0;
}

int sk_nccl_say(struct sk_nccl_comm *c, int r, struct sk_nccl_word *word,
		const struct sk_nccl_word **ret_all, uint32_t timeout_ms)
{
	word->version = c->lib.version;
	word->status = r < 0 ? -1 : 0;
	if (r < 0)
		(void)snprintf(word->text, sizeof(word->text), "%.180s",
			       c->why.text);
	r = 0;
	if (c->world == 1)
		c->said[0] = *word;
	else
		r = sk_check_returned(c->base.allgather(
			c->base.ctx, word, sizeof(*word), c->said,
			timeout_ms));
	/* -ENODEV is a rank that does without: all of them know. */
	if (r < 0) {
		c->told = true;
		return r == -ENODEV ? -EIO : r;
	}
	if (ret_all)
		*ret_all = c->said;
	return heard(c);
}

/* *ret_waits: some rank does. */
static int say(struct sk_nccl_comm *c, bool waits, uint32_t timeout_ms,
	       bool *ret_waits)
{
	struct sk_nccl_word word = { .waits = waits };
	const struct sk_nccl_word *all;
	int r;

	if (c->told)
		return -EIO;
	r = sk_nccl_say(c, 0, &word, &all, timeout_ms);
	*ret_waits = false;
	for (int32_t i = 0; r >= 0 && i < c->world; i++)
		*ret_waits |= all[i].waits != 0;
	c->told |= r < 0;
	return r;
}

int sk_nccl_say_waiting(struct sk_nccl_comm *c, uint32_t timeout_ms)
{
	bool waits;

	return say(c, true, timeout_ms, &waits);
}

int sk_nccl_say_done(struct sk_nccl_comm *c, uint32_t timeout_ms)
{
	bool waits = true;
	int r = 0;

	while (r >= 0 && waits)
		r = say(c, false, timeout_ms, &waits);
	return r;
}

void sk_nccl_say_failed(struct sk_nccl_comm *c, uint32_t timeout_ms)
{
	struct sk_nccl_word word = { 0 };

	if (!c->told)
		(void)sk_nccl_say(c, -EIO, &word, NULL, timeout_ms);
	c->told = true;
}
