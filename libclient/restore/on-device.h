/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Restores that a GPU does alone. Where a device slot there holds a copy of an
 * image, its bytes are copied from device to device. Where the image lies in a
 * slot that this process has page-locked, as that of a rank that lives and goes
 * back, the device fetches them over the link, and no CPU touches them. They
 * are hashed where they have arrived: so what was verified is what the trainer
 * has, whoever may have written to the source and whatever happened on the way.
 *
 * A chunk that is whole and contiguous in the trainer's tensor goes straight
 * there. One that is strided there, that only a part is wanted of, or that goes
 * to several places, comes to memory of ours on the device, is hashed there,
 * and goes on if it is right.
 *
 * What turns out to be wrong comes out of host memory by way of the CPU, which
 * finds out what is. A chunk of a device slot that others rely on this rank for
 * is hashed in host memory as well, where they read it, and crosses no link for
 * it.
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
