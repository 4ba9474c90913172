/* SPDX-License-Identifier: Apache-2.0 */
/* What changes in a header from one snapshot to the next: fixed fields. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/util.h"
#include "bytes/checksum.h"
#include "layout/private.h"

static void put_number(char *at, uint64_t v)
{
	char text[SK_RUN_WIDTH + 1];

	(void)snprintf(text, sizeof(text), "%*llu", SK_RUN_WIDTH,
		       (unsigned long long)v);
	memcpy(at, text, SK_RUN_WIDTH);
}

static void put_sum(char *at, uint64_t v)
{
	static const char digits[] = "0123456789abcdef";

	for (int i = SK_SUM_WIDTH - 1; i >= 0; i--, v >>= 4)
		at[i] = digits[v & 15];
}

void sk_layout_stamp(const struct sk_layout *l, const struct sk_stamp *stamp,
		     void *dst)
{
	const struct sk_layout_priv *p = l->priv;
	char *header = dst;

	assert(stamp->sums || !l->n_sums);
	assert(p->sum_at + SK_SUM_WIDTH <= l->header_bytes);
	memcpy(header, l->header, l->header_bytes);
	put_number(header + p->run_at, stamp->run);
	put_sum(header + p->run_id_at, stamp->run_id);
	put_number(header + p->step_at, stamp->step);
	for (uint32_t i = 0; i < l->n_sums; i++)
		put_sum(header + p->sums_at[i], stamp->sums[i]);
	/* Last, and over all the others: its own digits are zeros here. */
	put_sum(header + p->sum_at, sk_xxh3(header, l->header_bytes));
}

static bool get_number(const char *at, uint64_t *ret)
{
	uint64_t v = 0;
	int i = 0;

	while (i < SK_RUN_WIDTH - 1 && at[i] == ' ')
		i++;
	for (; i < SK_RUN_WIDTH; i++)
		if (at[i] < '0' || at[i] > '9' ||
		    __builtin_mul_overflow(v, 10u, &v) ||
		    __builtin_add_overflow(v, (uint64_t)(at[i] - '0'), &v))
			return false;
	*ret = v;
	return true;
}

static bool get_sum(const char *at, uint64_t *ret)
{
	uint64_t v = 0;

	for (int i = 0; i < SK_SUM_WIDTH; i++) {
		char c = at[i];

		if (c >= '0' && c <= '9')
			v = v << 4 | (uint64_t)(c - '0');
		else if (c >= 'a' && c <= 'f')
			v = v << 4 | (uint64_t)(c - 'a' + 10);
		else
			return false;
	}
	*ret = v;
	return true;
}

/* Takes the stamp out of a header, which is blank after it. */
static bool take_stamp(const struct sk_layout *l,
		       const struct sk_layout_priv *p, char *own,
		       struct sk_stamp *ret_stamp)
{
	uint64_t sum;

	assert(p->step_at + SK_RUN_WIDTH <= l->header_bytes);
	if (!get_number(own + p->run_at, &ret_stamp->run) ||
	    !get_sum(own + p->run_id_at, &ret_stamp->run_id) ||
	    !get_number(own + p->step_at, &ret_stamp->step))
		return false;
	put_number(own + p->run_at, 0);
	put_sum(own + p->run_id_at, 0);
	put_number(own + p->step_at, 0);
	for (uint32_t i = 0; i < l->n_sums; i++) {
		if (!get_sum(own + p->sums_at[i], &sum))
			return false;
		put_sum(own + p->sums_at[i], 0);
		if (ret_stamp->sums)
			ret_stamp->sums[i] = sum;
	}
	return true;
}

/* Whether the header is what its own checksum says, whose digits are zeros
 * after it. */
static int check_sum(const struct sk_layout *l,
		     const struct sk_layout_priv *p, char *own,
		     struct sk_err *err)
{
	char *at = own + p->sum_at;
	uint64_t said, is;

	assert(p->sum_at + SK_SUM_WIDTH <= l->header_bytes);
	if (!get_sum(at, &said))
		return sk_err_set(err, -EBADMSG, "the header of rank %d's "
				  "image is damaged: it has no checksum",
				  l->rank);
	put_sum(at, 0);
	is = sk_xxh3(own, l->header_bytes);
	if (said != is)
		return sk_err_set(err, -EBADMSG, "the header of rank %d's "
				  "image is damaged: its checksum is %016llx, "
				  "it says %016llx", l->rank,
				  (unsigned long long)is,
				  (unsigned long long)said);
	return 0;
}

static int not_its(const struct sk_layout *l, struct sk_err *err)
{
	return sk_err_set(err, -EBADMSG, "the header of rank %d's image is "
			  "not that of its layout", l->rank);
}

int sk_layout_check(const struct sk_layout *l, const void *header,
		    struct sk_stamp *stamp, struct sk_err *err)
{
	_cleanup_free_ char *own = NULL;
	int r;

