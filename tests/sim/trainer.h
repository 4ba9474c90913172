/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A trainer's own way to the driver, beside the product's: the same library,
 * by the product's loader, and what only trainers call.
 */
#ifndef SK_TESTS_SIM_TRAINER_H
#define SK_TESTS_SIM_TRAINER_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "cuda/driver.h"
#include "more.h"

struct trainer_cuda {
	struct sk_cuda_driver driver;
	VCUDA_MORE(SK_CUDA_MEMBER)
	/* Of the simulation; NULL on real hardware. */
	uint64_t (*calls)(const char *function);
	void (*fail)(const char *function, uint64_t nth, unsigned result);
	uint64_t (*count)(const char *what);
	/* Also where it tells nothing: its copies are threads, of which a
	 * detector would report what a test has race on purpose. */
	void (*race)(int on);
};

/** Whether simulations say what they count, and fail where they are told to;
 * with $VCUDA_AS_HARDWARE a test has no more than hardware gives it. */
bool trainer_is_told(void);

/** As sk_cuda_driver_open(); -ENODEV too where a function lacks. */
int trainer_cuda_open(struct trainer_cuda *ret_cuda, struct sk_err *err);
/** The same; initialized, with the primary context of a device current. What
 * fails ends the process. */
void trainer_cuda_begin(struct trainer_cuda *ret_cuda, int device);
/** How many devices there are; no context is made. */
int trainer_cuda_devices(void);
struct item;			/* items.h */
/** A conformance program of the driver: its exit status, 77 where there is no
 * driver, or none that shares memory and that is asked for. */
int cuda_items_main(const struct item *items, size_t n, bool sharing);
/** Device memory; what fails ends the process. */
sk_cu_ptr trainer_cuda_alloc(const struct trainer_cuda *cuda, size_t bytes);
/** Copies, after all that the device has to do. */
void trainer_cuda_put(const struct trainer_cuda *cuda, sk_cu_ptr to,
		      const void *from, size_t bytes);
void trainer_cuda_get(const struct trainer_cuda *cuda, void *to,
		      sk_cu_ptr from, size_t bytes);

/** A child that has what a fork gives it, and only waits, as a data loader
 * does; and its end. */
pid_t trainer_fork(void);
void trainer_reap(pid_t child);

/** A function of the host, for a stream, that holds it up until it is let go;
 * any number of streams. */
struct trainer_gate {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool open;
	unsigned held;		/* streams that wait */
};

void trainer_gate_init(struct trainer_gate *gate);
/** Holds up what comes on @stream from here on. */
void trainer_gate_hold(const struct trainer_cuda *cuda,
		       struct trainer_gate *gate, sk_cu_stream stream);
void trainer_gate_open(struct trainer_gate *gate);

#endif
