/* SPDX-License-Identifier: Apache-2.0 */
#include "restore/sentence.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/util.h"
#include "conn/say.h"

/* Names of overwritten tensors that it gives. */
#define NAMED_MAX 8

static uint32_t count_touched(const struct sk_restoring *rs)
{
	uint32_t n = 0;

	for (uint32_t i = 0; rs->touched && i < rs->state->n_locals; i++)
		n += rs->touched[i];
	return n;
}

static void write_touched(const struct sk_restoring *rs, FILE *f)
{
	uint32_t n = count_touched(rs), named = 0;

	fprintf(f, "; on rank %d %u of %u tensors may have been overwritten: ",
		rs->state->job.rank, n, rs->state->n_locals);
	for (uint32_t i = 0; i < rs->state->n_locals; i++) {
		if (!rs->touched[i] || named == NAMED_MAX)
			continue;
		fprintf(f, "%s%s", named++ ? ", " : "",
			rs->state->locals[i].item.spec.name);
	}
	if (n > named)
		fprintf(f, " and %u more", n - named);
}

int sk_restore_say(struct sk_restoring *rs, int r)
{
	size_t size = 0;
	char *text = NULL;
	FILE *f;

	if (!count_touched(rs)) {
		if (!rs->text)
			return sk_say(r, &rs->err);
		return sk_say_long(r, sk_take_ptr(rs->text));
	}
	f = open_memstream(&text, &size);
	if (!f)
		return sk_say(r, &rs->err);
	fputs(rs->text ? rs->text : rs->err.text, f);
	write_touched(rs, f);
	if (fclose(f)) {
		free(text);
		return sk_say(r, &rs->err);
	}
	return sk_say_long(r, text);
}
