/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies that stand in device slots, by their agent: which there are, and when
 * one that its rank left is given back, on a clock that the test moves.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/on-device.h"
#include "agent/whole.h"
#include "memory/extent.h"
#include "wire/version.h"
#include "worker/worker.h"

#define SECOND UINT64_C(1000000000)
#define JOB "left"
#define TURNS 30
#define USED "shardkeep_device_memory_used_bytes"

/* ---- a rank ---- */

/* Its first step stands on the device when it is sealed. */
static void come(struct rank *r, const struct rig *rig)
{
	int slot = on_device_stand(r, rig, &(struct rank_options){
		.job = JOB, .world = 1, .flush_every = 1u << 20 }, 1);

	rank_fill(r, slot, 1);
	CHECK_STATUS(rank_seal(r, slot, 1), 0, &r->msg);
}

/* ---- whoever reads ---- */

static uint64_t image_of(int sock)
{
	struct sk_wire_image *images;
	uint64_t image;
	size_t n;

	images = list_known(sock, JOB, 1, &n);
	CHECK(n && images[0].image, "%zu images", n);
	/* It may be on disk as well by now. */
	image = images[0].image;
	CHECK(n == 1 || (n == 2 && images[1].image == image), "%zu images", n);
	free(images);
	return image;
}

static int open_copy(int sock, uint64_t image)
{
	struct sk_msg msg = { .type = SK_MSG_DEVICE_OPEN,
			      .body.device_open.image = image };

	on_device_name(msg.body.device_open.uuid);
	return rig_call(sock, &msg, NULL, 0, NULL, NULL);
}

static void close_copy(int sock, uint64_t image)
{
	struct sk_msg msg = { .type = SK_MSG_CLOSE, .body.open = {
		.image = image, .place = SK_PLACE_DEVICE } };

	CHECK_STATUS(rig_call(sock, &msg, NULL, 0, NULL, NULL), 0, &msg);
}

/* A device of which nothing is taken is not in the list. */
static double used(int sock)
{
	double bytes = stat_value(sock, USED);

	return bytes < 0 ? 0 : bytes;
}

/* ---- versions ---- */

/* Who speaks a version in which nobody asks before it writes there again has no
 * copy there; everybody else's is one. */
static void test_version(unsigned version, int want)
{
	struct whole w;
	struct rank r;
	int sock;

	whole_init(&w);
	w.options.device_memory = 8u << 20;
	whole_start(&w);
	rig_speak(version);
	come(&r, &w.rig);
	rig_speak(0);
	sock = rig_connect(&w.rig);
	CHECK(used(sock) > 0, "it has no device slot");
	CHECK(open_copy(sock, image_of(sock)) == want, "of version %u",
	      version);
	close(sock);
	rig_speak(version);
	rank_close(&r);
	rig_speak(0);
	CHECK(rig_stop(&w.rig) == 0, "exit status");
	whole_remove(&w);
}

/* ---- left ---- */

static void let_turn(int sock)
{
	rig_turns(sock, TURNS);
}

static void pass(struct whole *w, int sock, uint64_t seconds)
{
	sk_fault_os_advance(w->fault, seconds * SECOND);
	let_turn(sock);
}

/* An agent, and a copy that is left there: its rank's process has ended. */
static int begin(struct whole *w, uint64_t *ret_image)
{
	int sock, status;
	pid_t pid;

	whole_init(w);
	w->options.device_memory = 8u << 20;
	whole_start(w);
	pid = fork();
	CHECK(pid >= 0, "fork");
	if (!pid) {
		struct rank r;

		come(&r, &w->rig);
		_exit(0);
	}
	CHECK(waitpid(pid, &status, 0) == pid && !status, "%#x", status);
	sock = rig_connect(&w->rig);
	*ret_image = image_of(sock);
	/* Until the agent knows that it has ended, it is nobody's. */
	AWAIT(open_copy(sock, *ret_image) == 0, "nothing is left");
	close_copy(sock, *ret_image);
	return sock;
}

static void end(struct whole *w, int sock)
{
	close(sock);
	CHECK(rig_stop(&w->rig) == 0, "exit status");
	whole_remove(w);
}

static void test_ten_minutes(void)
{
	struct whole w;
	uint64_t image;
	int sock = begin(&w, &image);

	pass(&w, sock, 598);
	CHECK(used(sock) > 0, "too early");
	CHECK(open_copy(sock, image) == 0, "too early");
	close_copy(sock, image);
	pass(&w, sock, 10);
	AWAIT(used(sock) == 0, "it is kept");
	CHECK(open_copy(sock, image) == -ENOENT, "it is read");
	end(&w, sock);
}

/* What is read then is given back when it is read no more, and to nobody
 * else. */
