/* SPDX-License-Identifier: Apache-2.0 */
/* Runs that meet in one step: each keeps what is its. */
#include "common.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

Test(store, keeps_runs_apart)
{
	struct sk_err err = { "" };
	struct sk_store *store;
	struct place p;

	store = make_store(&p, NULL);
	cr_assert_eq(put(store, 1, 5, 0), 0);
	cr_assert_eq(put(store, 1, 5, 1), 0);
	cr_assert_eq(put(store, 1, 6, 0), 0);
	/* A newer run takes the name; what was there can still be read. */
	cr_assert_eq(put(store, 2, 5, 0), 0);
	cr_assert(exists(&p, "job/step-000000000005.run-1"));
	cr_assert(holds(store, 2, 5, 0));
	cr_assert(holds(store, 1, 5, 0) && holds(store, 1, 5, 1));
	/* An older one is refused, whatever the rank. */
	cr_assert_eq(put_with(store, SK_IO_AUTO, 1, 5, 3, &err), -ESTALE);
	cr_assert_not_null(strstr(err.text, "run 2"), "%s", err.text);
	cr_assert_eq(put(store, 1, 5, 0), -ESTALE);
	cr_assert_eq(put(store, 1, 6, 1), 0);
	cr_assert_eq(put(store, 2, 5, 1), 0);
	/* The same again is written anew. */
	cr_assert_eq(put(store, 2, 5, 1), 0);
	cr_assert_eq(scan(store, NULL), 6);

	cr_assert_eq(settle(store, "job", 6, 1), 0);
	cr_assert_eq(scan(store, NULL), 6);
	cr_assert_eq(settle(store, "job", 5, 2), 0);
	cr_assert_not(exists(&p, "job/step-000000000005.run-1"));
	cr_assert_eq(scan(store, NULL), 4);
	cr_assert(holds(store, 2, 5, 0) && holds(store, 1, 6, 0));
	sk_store_close(store);
	place_remove(&p);
}

Test(store, finds_a_free_name_for_each_older_run)
{
	struct sk_store *store;
	struct place p;

	store = make_store(&p, NULL);
	for (uint64_t run = 1; run < 5; run++)
		cr_assert_eq(put(store, run, 5, 0), 0);
	cr_assert_eq(scan(store, NULL), 4);
	cr_assert_eq(delete(store, "job", "step-000000000005", 4, NULL),
		     0);
	/* With nothing under the name, an old run may come again. */
	cr_assert_eq(put(store, 1, 5, 2), 0);
	cr_assert_eq(settle(store, "job", 5, 1), 0);
	cr_assert_eq(scan(store, NULL), 4);
	cr_assert_eq(put(store, 6, 5, 0), 0);
	cr_assert(exists(&p, "job/step-000000000005.run-1-2"));
	cr_assert_eq(scan(store, NULL), 5);
	cr_assert_eq(settle(store, "job", 5, 6), 0);
	cr_assert_eq(scan(store, NULL), 1);
	cr_assert(holds(store, 6, 5, 0));
	sk_store_close(store);
	place_remove(&p);
}

/* Two lives of one number: who comes second has lost the step. */
Test(store, refuses_strangers_of_the_same_number)
{
	const struct sk_store_run stranger = { 4, 99 };
	struct sk_err err = { "" };
	struct sk_store *store;
	struct place p;

	store = make_store(&p, NULL);
	cr_assert_eq(put(store, 4, 5, 0), 0);
	for (int32_t rank = 0; rank < 4; rank++) {
		cr_assert_eq(put_stranger(store, 4, 5, rank, &err), -ESTALE);
		cr_assert_not_null(strstr(err.text, "another run 4"), "%s",
				   err.text);
	}
	cr_assert_eq(scan(store, NULL), 1);
	cr_assert(holds(store, 4, 5, 0));
	/* Nor does it delete it, or what the step displaced. */
	cr_assert_eq(put(store, 3, 6, 0), 0);
	cr_assert_eq(put(store, 4, 6, 0), 0);
	cr_assert_eq(sk_store_delete(store, "job", "step-000000000005",
				     &stranger, &err), -ESTALE);
	cr_assert_eq(sk_store_settle(store, "job", 6, &stranger, NULL), 0);
	cr_assert(exists(&p, "job/step-000000000006.run-3"));
	cr_assert_eq(scan(store, NULL), 3);
	sk_store_close(store);
	place_remove(&p);
}

