/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Restores that stay on a GPU: where a device slot there holds a copy of an
 * image, its bytes are copied from device to device, and hashed where they have
 * arrived. So what was verified is what the trainer has, whoever may have
 * written to the copy and whatever the device did on the way.
 *
 * That serves whole chunks that are contiguous in the trainer's tensor. All
 * else, and what turns out not to be a copy, comes out of host memory.
 */
#ifndef SK_LIBCLIENT_RESTORE_ON_DEVICE_H
#define SK_LIBCLIENT_RESTORE_ON_DEVICE_H

#include "restore/restoring.h"

/**
 * Runs those of the first *n jobs, which are out of memory, that it can, and
 * puts them behind the others; *n is then how many others there are, in the
 * order that they had. Before other jobs run. What fails is left to them.
 */
void sk_restore_on_device(struct sk_restoring *rs, size_t *n);

#endif
