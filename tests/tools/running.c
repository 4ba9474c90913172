/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is exported of a job that runs: the newest snapshot that is whole, not
 * the one that a rank is still at; and no older one in the place of a damaged
 * one. Arguments: shardkeepd, cachectl.
 */
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/rig.h"

struct done {
	int code;
	char said[4096];
};

static struct done export(const struct rig *rig, const char *cachectl,
			  const char *what)
{
	struct done done = { 0 };
	char command[512];
	FILE *out;
	size_t n;
	int status;

	(void)snprintf(command, sizeof(command), "'%s' --socket '%s' export "
		       "'%s' '%s/out.safetensors' 2>&1 </dev/null", cachectl,
		       rig->socket, what, rig->dir);
	out = popen(command, "r");
	CHECK(out, "popen");
	n = fread(done.said, 1, sizeof(done.said) - 1, out);
	done.said[n] = '\0';
	status = pclose(out);
	CHECK(WIFEXITED(status), "%s: %d", command, status);
	done.code = WEXITSTATUS(status);
	return done;
}

static void check(const struct done *done, int code, const char *said)
{
	CHECK(done->code == code && strstr(done->said, said),
	      "exit code %d, \"%s\"", done->code, done->said);
}

/* Somebody has found it damaged. */
static void report(const struct rank *r, int64_t step)
{
	struct sk_wire_image *images;
	struct sk_msg msg = { .type = SK_MSG_REPORT_BAD };
	size_t n;

	images = list_images(r->sock, r->job, step, &n);
	CHECK(n > 0, "images");
	msg.body.bad = (struct sk_wire_bad){ .image = images[0].image,
					     .place = images[0].place };
	CHECK_STATUS(rig_call(r->sock, &msg, NULL, 0, NULL, NULL), 0, &msg);
	free(images);
}

int main(int argc, char **argv)
{
	struct rank_options o = { .job = "runs", .world = 2, .slots = 3 };
	struct rank ranks[2];
	struct done done;
	struct rig rig;

	CHECK(argc == 3, "usage: %s SHARDKEEPD CACHECTL", argv[0]);
	rig_init(&rig, argv[1]);
	rig_start(&rig, NULL);
	for (o.rank = 0; o.rank < 2; o.rank++)
		CHECK_STATUS(rank_open(&ranks[o.rank], &rig, &o), 0,
			     &ranks[o.rank].msg);
	rank_snapshot(&ranks[0], 1);
	done = export(&rig, argv[2], "runs");
	check(&done, 1, "runs is not complete");
	rank_snapshot(&ranks[1], 1);
	rank_snapshot(&ranks[0], 2);
	done = export(&rig, argv[2], "runs");
	check(&done, 0, "step 2 of job \"runs\" is not complete");
	CHECK(strstr(done.said, "step 1 is taken"), "%s", done.said);
	done = export(&rig, argv[2], "runs/2");
	check(&done, 1, "runs/2 is not complete");
	rank_snapshot(&ranks[1], 2);
	done = export(&rig, argv[2], "runs");
	check(&done, 0, "");
	CHECK(!strstr(done.said, "is taken"), "%s", done.said);
	report(&ranks[0], 2);
	done = export(&rig, argv[2], "runs");
	check(&done, 5, "runs is not complete");
	for (int i = 0; i < 2; i++)
		rank_close(&ranks[i]);
	CHECK(rig_stop(&rig) == 0, "exit status");
	rig_remove(&rig);
	return 0;
}
