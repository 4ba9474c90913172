/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/array.h"
#include "base/size.h"
#include "base/util.h"

#define GIB ((uint64_t)1 << 30)

static void is(const char *text, uint64_t whole, uint64_t want)
{
	struct sk_err err = { "" };
	uint64_t bytes = 0;

	cr_assert_eq(sk_size_parse(text, whole, &bytes, &err), 0, "%s: %s",
		     text, err.text);
	cr_assert_eq(bytes, want, "%s: %" PRIu64, text, bytes);
}

static void is_not(const char *text, uint64_t whole, int want)
{
	struct sk_err err = { "" };
	uint64_t bytes = 77;

	cr_assert_eq(sk_size_parse(text, whole, &bytes, &err), want, "%s",
		     text);
	cr_assert_eq(bytes, 77);
	cr_assert(strstr(err.text, text), "%s", err.text);
}

Test(size, reads_numbers_and_units)
{
	is("1", 0, 1);
	is("4096", 0, 4096);
	is("77B", 0, 77);
	is("64K", 0, 65536);
	is("64 kib", 0, 65536);
	is("500M", 0, 500 * ((uint64_t)1 << 20));
	is("5G", 0, 5 * GIB);
	is("1.5GiB", 0, 3 * GIB / 2);
	is("0.25g", 0, GIB / 4);
	is("2TB", 0, 2048 * GIB);
	is("1024P", 0, SK_SIZE_MOST);
	is("0.00019999G", 0, GIB / 10000);
}

Test(size, reads_parts_of_the_whole)
{
	is("60%", 1000, 600);
	is("100%", UINT64_C(123456789), UINT64_C(123456789));
	is("0.5%", 100000, 500);
	is("12.5 %", 64 * GIB, 8 * GIB);
	is("3K", 1000, 3072);
	is_not("60%", 0, -EINVAL);
	is_not("101%", 1000, -ERANGE);
	is_not("100.1%", 1000, -ERANGE);
	is_not("0%", 1000, -ERANGE);
}

Test(size, refuses_what_is_none)
{
	static const char *const texts[] = {
		"G", "-1", "+1", ".5G", "5.G", "1.5.5", "5X", "5GiBs", "5BB",
		"0x10", "1e9", " 5", "5G ", "nan", "inf", "5iB", "5%%",
	};

	for (size_t i = 0; i < SK_ARRAY_SIZE(texts); i++)
		is_not(texts[i], 1000, -EINVAL);
	is_not("0", 0, -ERANGE);
	is_not("0.0001", 0, -ERANGE);
	is_not("1025P", 0, -ERANGE);
	is_not("99999999999999999999", 0, -ERANGE);
	is_not("18446744073709551615T", 0, -ERANGE);
}

/* What is said is read again, as near as it was said. */
Test(size, reads_what_it_says)
{
	char text[SK_SIZE_TEXT];

	for (uint64_t bytes = 1; bytes < SK_SIZE_MOST / 3;
	     bytes = bytes * 3 + 1) {
		uint64_t again = 0, off;

		sk_size_format(bytes, text, sizeof(text));
		cr_assert_eq(sk_size_parse(text, 0, &again, NULL), 0, "%s",
			     text);
		off = again > bytes ? again - bytes : bytes - again;
		cr_assert_leq(off, bytes / 10, "%s", text);
	}
	cr_assert_str_eq(sk_size_format(0, text, sizeof(text)), "0 B");
	cr_assert_str_eq(sk_size_format(3 * GIB / 2, text, sizeof(text)),
			 "1.5 GiB");
	cr_assert_str_eq(sk_size_format(UINT64_MAX, text, sizeof(text)),
			 "16384.0 PiB");
}

/* Beside printf(), whose locale here has a point. */
Test(size, says_what_printf_says)
{
	static const char *const units[] = { "KiB", "MiB", "GiB", "TiB" };
	char text[SK_SIZE_TEXT], want[64];

	for (size_t u = 0; u < SK_ARRAY_SIZE(units); u++)
		for (uint64_t n = 0; n < 2000; n++) {
			uint64_t unit = (uint64_t)1024 << 10 * u;
			uint64_t bytes = unit + n * (unit / 20) % (unit * 1023);

			(void)snprintf(want, sizeof(want), "%.1f %s",
				       (double)bytes / (double)unit, units[u]);
			sk_size_format(bytes, text, sizeof(text));
			cr_assert_str_eq(text, want, "%" PRIu64, bytes);
		}
}

/* Beside a walk: of none, of all, of equal ones, and in between. */
Test(array, counts_what_comes_before)
{
	static const int v[] = { 2, 3, 3, 3, 7, 9, 9 };

	for (size_t n = 0; n <= SK_ARRAY_SIZE(v); n++)
		for (int x = 0; x < 12; x++) {
			size_t want = 0;

			while (want < n && v[want] < x)
				want++;
			cr_assert_eq(sk_count_before(n, i, v[i] < x), want,
				     "%d among the first %zu", x, n);
		}
}

Test(array, grows_and_keeps)
{
	uint32_t *v = NULL;
	int room = 0;

	for (uint32_t i = 0; i < 1000; i++) {
		cr_assert_eq(sk_array_fit(v, room, i + 1u), 0);
		cr_assert_gt(room, (int)i);
		v[i] = i;
	}
	cr_assert_leq(room, 2000);
	for (uint32_t i = 0; i < 1000; i++)
		cr_assert_eq(v[i], i);
	free(v);
}

Test(array, refuses_more_than_there_is)
{
	uint64_t *v = NULL;
	size_t room = 0;

	cr_assert_eq(sk_array_fit(v, room, SIZE_MAX / 4), -ENOMEM);
	cr_assert_eq(sk_array_fit(v, room, SIZE_MAX), -ENOMEM);
	cr_assert_null(v);
	cr_assert_eq(room, 0);
	cr_assert_eq(sk_array_fit(v, room, 0), 0);
	cr_assert_not_null(v, "an empty one is an array");
	free(v);
}

/* The largest unit of which there is one. */
Test(size, is_said_in_its_unit)
{
	static const struct {
		uint64_t bytes;
		const char *said;
	} sizes[] = {
		{ 0, "0 B" },
		{ 1023, "1023 B" },
		{ 1024, "1.0 KiB" },
		{ (uint64_t)1 << 20, "1.0 MiB" },
		{ (uint64_t)3 << 29, "1.5 GiB" },
		{ (uint64_t)1 << 40, "1.0 TiB" },
		{ (uint64_t)2048 << 50, "2048.0 PiB" },
	};
	char text[32];

	for (size_t i = 0; i < SK_ARRAY_SIZE(sizes); i++)
		cr_assert_str_eq(sk_size_format(sizes[i].bytes, text,
						sizeof(text)), sizes[i].said);
}

Test(size, a_small_number_alone_lacks_a_unit)
{
	cr_assert(sk_size_lacks_unit("64", 64));
	cr_assert(sk_size_lacks_unit("1048575", 1048575));
	cr_assert(!sk_size_lacks_unit("1048576", 1048576));
	cr_assert(!sk_size_lacks_unit("64K", 64 << 10));
	cr_assert(!sk_size_lacks_unit("64 B", 64));
	cr_assert(!sk_size_lacks_unit("0.5", 0));
}