	if (!memcmp(header, l->header, l->header_bytes))
		return 0;	/* the template itself */
	own = malloc(l->header_bytes);
	if (!own)
		return sk_err_set(err, -ENOMEM, "out of memory for a header");
	memcpy(own, header, l->header_bytes);
	r = check_sum(l, l->priv, own, err);
	if (r < 0)
		return r;
	if (!take_stamp(l, l->priv, own, stamp) ||
	    memcmp(own, l->header, l->header_bytes))
		return not_its(l, err);
	return 1;
}

/* ---- without the template ---- */

/* Behind the next @word in a header; NULL: there is none. */
static const char *after(const char *s, const char *end, const char *word)
{
	size_t n = strlen(word);

	s = s ? memmem(s, (size_t)(end - s), word, n) : NULL;
	return s ? s + n : NULL;
}

/* Behind a field, where it has room; *ret_at is where it begins. */
static const char *field(const char *header, const char *s, const char *end,
			 int width, uint32_t *ret_at)
{
	if (!s || end - s < width)
		return NULL;
	*ret_at = (uint32_t)(s - header);
	return s + width;
}

/* Several of an entry have nothing but this between them. */
static const char *next_sum(const char *s, const char *end)
{
	static const char between[] = "\\\",\\\"";
	size_t n = sizeof(between) - 1;

	if (s && (size_t)(end - s) >= n && !memcmp(s, between, n))
		return s + n;
	return after(s, end, "\\\"xxh3\\\":[\\\"");
}

static bool find_sums(const char *header, const char *s, const char *end,
		      uint32_t n, uint32_t *at)
{
	s = after(s, end, "],\\\"entries\\\":[");
	for (uint32_t i = 0; i < n; i++)
		s = field(header, next_sum(s, end), end, SK_SUM_WIDTH, &at[i]);
	return s;
}

/*
 * Where the stamp's fields are, by the words before them. Within a name each
 * quote has three backslashes before it, so none of these words is in one.
 */
static bool find_places(const struct sk_layout *l, const char *header,
			struct sk_layout_priv *p)
{
	const char *end = header + l->header_bytes;
	const char *s = after(header, end, SK_HEADER_MIDDLE);

	s = after(s, end, "\\\"xxh3\\\":\\\"");
	s = field(header, s, end, SK_SUM_WIDTH, &p->sum_at);
	s = after(s, end, "\\\"run\\\":");
	s = field(header, s, end, SK_RUN_WIDTH, &p->run_at);
	s = after(s, end, "\\\"run_id\\\":\\\"");
	s = field(header, s, end, SK_SUM_WIDTH, &p->run_id_at);
	s = after(s, end, "\\\"step\\\":");
	s = field(header, s, end, SK_RUN_WIDTH, &p->step_at);
	return s && find_sums(header, s, end, l->n_sums, p->sums_at);
}

/* A sketch has no template, but its digest: what is left when the fields are
 * blank must have it. */
static int check_sketch(const struct sk_layout *l, const void *header,
			struct sk_stamp *stamp, struct sk_err *err)
{
	_cleanup_free_ char *own = malloc(l->header_bytes);
	_cleanup_free_ uint32_t *sums_at = calloc(l->n_sums + 1u,
						  sizeof(*sums_at));
	struct sk_layout_priv places = { .sums_at = sums_at };
	struct sk_digest digest;
	int r;

	if (!own || !sums_at)
		return sk_err_set(err, -ENOMEM, "out of memory for a header");
	memcpy(own, header, l->header_bytes);
	if (!find_places(l, own, &places))
		return not_its(l, err);
	r = check_sum(l, &places, own, err);
	if (r < 0)
		return r;
	if (!take_stamp(l, &places, own, stamp))
		return not_its(l, err);
	sk_xxh3_128(own, l->header_bytes, digest.bytes);
	return sk_digest_equal(&digest, &l->digest) ? 1 : not_its(l, err);
}

int sk_layout_read_stamp(const struct sk_layout *l, const void *header,
			 struct sk_stamp *ret_stamp, struct sk_err *err)
{
	struct sk_stamp stamp = { .sums = ret_stamp->sums };
	int r = l->header ? sk_layout_check(l, header, &stamp, err) :
			    check_sketch(l, header, &stamp, err);

	if (r == 0)
		r = sk_err_set(err, -EBADMSG, "the header of rank %d's image "
			       "is not stamped", l->rank);
	if (r < 0)
		return r;
	*ret_stamp = stamp;
	return 0;
}

int sk_header_bytes(const void *first8, uint64_t *ret_bytes,
		    struct sk_err *err)
{
	uint64_t n;

	memcpy(&n, first8, sizeof(n));
	if (n < 2 || n > SK_HEADER_MAX)
		return sk_err_set(err, -EBADMSG, "a header of %llu bytes is "
				  "not safetensors", (unsigned long long)n);
	*ret_bytes = 8 + n;
	return 0;
}
