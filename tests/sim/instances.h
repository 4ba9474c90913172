/* SPDX-License-Identifier: Apache-2.0 */
/* The MIG instances of this machine, as $CUDA_VISIBLE_DEVICES names them. */
#ifndef SK_TESTS_SIM_INSTANCES_H
#define SK_TESTS_SIM_INSTANCES_H

#define INSTANCES_MAX 8
#define INSTANCE_NAME 41

/** Those of the simulation, of which $VCUDA_MIG says how many there are, or
 * what nvidia-smi lists where it is not used; how many. */
int instances_find(char ret[INSTANCES_MAX][INSTANCE_NAME]);

#endif
