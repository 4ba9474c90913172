/* SPDX-License-Identifier: Apache-2.0 */
#include "base/size.h"

#include <assert.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/util.h"

/* Fractions are kept in these parts of one: with the largest unit they still
 * fit 64 bits. */
#define PARTS 10000u

struct number {
	uint64_t ones;
	uint64_t parts;		/* below PARTS */
};

static bool is_digit(char c)
{
	return c >= '0' && c <= '9';
}

/* Returns what follows the number, or NULL: there is none. */
static const char *take_number(const char *s, struct number *ret)
{
	uint64_t weight = PARTS;

	*ret = (struct number){ 0 };
	if (!is_digit(*s))
		return NULL;
	for (; is_digit(*s); s++)
		if (!sk_mul_u64(ret->ones, 10, &ret->ones) ||
		    !sk_add_u64(ret->ones, (uint64_t)(*s - '0'), &ret->ones))
			ret->ones = UINT64_MAX;	/* as good as any */
	if (*s != '.')
		return s;
	if (!is_digit(*++s))
		return NULL;
	for (; is_digit(*s); s++) {
		weight /= 10;
		ret->parts += (uint64_t)(*s - '0') * weight;
	}
	return s;
}

/* In no locale's alphabet: in some, "i" is no small "I". */
static bool is_byte(const char *s)
{
	return (*s == 'b' || *s == 'B') && !s[1];
}

/* 0: there is no such unit. */
static uint64_t unit_bytes(const char *s)
{
	static const char units[] = "KMGTP";
	const char *unit;

	if (!*s || is_byte(s))
		return 1;
	unit = strchr(units, *s >= 'a' ? *s - 'a' + 'A' : *s);
	if (!unit || (s[1] && !is_byte(s + 1) &&
		      ((s[1] != 'i' && s[1] != 'I') || !is_byte(s + 2))))
		return 0;
	return (uint64_t)1 << 10 * (unit - units + 1);
}

/* False: more than 64 bits. */
static bool multiply(const struct number *n, uint64_t unit, uint64_t *ret)
{
	return sk_mul_u64(n->ones, unit, ret) &&
	       sk_add_u64(*ret, n->parts * unit / PARTS, ret);
}

static bool take_percent(const struct number *n, uint64_t whole,
			 uint64_t *ret)
{
	unsigned __int128 all = (unsigned __int128)100 * PARTS, of;

	if (n->ones > 100 || (n->ones == 100 && n->parts))
		return false;
	of = (unsigned __int128)whole * (n->ones * PARTS + n->parts);
	*ret = (uint64_t)(of / all);
	return true;
}

int sk_size_parse(const char *text, uint64_t whole, uint64_t *ret_bytes,
		  struct sk_err *err)
{
	struct number n;
	const char *s = take_number(text, &n);
	uint64_t bytes = 0, unit = 0;
	bool fits = true, percent;

	while (s && *s == ' ')
		s++;
	percent = s && whole && strcmp(s, "%") == 0;
	if (s && !percent)
		unit = unit_bytes(s);
	if (!percent && !unit)
		return sk_err_set(err, -EINVAL, "\"%.40s\" is not a size such "
				  "as 4096, 500M or 1.5GiB%s", text,
				  whole ? ", nor a percentage" : "");
	fits = percent ? take_percent(&n, whole, &bytes) :
			 multiply(&n, unit, &bytes);
	if (!fits || bytes > SK_SIZE_MOST)
		return sk_err_set(err, -ERANGE, "\"%.40s\" is more than %s",
				  text, percent ? "100%" : "1024 PiB");
	if (!bytes)
		return sk_err_set(err, -ERANGE, "\"%.40s\" is less than a byte",
				  text);
	*ret_bytes = bytes;
	return 0;
}

bool sk_size_lacks_unit(const char *text, uint64_t bytes)
{
	return bytes < 1u << 20 && !text[strspn(text, "0123456789")];
}

/* printf() would write what the trainer's locale has for a point. */
char *sk_size_tenths(uint64_t tenths, char *buf, size_t size)
{
	(void)snprintf(buf, size, "%" PRIu64 ".%u", tenths / 10,
		       (unsigned)(tenths % 10));
	return buf;
}

/* Halves go to the even one. */
static uint64_t tenths_of(uint64_t bytes, uint64_t unit)
{
	unsigned __int128 n = (unsigned __int128)bytes * 10;
	uint64_t whole = (uint64_t)(n / unit), rest = (uint64_t)(n % unit);

	return whole + (rest > unit / 2 || (rest == unit / 2 && whole % 2));
}

char *sk_size_format(uint64_t bytes, char *buf, size_t size)
{
	static const char *const units[] = { "B", "KiB", "MiB", "GiB", "TiB",
					     "PiB" };
	char number[24];
	size_t u = 0;

	assert(size);
	while (bytes >> 10 * u >= 1024 && u + 1 < SK_ARRAY_SIZE(units))
		u++;
	if (u)
		(void)sk_size_tenths(tenths_of(bytes, (uint64_t)1 << 10 * u),
				     number, sizeof(number));
	else
		(void)snprintf(number, sizeof(number), "%" PRIu64, bytes);
	(void)snprintf(buf, size, "%s %s", number, units[u]);
	return buf;
}