static void test_read_for_long(void)
{
	struct whole w;
	uint64_t image;
	int sock = begin(&w, &image), other = rig_connect(&w.rig);

	CHECK(open_copy(sock, image) == 0, "it is read");
	pass(&w, sock, 700);
	CHECK(used(sock) > 0, "under its reader");
	CHECK(open_copy(other, image) == -ENOENT, "its time is over");
	close_copy(sock, image);
	AWAIT(used(sock) == 0, "it is kept");
	close(other);
	end(&w, sock);
}

/* What a dead rank left is on its way to disk first. */
static void evict(int sock)
{
	struct sk_msg msg;
	int status;

	AWAIT((status = manage(sock, SK_MSG_EVICT, JOB, 1, SK_EVICT_MEMORY |
			       SK_EVICT_FORCE, &msg)) != -EBUSY, "a flush");
	CHECK_STATUS(status, 0, &msg);
}

static void test_image_gone(void)
{
	struct whole w;
	uint64_t image;
	int sock = begin(&w, &image);

	evict(sock);
	AWAIT(used(sock) == 0, "it is kept");
	CHECK(open_copy(sock, image) == -ENOENT, "it is read");
	end(&w, sock);
}

/* Nor is the image while somebody reads its copy; a reader that dies lets
 * go. */
static void test_gone_under_reader(void)
{
	struct whole w;
	struct sk_msg msg;
	uint64_t image;
	int sock = begin(&w, &image), other = rig_connect(&w.rig);

	CHECK(open_copy(other, image) == 0, "it is read");
	CHECK(manage(sock, SK_MSG_EVICT, JOB, 1, SK_EVICT_MEMORY |
		     SK_EVICT_FORCE, &msg) == -EBUSY, "under its reader");
	let_turn(sock);
	CHECK(used(sock) > 0, "under its reader");
	close(other);
	evict(sock);
	AWAIT(used(sock) == 0, "it is kept");
	end(&w, sock);
}

/* ---- not made yet ---- */

/* Both are there when the agent looks. */
static void ask_and_leave(struct rank *r)
{
	const struct sk_layout *l = r->layouts[0];
	const struct sk_extent all = { .from = l->header_bytes,
				       .to = l->image_bytes };
	struct sk_msg ask = { .type = SK_MSG_DEVICE_SLOT,
			      .body.device_slot = { .state = r->state,
						    .n_extents = 1 } };
	struct sk_msg leave = { .type = SK_MSG_UNREGISTER,
				.body.state = r->state };
	int fd = memfd_create("extents", MFD_CLOEXEC);

	CHECK(fd >= 0 && write(fd, &all, sizeof(all)) == sizeof(all),
	      "memfd");
	on_device_name(ask.body.device_slot.uuid);
	CHECK(sk_channel_send(sk_os_linux(), r->sock, &ask, &fd, 1) == 0,
	      "send");
	rig_send(r->sock, &leave);
	close(fd);
	CHECK(rig_reply(r->sock, &ask, NULL, NULL) == -EAGAIN, "%s",
	      rig_why(&ask));
	CHECK_STATUS(rig_reply(r->sock, &leave, NULL, NULL), 0, &leave);
}

/* Who leaves while a worker makes its memory, or is about to, holds up nobody,
 * and takes nothing along. */
static void test_left_unmade(void)
{
	const struct rank_options first = { .job = "first", .world = 1 };
	struct rank r, before;
	struct whole w;

	whole_init(&w);
	w.options.device_memory = 8u << 20;
	whole_start(&w);
	for (int i = 0; i < 6; i++) {
		/* The worker may have another one's to make before. */
		if (i > 2) {
			CHECK_STATUS(rank_open(&before, &w.rig, &first), 0,
				     &before.msg);
			(void)on_device_slot(&before);
		}
		CHECK_STATUS(rank_open(&r, &w.rig, &(struct rank_options){
			.job = "unmade", .world = 1 }), 0, &r.msg);
		if (i % 2) {
			(void)on_device_slot(&r);
			CHECK_STATUS(rank_unregister(&r), 0, &r.msg);
		} else {
			ask_and_leave(&r);
		}
		rank_close(&r);
		if (i > 2) {
			AWAIT(on_device_slot(&before) == 0, "it is not made: %s",
			      rig_why(&before.msg));
			CHECK_STATUS(rank_unregister(&before), 0, &before.msg);
			rank_close(&before);
		}
	}
	come(&r, &w.rig);
	CHECK_STATUS(rank_unregister(&r), 0, &r.msg);
	AWAIT(used(r.sock) == 0, "%.0f bytes are nobody's", used(r.sock));
	rank_close(&r);
	CHECK(rig_stop(&w.rig) == 0, "exit status: %s", whole_log(&w));
	whole_remove(&w);
}

int main(int argc, char **argv)
{
	if (argc == 3 && strcmp(argv[1], "--gpu-worker") == 0)
		return worker_run(sk_os_linux(), atoi(argv[2]));
	on_device_init();
	test_version(SK_WIRE_VERSION, 0);
	test_version(5, -ENOENT);
	test_ten_minutes();
	test_read_for_long();
	test_image_gone();
	test_gone_under_reader();
	test_left_unmade();
	return 0;
}
