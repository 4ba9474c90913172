/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/on-device.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cuda/share.h"

static struct sk_cuda_uuid uuid;

static void find_device(void)
{
	struct sk_cuda_device *device;
	struct sk_cuda *cuda = NULL;

	CHECK(sk_cuda_new(sk_os_linux(), &cuda, NULL) == 0 &&
	      sk_cuda_device(cuda, 0, &device, NULL) == 0 &&
	      sk_cuda_uuid(device, &uuid, NULL) == 0, "no device");
	(void)sk_cuda_free(cuda);
}

/* In a process of its own, for what inherits an opened driver has none. */
void on_device_init(void)
{
	struct sk_cuda_uuid *shared = mmap(NULL, sizeof(uuid),
					   PROT_READ | PROT_WRITE,
					   MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pid_t pid = fork();
	int status;

	CHECK(shared != MAP_FAILED && pid >= 0, "no memory");
	if (!pid) {
		find_device();
		*shared = uuid;
		_exit(0);
	}
	CHECK(waitpid(pid, &status, 0) == pid && !status, "%#x", status);
	uuid = *shared;
	CHECK(munmap(shared, sizeof(uuid)) == 0, "munmap");
}

void on_device_name(uint8_t ret[16])
{
	memcpy(ret, uuid.bytes, sizeof(uuid.bytes));
}

int on_device_slot(struct rank *r)
{
	uint8_t name[16];

	on_device_name(name);
	return rank_device_slot(r, name);
}

int on_device_stand(struct rank *r, const struct rig *rig,
		    const struct rank_options *o, int64_t step)
{
	int slot, status;

	CHECK_STATUS(rank_open(r, rig, o), 0, &r->msg);
	AWAIT((status = on_device_slot(r)) != -EAGAIN, "it is not made");
	CHECK_STATUS(status, 0, &r->msg);
	slot = rank_slot(r, step, 0);
	CHECK(slot >= 0, "%s", rig_why(&r->msg));
	r->msg = (struct sk_msg){ .type = SK_MSG_DEVICE_SEAL, .body.seal = {
		.state = r->state, .step = step, .slot = (uint32_t)slot } };
	CHECK_STATUS(rig_call(r->sock, &r->msg, NULL, 0, NULL, NULL), 0,
		     &r->msg);
	return slot;
}
