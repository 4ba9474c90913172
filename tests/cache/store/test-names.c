/* SPDX-License-Identifier: Apache-2.0 */
/* Names on the store: as they are written, and as they are read. */
#include "common.h"

#include <stdio.h>
#include <string.h>

Test(store_names, are_written_as_documented)
{
	char buf[SK_STORE_NAME_MAX];

	sk_step_name_format(buf, 1000);
	cr_assert_str_eq(buf, "step-000000001000");
	sk_step_name_format(buf, INT64_MAX);
	cr_assert_str_eq(buf, "step-9223372036854775807");
	sk_step_name_displaced(buf, 7, 12, 1);
	cr_assert_str_eq(buf, "step-000000000007.run-12");
	sk_step_name_displaced(buf, 7, 12, 3);
	cr_assert_str_eq(buf, "step-000000000007.run-12-3");
	sk_image_name_format(buf, 3, 8);
	cr_assert_str_eq(buf, "rank-00003-of-00008.safetensors");
	sk_image_name_format(buf, 123456, 1234567);
	cr_assert_str_eq(buf, "rank-123456-of-1234567.safetensors");
}

Test(store_names, are_read_back)
{
	char buf[SK_STORE_NAME_MAX];
	struct sk_step_name step;
	int32_t rank, world;

	for (uint64_t n = 1; n && n < INT64_MAX / 11; n = n * 11 + 3) {
		sk_step_name_format(buf, n);
		cr_assert(sk_step_name_parse(buf, &step));
		cr_assert(step.step == n && !step.displaced);
		sk_step_name_displaced(buf, n, n / 3, 1 + n % 3);
		cr_assert(sk_step_name_parse(buf, &step));
		cr_assert(step.step == n && step.displaced &&
			  step.run == n / 3);
		cr_assert_lt(strlen(buf), sizeof(((struct sk_stored *)0)->dir));
	}
	for (int32_t n = 0; n < INT32_MAX / 11; n = n * 11 + 3) {
		sk_image_name_format(buf, n, n + 1);
		cr_assert(sk_image_name_parse(buf, &rank, &world));
		cr_assert(rank == n && world == n + 1);
	}
}

Test(store_names, are_read_strictly)
{
	static const char *const steps[] = {
		"", "step-", "step-1", "step-00000000100", "Step-000000001000",
		"step-000000001000 ", "step-0000000001000", "step-00000000100x",
		"step-000000001000.run-", "step-000000001000.run-x",
		"step-000000001000.run-01", "step-000000001000.run-1-",
		"step-000000001000.run-1-02", "step-000000001000.run-1-2-3",
		"step-9223372036854775808", "step-18446744073709551615",
		"step-18446744073709551616", "step-99999999999999999999999",
		"step-+00000001000", "step--00000001000", ".step-000000001000",
		"step-000000001000/", "step-000000001000.tmp",
	};
	static const char *const images[] = {
		"", "rank-00003-of-00008", "rank-3-of-8.safetensors",
		"rank-00008-of-00008.safetensors",
		"rank-00003-of-00000.safetensors",
		"rank-000003-of-00008.safetensors",
		"rank-00003-of-00008.safetensors.tmp",
		".rank-00003-of-00008.safetensors",
		"rank-00003-of-2147483648.safetensors",
		"rank--0003-of-00008.safetensors",
		"rank-00003-of-00008.safetensorsx",
	};
	struct sk_step_name step;
	int32_t rank, world;
	uint64_t value;

	for (size_t i = 0; i < SK_ARRAY_SIZE(steps); i++)
		cr_assert_not(sk_step_name_parse(steps[i], &step), "%s",
			      steps[i]);
	for (size_t i = 0; i < SK_ARRAY_SIZE(images); i++)
		cr_assert_not(sk_image_name_parse(images[i], &rank, &world),
			      "%s", images[i]);
	cr_assert(sk_decimal_parse("0", &value) && value == 0);
	cr_assert_not(sk_decimal_parse("", &value));
	cr_assert_not(sk_decimal_parse("00", &value));
	cr_assert_not(sk_decimal_parse(" 1", &value));
	cr_assert_not(sk_decimal_parse("18446744073709551616", &value));
}

Test(store_names, of_leftovers_are_ours_alone)
{
	static const char *const names[] = {
		"step-000000000001", "rank-00000-of-00001.safetensors",
		SK_RUN_FILE, SK_OWNER_FILE,
	};
	static const char *const foreign[] = {
		"", ".", "..", ".tmp", ".deleted-", ".deleted-0123",
		".deleted-0123456789abcdef",
		".deleted-0123456789abcdef-0123456789abcdef",
		".deleted-0123456789abcdef-0123456789abcdef-",
		".deleted-0123456789abcdef-0123456789abcdef-step-1",
		".deleted-0123456789abcdef-0123-step-000000000001",
		".deleted-0123456789ABCDEF-0123456789abcdef-step-000000000001",
		".deleted-0123456789abcdefg-0123456789abcdef-step-000000000001",
		".nfs000000012", ".foo.0123456789abcdef.tmp",
		".rank-00000-of-00001.safetensors.tmp",
		"rank-00000-of-00001.safetensors.0123456789abcdef.tmp",
		".rank-00000-of-00001.safetensors.0123456789abcdef.tmp2",
		".run", ".owner", "step-000000000001",
	};
	struct sk_store store = { .instance = 0x01abcdef, .lives = true };
	char buf[SK_STORE_NAME_MAX], last[SK_STORE_NAME_MAX];
	char name[SK_STORE_NAME_MAX];
	struct sk_leftover left;
	uint32_t of;

	for (size_t i = 0; i < SK_ARRAY_SIZE(names); i++) {
		sk_temporary_name(&store, names[i], buf);
		cr_assert(sk_leftover_name(buf, &left), "%s", buf);
		cr_assert(left.instance == store.instance && !left.of);
		cr_assert_eq(buf[0], '.');
	}
	sk_step_name_displaced(name, INT64_MAX, UINT64_MAX, UINT32_MAX);
	sk_deleted_name(&store, name, UINT64_MAX, last);
	sk_deleted_name(&store, name, UINT64_MAX, buf);
	cr_assert(strcmp(last, buf));
	cr_assert(sk_leftover_name(buf, &left), "%s", buf);
	cr_assert_eq(left.instance, store.instance);
	cr_assert_eq(left.inode, UINT64_MAX);
	cr_assert_str_eq(left.of, name);
	for (size_t i = 0; i < SK_ARRAY_SIZE(foreign); i++)
		cr_assert_not(sk_leftover_name(foreign[i], &left), "%s",
			      foreign[i]);
	sk_alive_name_format(buf, 0x01abcdef);
	cr_assert(sk_alive_name_parse(buf, &of) && of == 0x01abcdef);
	cr_assert_not(sk_alive_name_parse(".agent-1abcdef", &of));
	cr_assert_not(sk_alive_name_parse(".agent-01ABCDEF", &of));
	cr_assert_not(sk_alive_name_parse(".agent-01abcdefg", &of));
}
