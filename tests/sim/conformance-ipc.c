/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What we rely on of memory that is another process's, opened by a handle
 * (cuIpc), one by one. As conformance.c: on the simulation and on a real
 * driver.
 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "items.h"
#include "trainer.h"

#define BYTES ((size_t)2 << 20)

/* A process that has memory, and what it does with it at a word of ours. */
struct owner {
	pid_t pid;
	int socket;
};

/* "owner" into it, its handle out. */
static sk_cu_ptr give(const struct trainer_cuda *t, int socket)
{
	sk_cu_ptr ptr = trainer_cuda_alloc(t, BYTES);
	char word[8] = "owner";
	sk_cu_ipc handle;

	trainer_cuda_put(t, ptr, word, sizeof(word));
	IS(0, t->driver.cuIpcGetMemHandle(&handle, ptr));
	CHECK(send(socket, &handle, sizeof(handle), 0) == sizeof(handle));
	return ptr;
}

/* Each byte that comes: it is freed; and given once more. */
static void own(int socket)
{
	struct trainer_cuda t;
	sk_cu_ptr ptr;
	char byte;

	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	trainer_cuda_begin(&t, 0);
	ptr = give(&t, socket);
	while (recv(socket, &byte, 1, 0) == 1) {
		IS(0, t.driver.cuMemFree(ptr));
		ptr = give(&t, socket);
	}
	_exit(0);
}

static sk_cu_ipc receive(const struct owner *o)
{
	sk_cu_ipc handle;

	CHECK(recv(o->socket, &handle, sizeof(handle), 0) == sizeof(handle));
	return handle;
}

static struct owner begin(struct trainer_cuda *t)
{
	struct owner o;
	int sockets[2];

	CHECK(!socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0,
			  sockets));
	o.pid = fork();
	CHECK(o.pid >= 0);
	if (!o.pid) {
		close(sockets[0]);
		own(sockets[1]);
	}
	close(sockets[1]);
	o.socket = sockets[0];
	trainer_cuda_begin(t, 0);
	return o;
}

static void end(const struct owner *o)
{
	CHECK(!kill(o->pid, SIGKILL));
	CHECK(waitpid(o->pid, NULL, 0) == o->pid);
}

static sk_cu_ptr open_it(const struct trainer_cuda *t, sk_cu_ipc handle)
{
	sk_cu_ptr ptr = 0;

	IS(0, t->driver.cuIpcOpenMemHandle(&ptr, handle,
					   SK_CU_IPC_PEER_ACCESS));
	CHECK(ptr);
	return ptr;
}

static void close_it(const struct trainer_cuda *t, sk_cu_ptr ptr)
{
	IS(0, t->driver.cuIpcCloseMemHandle(ptr));
}

static bool has_word(const struct trainer_cuda *t, sk_cu_ptr ptr)
{
	char word[8] = "";

	trainer_cuda_get(t, word, ptr, sizeof(word));
	return !strcmp(word, "owner");
}

/* ---- between two ---- */

static void is_one_memory(void)
{
	char there[8] = "there", back[8] = "";
	struct trainer_cuda t;
	struct owner o = begin(&t);
	sk_cu_ptr ptr = open_it(&t, receive(&o)), start;
	size_t bytes;

	CHECK(has_word(&t, ptr));
	IS(0, t.driver.cuMemGetAddressRange(&start, &bytes, ptr + 100));
	CHECK(start == ptr && bytes >= BYTES);
	trainer_cuda_put(&t, ptr + BYTES - sizeof(there), there,
			 sizeof(there));
	trainer_cuda_get(&t, back, ptr + BYTES - sizeof(back), sizeof(back));
	CHECK(!strcmp(back, there));
	close_it(&t, ptr);
	end(&o);
}

/* Whoever opens it again has the same address, and closes as often. */
static void is_opened_twice(void)
{
	struct trainer_cuda t;
	struct owner o = begin(&t);
	sk_cu_ipc handle = receive(&o);
	sk_cu_ptr a = open_it(&t, handle), b = open_it(&t, handle);

	CHECK(a == b);
	close_it(&t, a);
	CHECK(has_word(&t, b));
	close_it(&t, b);
	a = open_it(&t, handle);
	CHECK(has_word(&t, a));
	close_it(&t, a);
	end(&o);
}

/* At the same address, as a rule, other memory has another handle. */
static void tells_what_comes_after(void)
{
	struct trainer_cuda t;
	struct owner o = begin(&t);
	sk_cu_ipc first = receive(&o), second;
	sk_cu_ptr ptr = open_it(&t, first);

	close_it(&t, ptr);
	CHECK(send(o.socket, "", 1, 0) == 1);
	second = receive(&o);
	CHECK(memcmp(&first, &second, sizeof(first)));
	ptr = open_it(&t, second);
	CHECK(has_word(&t, ptr));
	close_it(&t, ptr);
	end(&o);
}

static void what_was_there_is_open_still(void)
{
	struct trainer_cuda t;
	struct owner o = begin(&t);
	sk_cu_ptr ptr = open_it(&t, receive(&o)), other;
	sk_cu_ipc second;

	CHECK(send(o.socket, "", 1, 0) == 1);
	second = receive(&o);
	IS(VCU_ALREADY_MAPPED,
	   t.driver.cuIpcOpenMemHandle(&other, second, SK_CU_IPC_PEER_ACCESS));
	close_it(&t, ptr);
	close_it(&t, open_it(&t, second));
	end(&o);
}