/* A whole run is not settled away under a newer one that is not whole. */
Test(store, settles_only_who_holds_the_step)
{
	struct sk_store *store;
	struct place p;

	store = make_store(&p, NULL);
	cr_assert_eq(put(store, 2, 5, 0), 0);
	cr_assert_eq(put(store, 3, 5, 0), 0);
	cr_assert_eq(settle(store, "job", 5, 2), 0);
	cr_assert(exists(&p, "job/step-000000000005.run-2"));
	cr_assert_eq(settle(store, "job", 5, 3), 0);
	cr_assert_not(exists(&p, "job/step-000000000005.run-2"));
	sk_store_close(store);
	place_remove(&p);
}

/* Each bit of ".run" is under its checksum: no flip makes it another's. */
Test(store, sees_each_flipped_bit_of_a_run_file)
{
	struct sk_store_run run = { 7, 0xfedcba9876543210u }, back;
	char text[SK_RUN_TEXT_MAX];

	sk_run_text_format(text, &run);
	cr_assert(sk_run_text_parse(text, &back));
	cr_assert(sk_store_run_equal(&run, &back));
	for (size_t bit = 0; bit < 8 * strlen(text); bit++) {
		char hurt[SK_RUN_TEXT_MAX];

		strcpy(hurt, text);
		hurt[bit / 8] ^= (char)(1 << bit % 8);
		cr_assert_not(sk_run_text_parse(hurt, &back), "%s", hurt);
	}
	run.number = SK_RUN_MAX + 1;
	sk_run_text_format(text, &run);
	cr_assert_not(sk_run_text_parse(text, &back), "out of range");
}

/* A directory of a step's name that is none of ours stays as it is. */
Test(store, leaves_what_is_not_ours)
{
	static const char *const names[] = { "file", ".hidden", "rank-0",
					     "rank-00000-of-00001.safetensor" };
	struct sk_store *store;
	struct place p;

	store = make_store(&p, NULL);
	make_dir(&p, "job");
	for (size_t i = 0; i < SK_ARRAY_SIZE(names); i++) {
		struct sk_err err = { "" };
		char name[128];

		(void)snprintf(name, sizeof(name), "job/step-%012zu", i);
		make_dir(&p, name);
		strcat(name, "/");
		strcat(name, names[i]);
		make_file(&p, name, "precious");
		cr_assert_eq(put_with(store, SK_IO_THREADS, 1, i, 0, &err),
			     -EEXIST);
		cr_assert(strstr(err.text, "move it away"), "%s", err.text);
		cr_assert_eq(settle(store, "job", i, 1), 0);
		cr_assert(exists(&p, name), "%s", names[i]);
	}
	sk_store_close(store);
	place_remove(&p);
}

/* With an image, whatever is in it, it is ours. */
Test(store, takes_what_has_an_image_for_ours)
{
	struct sk_store *store;
	struct place p;

	store = make_store(&p, NULL);
	make_dir(&p, "job");
	make_dir(&p, "job/step-000000000001");
	make_file(&p, "job/step-000000000001/rank-00000-of-00001.safetensors",
		  "damaged");
	make_file(&p, "job/step-000000000001/notes", "gone with it");
	cr_assert_eq(put(store, 1, 1, 0), 0);
	cr_assert_eq(settle(store, "job", 1, 1), 0);
	cr_assert(holds(store, 1, 1, 0));
	sk_store_close(store);
	place_remove(&p);
}

/* What says no run is older than all that do. */
Test(store, moves_what_has_no_run_aside)
{
	static const char *const marks[] = { "", "x\n", "7", "-1\n", "07\n",
		"99999999999999999999999\n", "7\n",
		"7 00000000000003ef\n",
		"7 00000000000003ef 0000000000000000\n" };
	struct sk_store *store;
	struct place p;

	store = make_store(&p, NULL);
	make_dir(&p, "job");
	make_dir(&p, "job/step-000000000009");	/* empty: just taken */
	cr_assert_eq(put(store, 1, 9, 0), 0);
	for (size_t i = 0; i < SK_ARRAY_SIZE(marks); i++) {
		char name[64];

		(void)snprintf(name, sizeof(name), "job/step-%012zu", i);
		make_dir(&p, name);
		strcat(name, "/.run");
		make_file(&p, name, marks[i]);
		cr_assert_eq(put(store, 1, i, 0), 0);
		(void)snprintf(name, sizeof(name), "job/step-%012zu.run-0", i);
		cr_assert(exists(&p, name), "%s", marks[i]);
		cr_assert_eq(settle(store, "job", i, 1), 0);
		cr_assert_not(exists(&p, name));
	}
	sk_store_close(store);
	place_remove(&p);
}
