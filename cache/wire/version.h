/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Versions: what two sides say to each other that were not built together.
 *
 * Who speaks a version speaks the one before as well, and nothing else. HELLO
 * finds out what both speak: the lower of the two, which is the connection's,
 * and stands in each of its packets. So what never changes is a packet's size
 * and head (struct sk_msg up to its body), that HELLO is the first message,
 * that its body begins with the newest version of who asks, and where an error
 * has its sentence. A refusal is written in the version of who is refused.
 *
 * Between two versions fields come, out of what was reserved, with 0 for what
 * was so before, and whole messages: struct sk_wire_change says which.
 * CONTRIBUTING.md tells how a version is stepped.
 */
#ifndef SK_CACHE_WIRE_VERSION_H
#define SK_CACHE_WIRE_VERSION_H

#include <stdbool.h>
#include <stddef.h>

#include "wire/message.h"

#define SK_WIRE_OLDEST (SK_WIRE_VERSION - 1u)
/* Agents up to this one hang up on who greets in any version but theirs. */
#define SK_WIRE_MUTE 5u

/** The version that both speak, where the other side speaks up to @theirs; 0:
 * there is none. */
unsigned sk_wire_common(unsigned theirs);

/** A HELLO in that version, which is the newest that it speaks of. */
struct sk_msg sk_wire_hello(unsigned version);

/** The version to greet an agent with that hung up on @version; 0: there is
 * none left. Such a one may be too old, and then its reply says so. */
unsigned sk_wire_greet_next(unsigned version);

/**
 * Whether a reply to HELLO with status 0 lets us go on: the connection's
 * version, or -EPROTO and a sentence with both sides' versions.
 */
int sk_wire_greeted(const struct sk_msg *reply, struct sk_err *err);

/** What a version has and the one before has not: a message, or bits of 32 in
 * one. */
struct sk_wire_change {
	unsigned since;		/* that version */
	unsigned type;		/* enum sk_msg_type */
	bool reply;		/* the bits are an answer's */
	bool needed;		/* without them it would be another request */
	uint32_t bits;		/* 0: the whole message */
	size_t offset;		/* in struct sk_msg */
	const char *name;	/* the field's */
};

/* Those of the versions that we speak. */
extern const struct sk_wire_change sk_wire_changes[];
extern const size_t sk_wire_n_changes;

/**
 * Writes a message of ours, asked or a reply, for who speaks @version: what
 * that lacks and nobody needs is left out. -EOPNOTSUPP, with its name: that
 * lacks something that is needed.
 */
int sk_wire_lower(const struct sk_wire_change *changes, size_t n,
		  unsigned version, bool reply, struct sk_msg *msg,
		  struct sk_err *err);

/** That what came in @version has nothing that it lacks; else -EINVAL, with
 * its name. */
int sk_wire_check(const struct sk_wire_change *changes, size_t n,
		  unsigned version, bool reply, const struct sk_msg *msg,
		  struct sk_err *err);

/* ---- records of lists ---- */

/* A list has the length of its records with it, and they grow at their end.
 * Who reads one passes over what it does not know of each, and takes for 0
 * what an older side leaves out: so that is no step of the version. Clients up
 * to this one refuse another length than theirs. */
#define SK_WIRE_RIGID 5u
/* More than any record has, ever. */
#define SK_WIRE_RECORD_MOST 65536u

/** What records of a list of @type, which have @bytes with us, have for who
 * speaks @version. */
size_t sk_wire_record_bytes(unsigned version, unsigned type, size_t bytes);

/** Copies @n records of @from bytes each to @ret, where they have @to: cut, or
 * with zeros behind. */
void sk_wire_records_fit(const void *records, size_t n, size_t from,
			 void *ret, size_t to);

#endif
