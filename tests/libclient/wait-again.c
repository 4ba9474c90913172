/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A snapshot waits for a slot as long as it was given, though the one that had
 * come to be free is in use again when it is asked for. Argument: path of
 * shardkeepd.
 */
#include "libclient/restore/common.h"

/* The trainer's, and what it goes by. */
static struct sk_os os;

/* Keeps step 1, by connections of its own. */
static struct rank reader;

static bool holds;
static unsigned waits, taken_again;

static void hold(bool on)
{
	if (holds == on)
		return;
	holds = on;
	rank_manage(&reader, 1, on ? SK_MSG_PIN : SK_MSG_UNPIN, 0);
}

/* It lets go when it is waited for, and is back before it is asked again. */
static ssize_t send_and_hold(const struct sk_os *self, int fd,
			     const struct msghdr *h, int flags)
{
	const struct sk_msg *msg = h->msg_iov->iov_base;

	(void)self;
	if (msg->type == SK_MSG_SLOT_WAIT) {
		waits++;
		hold(false);
	} else if (msg->type == SK_MSG_SLOT && waits && taken_again < 2) {
		taken_again++;
		hold(true);
	}
	return sk_os_linux()->sendmsg(sk_os_linux(), fd, h, flags);
}

static void take(struct sk_state *state, int64_t step, uint32_t wait_ms)
{
	const struct sk_snapshot_options o = { .wait_ms = wait_ms };

	CHECK(!sk_snapshot(state, step, &o), "step %d: %s", (int)step,
	      sk_error());
	CHECK(!sk_wait(state, step, SK_COMPLETE, 60000), "%s", sk_error());
}

static void waits_on(struct scene *scene)
{
	struct sk_state *state;
	struct sk *sk;
	char *w = rank_memory(5000, 1);

	os = *sk_os_linux();
	CHECK(!sk_open_on(&os, &(struct sk_options){
		.socket = scene->socket, .threads = 1 }, &sk), "%s",
	      sk_error());
	CHECK(!sk_state_create(sk, &(struct sk_job){ .name = "waits",
		.world = 1, .flush_every = SK_FLUSH_NEVER }, &state), "%s",
	      sk_error());
	CHECK(!sk_state_tensor(state, &(struct sk_tensor){ .name = "w",
		.dtype = SK_U8, .ndim = 1, .shape = { 5000 }, .data = w }));
	take(state, 1, 0);
	take(state, 2, 0);
	CHECK(!sk_open(&(struct sk_options){ .socket = scene->socket },
		       &reader.sk), "%s", sk_error());
	reader.scene = scene;
	reader.job = "waits";
	hold(true);
	os.sendmsg = send_and_hold;
	take(state, 3, 60000);
	CHECK(waits == 3 && taken_again == 2, "%u waits", waits);
	sk_state_free(state);
	sk_close(sk);
	sk_close(reader.sk);
}

int main(int argc, char **argv)
{
	struct scene scene;

	scene_open(&scene, argc, argv);
	waits_on(&scene);
	scene_close(&scene);
	return 0;
}