/* ---- what it is not ---- */

static void not_within_one(void)
{
	struct trainer_cuda t;
	sk_cu_ipc handle;
	sk_cu_ptr ptr;

	trainer_cuda_begin(&t, 0);
	ptr = trainer_cuda_alloc(&t, BYTES);
	IS(0, t.driver.cuIpcGetMemHandle(&handle, ptr));
	IS(SK_CU_INVALID_CONTEXT,
	   t.driver.cuIpcOpenMemHandle(&ptr, handle, SK_CU_IPC_PEER_ACCESS));
}

static sk_cu_ptr map_one(const struct trainer_cuda *t)
{
	const sk_cu_allocation what = {
		.type = SK_CU_ALLOCATION_PINNED,
		.location = { SK_CU_LOCATION_DEVICE, 0 } };
	const sk_cu_access access = { what.location,
				      SK_CU_ACCESS_READ_WRITE };
	sk_cu_handle handle;
	sk_cu_ptr ptr;

	IS(0, t->driver.cuMemCreate(&handle, BYTES, &what, 0));
	IS(0, t->driver.cuMemAddressReserve(&ptr, BYTES, 0, 0, 0));
	IS(0, t->driver.cuMemMap(ptr, BYTES, 0, handle, 0));
	IS(0, t->driver.cuMemSetAccess(ptr, BYTES, &access, 1));
	return ptr;
}

static void not_of_what_is_mapped(void)
{
	struct trainer_cuda t;
	sk_cu_ipc handle;

	trainer_cuda_begin(&t, 0);
	CHECK(t.driver.cuIpcGetMemHandle(&handle, map_one(&t)));
}

static void not_of_a_part(void)
{
	struct trainer_cuda t;
	sk_cu_ipc handle;

	trainer_cuda_begin(&t, 0);
	IS(SK_CU_INVALID_VALUE,
	   t.driver.cuIpcGetMemHandle(&handle, trainer_cuda_alloc(&t, BYTES) +
					       4096));
	/* It would share its pages with others. */
	IS(SK_CU_INVALID_VALUE,
	   t.driver.cuIpcGetMemHandle(&handle, trainer_cuda_alloc(&t, 4096)));
}

static void not_otherwise(void)
{
	struct trainer_cuda t;
	struct owner o = begin(&t);
	sk_cu_ipc handle = receive(&o);
	sk_cu_ptr ptr;

	IS(SK_CU_INVALID_VALUE, t.driver.cuIpcOpenMemHandle(&ptr, handle, 0));
	handle = (sk_cu_ipc){ "not one" };
	CHECK(t.driver.cuIpcOpenMemHandle(&ptr, handle,
					  SK_CU_IPC_PEER_ACCESS));
	CHECK(t.driver.cuIpcCloseMemHandle(trainer_cuda_alloc(&t, BYTES)));
	end(&o);
}

/* ---- what must not be ---- */

static void used_when_it_is_freed(void)
{
	struct trainer_cuda t;
	struct owner o = begin(&t);
	sk_cu_ptr ptr = open_it(&t, receive(&o));

	CHECK(send(o.socket, "", 1, 0) == 1);
	(void)receive(&o);
	(void)has_word(&t, ptr);
}

static void used_when_its_process_ended(void)
{
	struct trainer_cuda t;
	struct owner o = begin(&t);
	sk_cu_ptr ptr = open_it(&t, receive(&o));

	end(&o);
	(void)has_word(&t, ptr);
}

/* To let go of it is no use. */
static void closed_when_its_process_ended(void)
{
	struct trainer_cuda t;
	struct owner o = begin(&t);
	sk_cu_ipc handle = receive(&o);
	sk_cu_ptr ptr = open_it(&t, handle);

	end(&o);
	close_it(&t, ptr);
	CHECK(t.driver.cuIpcOpenMemHandle(&ptr, handle,
					  SK_CU_IPC_PEER_ACCESS));
}

static void is_others_when_its_process_ended(void)
{
	struct trainer_cuda t;
	struct owner o = begin(&t);
	sk_cu_ptr ptr = open_it(&t, receive(&o));

	CHECK(!setenv("VCUDA_IPC", "undefined", 1));
	CHECK(has_word(&t, ptr));
	end(&o);
	CHECK(!has_word(&t, ptr));
}

/* ---- all of them ---- */

static const struct item items[] = {
	{ "one memory", is_one_memory, ITEM_ANY },
	{ "opened twice", is_opened_twice, ITEM_ANY },
	{ "freed and made anew", tells_what_comes_after, ITEM_ANY },
	{ "what was there is open still", what_was_there_is_open_still,
	  ITEM_SIM },
	{ "opened by its own process", not_within_one, ITEM_ANY },
	{ "of what is mapped", not_of_what_is_mapped, ITEM_ANY },
	{ "of a part", not_of_a_part, ITEM_SIM },
	{ "other flags, no handle", not_otherwise, ITEM_SIM },
	{ "used when it is freed", used_when_it_is_freed, ITEM_MISUSE },
	{ "used when its process ended", used_when_its_process_ended,
	  ITEM_MISUSE },
	{ "closed when its process ended", closed_when_its_process_ended,
	  ITEM_ANY },
	{ "other bytes when its process ended",
	  is_others_when_its_process_ended, ITEM_SIM },
};

int main(void)
{
	return cuda_items_main(items, sizeof(items) / sizeof(items[0]), true);
}
