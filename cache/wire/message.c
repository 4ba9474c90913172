/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/message.h"

#include <string.h>

#include "tensor/mesh.h"

int sk_wire_check_id(const struct sk_wire_id *id, struct sk_err *err)
{
	if (!memchr(id->job, 0, sizeof(id->job)))
		return sk_err_set(err, -EINVAL,
				  "a job name without an end");
	if (id->job[0] && sk_job_check(id->job, err) < 0)
		return -EINVAL;
	if (id->step < -1)
		return sk_err_set(err, -EINVAL, "step %lld is negative",
				  (long long)id->step);
	if (id->run > SK_RUN_MAX && id->run != SK_RUN_READERS)
		return sk_err_set(err, -EINVAL, "run %llu is out of range; "
				  "runs are 1 to %llu",
				  (unsigned long long)id->run,
				  (unsigned long long)SK_RUN_MAX);
	if (id->rank < -1 || id->world < 0 || id->world > SK_MESH_MAX_RANKS)
		return sk_err_set(err, -EINVAL, "rank %d of %d ranks",
				  id->rank, id->world);
	return 0;
}

static const char *const type_names[SK_MSG_TYPE_COUNT] = {
	[SK_MSG_HELLO] = "hello",
	[SK_MSG_REGISTER] = "register",
	[SK_MSG_PREPARE] = "prepare",
	[SK_MSG_SLOT] = "slot",
	[SK_MSG_SLOT_WAIT] = "slot-wait",
	[SK_MSG_SEAL] = "seal",
	[SK_MSG_DISCARD] = "discard",
	[SK_MSG_UNREGISTER] = "unregister",
	[SK_MSG_WAIT] = "wait",
	[SK_MSG_GATHER] = "gather",
	[SK_MSG_LIST] = "list",
	[SK_MSG_OPEN] = "open",
	[SK_MSG_CLOSE] = "close",
	[SK_MSG_REPORT_BAD] = "report-bad",
	[SK_MSG_PIN] = "pin",
	[SK_MSG_UNPIN] = "unpin",
	[SK_MSG_EVICT] = "evict",
	[SK_MSG_FLUSH] = "flush",
	[SK_MSG_STATS] = "stats",
	[SK_MSG_STOP] = "stop",
	[SK_MSG_MAP] = "map",
	[SK_MSG_RETAIN] = "retain",
	[SK_MSG_TAKEOVER] = "takeover",
	[SK_MSG_STATUS] = "status",
	[SK_MSG_DEVICE_SLOT] = "device-slot",
	[SK_MSG_DEVICE_SEAL] = "device-seal",
	[SK_MSG_DEVICE_OPEN] = "device-open",
	[SK_MSG_KEEP] = "keep",
};

const char *sk_msg_type_name(unsigned type)
{
	return type < SK_MSG_TYPE_COUNT && type_names[type] ?
	       type_names[type] : "unknown";
}
