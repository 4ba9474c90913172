/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the ranks together lack: names described but not saved, names saved
 * but asked for by nobody; and the sentence that lists them all.
 */
#include "restore/names.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/util.h"
#include "restore/agree.h"
#include "restore/keys.h"
#include "restore/portions.h"
#include "state/names.h"

/* Beside the options' flags in a rank's word: it names what it has not
 * described, which another rank may have; it lacks more than it can list. */
#define NAMES_MORE (UINT64_C(1) << 32)
#define LACKS_MORE (UINT64_C(1) << 33)

static int no_memory(struct sk_restoring *rs)
{
	return sk_err_set(&rs->err, -ENOMEM, "no memory to compare the names "
			  "of a snapshot (%u)", rs->n_keys);
}

static int compare_hashes(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

static int extras(struct sk_restoring *rs, uint64_t **ret_hashes,
		  uint64_t *ret_n)
{
	uint64_t *hashes = calloc((size_t)rs->n_keys + 1, sizeof(*hashes));
	uint64_t n = 0;

	if (!hashes)
		return no_memory(rs);
	for (uint32_t i = 0; i < rs->n_keys; i++)
		if (!rs->keys[i].asked)
			hashes[n++] = sk_restore_key_hash(&rs->keys[i]);
	qsort(hashes, n, sizeof(*hashes), compare_hashes);
	*ret_hashes = hashes;
	*ret_n = n;
	return 0;
}

/* Keeps the candidates that this rank did not ask for either. */
static void strike(const uint64_t *candidates, uint64_t n,
		   const uint64_t *mine, uint64_t n_mine, uint8_t *bits)
{
	for (uint64_t i = 0; i < n; i++)
		if (bsearch(&candidates[i], mine, n_mine, sizeof(*mine),
			    compare_hashes))
			sk_bit_set(bits, i);
}

/* Makes of @v of all ranks that of one of them: some at a time, for a world's
 * would be too many. */
static int hear_one(struct sk_restoring *rs, int32_t teller, uint64_t *v,
		    uint64_t n)
{
	uint64_t some = sk_restore_portion(rs, sizeof(*v));
	int r;

	for (uint64_t at = 0; at < n; at += some) {
		_cleanup_free_ uint64_t *told = NULL;

		some = n - at < some ? n - at : some;
		r = sk_restore_gather(rs, 0, v + at, some * sizeof(*v), &told);
		if (r < 0)
			return r;
		memcpy(v + at, told + (size_t)teller * some,
		       some * sizeof(*v));
	}
	return 0;
}

/* Of what no rank asked for, in bits: what all say. */
struct common {
	size_t world;
	uint8_t *bits;
};

static void keep_common(void *ctx, const void *all, size_t at, size_t n)
{
	const struct common *c = ctx;
	const uint8_t *said = all;

	for (size_t k = 0; k < c->world; k++)
		for (size_t i = 0; i < n; i++)
			c->bits[at + i] &= said[k * n + i];
}

/*
 * Of the names that the rank with the fewest did not ask for, those that no
 * rank did: it tells its own, and each rank says which of them are extra with
 * it as well.
 */
static int common_extras(struct sk_restoring *rs, const uint64_t *mine,
			 uint64_t n_mine, uint64_t n, int32_t teller,
			 uint64_t **ret_common, uint64_t *ret_n)
{
	size_t bytes = n / 8 + 1;
	_cleanup_free_ uint8_t *bits = calloc(1, bytes), *all = malloc(bytes);
	struct common c = { (size_t)rs->state->job.world, all };
	_cleanup_free_ uint64_t *tell = calloc(n, sizeof(*tell));
	uint64_t kept = 0;
	int r;

	assert(n && teller >= 0 && teller < rs->state->job.world);
	if (!bits || !all || !tell)
		return no_memory(rs);
	if (rs->state->job.rank == teller)
		memcpy(tell, mine, n * sizeof(*tell));
	r = hear_one(rs, teller, tell, n);
	if (r < 0)
		return r;
	strike(tell, n, mine, n_mine, bits);
	memset(all, 0xff, bytes);
	r = sk_restore_gather_long(rs, 0, bits, bytes, 1, keep_common, &c);
	if (r < 0)
		return r;
	for (uint64_t i = 0; i < n; i++)
		if (sk_bit(all, i))
			tell[kept++] = tell[i];
	*ret_common = sk_take_ptr(tell);
	*ret_n = kept;
	return 0;
}

/* A rank without any makes the answer easy. */
static int agree_extras(struct sk_restoring *rs, const uint64_t *mine,
			uint64_t n_mine, const struct sk_restore_word *words,
			uint64_t **ret_common, uint64_t *ret_n)
{
	int32_t teller = 0;

	assert(rs->state->job.world > 0);
	for (int32_t i = 1; i < rs->state->job.world; i++)
		if (words[i].extra < words[teller].extra)
			teller = i;
	if (!words[teller].extra)
		return 0;
	return common_extras(rs, mine, n_mine, words[teller].extra, teller,
			     ret_common, ret_n);
}

/* ---- the sentence that lists them all ---- */

static int compare_names_by_text(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

/* The names of all ranks, each once; they point into @all. */
static char **distinct(char *all, size_t bytes, size_t *ret_n)
{
	char **names;
	size_t n = 0, kept = 0;

	for (size_t i = 0; i < bytes; i++)
		n += all[i] && (!i || !all[i - 1]);
	names = calloc(n + 1, sizeof(*names));
	if (!names)
		return NULL;
	n = 0;
	for (size_t i = 0; i < bytes; i++)
		if (all[i] && (!i || !all[i - 1]))
			names[n++] = &all[i];
	qsort(names, n, sizeof(*names), compare_names_by_text);
	for (size_t i = 0; i < n; i++)
		if (!i || strcmp(names[i], names[kept - 1]))
			names[kept++] = names[i];
	*ret_n = kept;
	return names;
}

static int write_missing(struct sk_restoring *rs, FILE *f, size_t max,
			 bool more)
{
	size_t world = (size_t)rs->state->job.world, n = 0;
	_cleanup_free_ char *mine = calloc(1, max + 1), *all = NULL;
	_cleanup_free_ char **names = NULL;
	int r;

	assert(max);
	if (!mine)
		return no_memory(rs);
	if (rs->missing_bytes)
		memcpy(mine, rs->missing, rs->missing_bytes);
	r = sk_restore_gather(rs, 0, mine, max + 1, &all);
	if (r < 0)
		return r;
	/* Also where a rank did not end what it said. */
	for (size_t i = 1; i <= world; i++)
		all[i * (max + 1) - 1] = '\0';
	names = distinct(all, world * (max + 1), &n);
	if (!names)
		return no_memory(rs);
	fprintf(f, "%s%zu %s: ", more ? "more than " : "", n, rs->names ?
		"named that are not in the snapshot, or described by no rank" :
		"described here but not in the snapshot");
	for (size_t i = 0; i < n; i++)
		fprintf(f, "%s%s", i ? ", " : "", names[i]);
	fputs(more ? ", and others" : "", f);
	return 0;
}

static void write_extra(const struct sk_restoring *rs, FILE *f,
			const uint64_t *common, uint64_t n)
{
	const char *comma = "";

	assert(n);
	fprintf(f, "%" PRIu64 " in the snapshot but asked for by no rank: ",
		n);
	for (uint32_t i = 0; i < rs->n_keys; i++) {
		uint64_t hash = sk_restore_key_hash(&rs->keys[i]);

		if (!bsearch(&hash, common, n, sizeof(*common),
			     compare_hashes))
			continue;
		fprintf(f, "%s%s", comma, rs->keys[i].item->spec.name);
		comma = ", ";
	}
}

static int refuse(struct sk_restoring *rs, size_t missing_max, bool more,
		  const uint64_t *common, uint64_t n_common)
{
	size_t size = 0;
	char *text = NULL;
	FILE *f = open_memstream(&text, &size);
	int r = 0;

	if (!f)
		return no_memory(rs);
	/* The remedy first: of long lists the sentence has the beginning. */
	fprintf(f, "step %" PRId64 " of run %" PRIu64 " of job \"%s\" has "
		"other names than this state (SK_RESTORE_MISSING_OK and "
		"SK_RESTORE_EXTRA_OK, in Python strict=False, restore what "
		"there is); ", rs->report.step, rs->report.run,
		rs->state->job.name);
	if (missing_max)
		r = write_missing(rs, f, missing_max, more);
	if (n_common) {
		fputs(missing_max ? "; " : "", f);
		write_extra(rs, f, common, n_common);
	}
	if (fclose(f) || r < 0) {
		free(text);
		return r < 0 ? r : no_memory(rs);
	}
	free(rs->text);
	rs->text = text;
	return sk_err_set(&rs->err, -ENOKEY, "%.300s", text);
}

/* What all ranks have said, taken together: their words do not stay. */
struct summary {
	uint64_t flags;		/* that any has */
	size_t missing_max;	/* bytes of names, of the rank with most */
};

static struct summary sum_up(const struct sk_restoring *rs,
			     const struct sk_restore_word *words)
{
	struct summary sum = { 0 };

	for (int32_t i = 0; i < rs->state->job.world; i++) {
		sum.flags |= words[i].flags;
		if (words[i].missing_bytes > sum.missing_max)
			sum.missing_max = words[i].missing_bytes;
	}
	return sum;
}

static int decide(struct sk_restoring *rs, const struct summary *sum,
		  const uint64_t *common, uint64_t n_common)
{
	size_t missing_max = sum->missing_max;
	uint64_t flags = sum->flags;

	rs->report.extra = (uint32_t)n_common;
	if (missing_max > SK_NAMES_MAX)
		return sk_err_set(&rs->err, -EPROTO, "a rank lacks names of "
				  "%zu bytes, more than it can tell",
				  missing_max);
	if (flags & SK_RESTORE_MISSING_OK)
		missing_max = 0;
	if (flags & SK_RESTORE_EXTRA_OK)
		n_common = 0;
	if (!missing_max && !n_common)
		return 0;
	return refuse(rs, missing_max, flags & LACKS_MORE, common, n_common);
}

/* ---- names in the options ---- */

/* Where it is in the snapshot, and this rank has not described it. */
static const struct sk_restore_key *beyond(const struct sk_restoring *rs,
					   const char *name)
{
	const enum sk_item_kind kinds[] = { SK_ITEM_TENSOR, SK_ITEM_BLOB,
					    SK_ITEM_BLOB_LOCAL };
	const struct sk_restore_key *key = NULL;

	if (sk_state_find(rs->state, name) >= 0)
		return NULL;
	for (size_t i = 0; i < SK_ARRAY_SIZE(kinds) && !key; i++)
		key = sk_restore_key(rs, kinds[i], name);
	return key;
}

static bool names_more(const struct sk_restoring *rs)
{
	for (size_t i = 0; rs->names && i < rs->n_names; i++)
		if (beyond(rs, rs->names[i]))
			return true;
	return false;
}

/* What no rank has described cannot come back, though it is there. */
static int note_undescribed(struct sk_restoring *rs, const uint64_t *common,
			    uint64_t n_common)
{
	int r = 0;

	for (size_t i = 0; rs->names && i < rs->n_names && r >= 0; i++) {
		const struct sk_restore_key *key = beyond(rs, rs->names[i]);
		uint64_t hash = key ? sk_restore_key_hash(key) : 0;

		if (!key || !bsearch(&hash, common, n_common, sizeof(*common),
				     compare_hashes))
			continue;
		rs->report.missing++;
		r = sk_restore_note_missing(rs, rs->names[i]);
	}
	return r;
}

static void fill_word(const struct sk_restoring *rs,
		      struct sk_restore_word *word)
{
	word->flags = rs->flags | (names_more(rs) ? NAMES_MORE : 0) |
		      (rs->missing_more ? LACKS_MORE : 0);
	word->missing_bytes = rs->missing_bytes;
}

int sk_restore_agree_keys(struct sk_restoring *rs, int r)
{
	_cleanup_free_ uint64_t *mine = NULL, *common = NULL;
	struct sk_restore_word *words;
	struct sk_restore_word word = { 0 };
	uint64_t n_common = 0;
	struct summary sum;

	if (r >= 0)
		r = extras(rs, &mine, &word.extra);
	if (r >= 0)
		fill_word(rs, &word);
	r = sk_restore_agree(rs, r, &word, &words, 0);
	if (r < 0)
		return r;
	sum = sum_up(rs, words);
	r = agree_extras(rs, mine, word.extra, words, &common, &n_common);
	if (r < 0)
		return r;
	if (n_common && sum.flags & NAMES_MORE) {
		r = note_undescribed(rs, common, n_common);
		fill_word(rs, &word);
		r = sk_restore_agree(rs, r, &word, &words, 0);
		if (r < 0)
			return r;
		sum = sum_up(rs, words);
	}
	return decide(rs, &sum, common, n_common);
}
