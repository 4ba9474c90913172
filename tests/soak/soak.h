/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Soak: trials that begin at random, for as long as one likes. Each trial is
 * told by its seed alone; a failure ends the program with a sentence that
 * names it, and --seed SEED --trials 1 repeats it as far as kills at random
 * instants can be repeated.
 *
 *   agent.c     the agent is killed, and what it held outlives it
 *   kill.c      ranks and agents are killed; what was complete comes back
 *   flip.c      bits flip in memory and on disk; no wrong byte comes back
 *   fuzz.c      strangers on the socket; another job goes on
 *   property.c  any mesh to any mesh
 *   retain.c    an operator evicts and says what is to stay, while all read
 *   serving.c   who serves, and how it is killed or taken over from
 *   model.c     the states that the trials save
 */
#ifndef SK_TESTS_SOAK_H
#define SK_TESTS_SOAK_H

#include "libclient/restore/common.h"

/** Numbers that follow from a seed. */
struct dice {
	uint64_t state;
};

struct dice dice_of(uint64_t seed);
/** 0 to n - 1. */
uint64_t dice_below(struct dice *dice, uint64_t n);

/**
 * Describes the tensors that @model says, with meshes and placements that
 * follow from @life and the rank's world; memory full of rubbish.
 */
void model_describe(struct rank *rank, uint64_t model, uint64_t life);

/** What trials count; printed at the end. */
struct tally {
	uint64_t trials, lives, kills, agent_kills, restores, flips,
		 messages;
	/* Of a job whose agent is killed: steps that it got to, calls that
	 * failed, and how long whoever came had to wait. */
	uint64_t steps, lost, longest_ms, slow, takeovers;
	/* Of an operator's, and what restores were answered. */
	uint64_t commands, refused, none;
};

/** One trial of @seed in a scene whose agent runs. */
typedef void (*trial_fn)(struct scene *scene, uint64_t seed,
			 struct tally *tally);
void trial_agent(struct scene *scene, uint64_t seed, struct tally *tally);
void trial_kill(struct scene *scene, uint64_t seed, struct tally *tally);
void trial_flip(struct scene *scene, uint64_t seed, struct tally *tally);
void trial_fuzz(struct scene *scene, uint64_t seed, struct tally *tally);
void trial_property(struct scene *scene, uint64_t seed, struct tally *tally);
void trial_retain(struct scene *scene, uint64_t seed, struct tally *tally);

/** Gives the scene's agent a keeper. */
void serving_keep(struct scene *scene);
/** Whoever serves; how long it took to be served is noted. */
pid_t serving(const struct scene *scene, struct tally *tally);
/** The agent @pid is killed, maybe the next one as well. */
void serving_kill(struct scene *scene, pid_t pid, struct dice *dice,
		  struct tally *tally);
/** Another agent takes over; the one that hands over may be killed while it
 * does, or a while before or after. Either has all, and serves. */
void serving_hand_over(struct scene *scene, pid_t pid, struct dice *dice,
		       struct tally *tally);

#endif
