/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks meet at rank 0, which tells each where the others are; then the later
 * of each two goes to the earlier one. What came of it all tell rank 0, and it
 * tells all: so either every rank has every link, or none has a comm.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "comm/links.h"
#include "comm/notice.h"
#include "comm/seek.h"
#include "conn/check.h"
#include "conn/client.h"
#include "conn/say.h"

#define LOOK_NS (UINT64_C(500) * 1000000)
#define LAST_WORD_NS (UINT64_C(1000) * 1000000)
/* Whose time is over first says what is missing, and the others are to be there
 * still to hear it: of what is left, at most, and as long as they all have. */
#define EARLIER_PART 8u
#define EARLIER_NS (UINT64_C(2000) * 1000000)

struct meet {
	const struct sk_os *os;
	const struct sk_meeting *m;
	uint64_t until;		/* for the last words; what is waited for is */
	uint64_t come_by;	/* to have come, as rank 0 judges, */
	uint64_t weave_by;	/* and to have met the others */
	struct sk_links *links;
	struct sk_door door;
	struct sk_hello hello;		/* this rank's; what others say */
	struct sk_spot *places;	/* [world] */
	struct sk_spot root;
	int32_t heard;			/* ranks that came, right or wrong */
	uint8_t nonce[16];		/* of links */
};

static int miss(struct sk_err *err, int32_t rank, const char *what)
{
	return sk_err_set(err, -ETIMEDOUT, "rank %d %s", rank, what);
}

/* ---- rank 0 ---- */

static void say(const struct meet *t, int fd, int result, const char *why)
{
	uint64_t soon = t->os->now_ns(t->os) + LAST_WORD_NS;
	struct sk_answer a = { .magic = SK_HELLO_MAGIC, .result = result };

	memcpy(a.nonce, t->nonce, sizeof(a.nonce));
	memcpy(a.why, why, strnlen(why, sizeof(a.why) - 1));
	/* Who does not take it is gone, or will be told by its deadline. */
	(void)sk_link_send(t->os, fd, &a, sizeof(a), soon);
}

static void say_all(const struct meet *t, int result, const char *why)
{
	for (int32_t i = 1; i < t->m->world; i++)
		if (t->links->fds[i] >= 0)
			say(t, t->links->fds[i], result, why);
}

static int judge(const struct meet *t, const struct sk_hello *h,
		 struct sk_err *err)
{
	if (h->world != t->m->world)
		return sk_err_set(err, -EINVAL, "rank %d counts %d ranks, and "
				  "rank 0 %d", h->rank, h->world, t->m->world);
	if (!h->rank)
		return sk_err_set(err, -EEXIST, "rank 0 came twice");
	if (h->rank < 0 || h->rank >= h->world)
		return sk_err_set(err, -EINVAL, "there is no rank %d of %d to "
				  "come", h->rank, h->world);
	if (t->links->fds[h->rank] >= 0)
		return sk_err_set(err, -EEXIST, "rank %d came twice", h->rank);
	return 0;
}

static int take(struct meet *t, const struct sk_hello *h, int fd,
		struct sk_err *err)
{
	int r = judge(t, h, err);

	t->heard += h->rank ? 1 : h->place.port;
	say(t, fd, r, err->text);
	if (r < 0) {
		(void)t->os->close(t->os, fd);
		return r;
	}
	t->links->fds[h->rank] = fd;
	t->places[h->rank] = h->place;
	return 0;
}

static int32_t first_missing(const struct meet *t)
{
	int32_t i = 1;

	while (i < t->m->world && t->links->fds[i] >= 0)
		i++;
	return i;
}

static int gather_all(struct meet *t, const struct stat *notice,
		      struct sk_err *err)
{
	while (first_missing(t) < t->m->world) {
		uint64_t now = t->os->now_ns(t->os), look = now + LOOK_NS;
		struct sk_hello h;
		int fd, at, r;

		r = sk_door_next(&t->door, &t->hello, t->links->fds,
				 t->m->world, look < t->come_by ? look :
								  t->come_by,
				 &h, &fd, &at);
		if (!r)
			r = take(t, &h, fd, err);
		else if (r > 0)	/* may be: its time was over, for that one */
			r = sk_err_set(err, -ETIMEDOUT, "rank %d left before "
				       "rank %d had come", at,
				       first_missing(t));
		else if (r != -ETIMEDOUT)
			r = sk_err_errno(err, r, "cannot wait for ranks");
		else if (t->os->now_ns(t->os) >= t->come_by)
			r = miss(err, first_missing(t), "did not come");
		else if (notice && !sk_notice_stands(t->os, t->m->at, notice))
			r = sk_err_set(err, -EEXIST, "\"%s\" is another's "
				       "now: rank 0 came twice", t->m->at);
		else
			r = 0;
		if (r < 0)
			return r;
	}
	return 0;
}

/* They have been told, and others may need their descriptors. */
static void let_go(struct meet *t)
{
	for (int32_t i = 1; i < t->m->world; i++) {
		if (t->links->fds[i] >= 0)
			(void)t->os->close(t->os, t->links->fds[i]);
		t->links->fds[i] = -1;
	}
}

/* Who comes after it has failed is to hear why, too, and not to wait. */
static void tell_late_ones(struct meet *t, int result, const char *why)
{
	struct sk_hello h;
	int fd, at;

	while (t->heard < t->m->world - 1 &&
	       !sk_door_next(&t->door, &t->hello, NULL, 0, t->until, &h, &fd,
			     &at)) {
		say(t, fd, result, why);
		(void)t->os->close(t->os, fd);
		t->heard++;
	}
}

/* Whose notice stands where ours did, lest it waits for those who came here: in
 * place of a port it is told how many. Where nobody did, it may go on: this
 * may be a rank 0 that an older attempt has left. */
static void tell_other(struct meet *t)
{
	uint64_t soon = t->os->now_ns(t->os) + LAST_WORD_NS;
	struct sk_hello hello = t->hello;
	struct sk_answer answer;
	struct sk_spot root;
	struct sk_err err;
	int fd;

	hello.place.port = (uint16_t)(t->heard < UINT16_MAX ? t->heard :
							      UINT16_MAX);
	if (!sk_seek(t->os, t->m->at, soon < t->until ? soon : t->until,
		     &hello, &fd, &root, &answer, &err))
		(void)t->os->close(t->os, fd);
}

static int gather(struct meet *t, const struct stat *notice,
		  struct sk_err *err)
{
	int r = gather_all(t, notice, err);

	if (r >= 0)
		return r;
	say_all(t, r, err->text);
	let_go(t);
	if (!notice || sk_notice_stands(t->os, t->m->at, notice))
		tell_late_ones(t, r, err->text);
	else if (t->heard)
		tell_other(t);
	return r;
}

static int gather_by_notice(struct meet *t, struct sk_err *err)
{
	struct sk_notice notice = { 0 };
	struct stat st;
	int r;

	memcpy(notice.nonce, t->hello.nonce, sizeof(notice.nonce));
	sk_notice_fill(&notice, t->door.port);
	r = sk_notice_put(t->os, t->m->at, &notice, &st, err);
	if (r < 0)
		return r;
	r = gather(t, &st, err);
	sk_notice_remove(t->os, t->m->at, &st);
	return r;
}

/* Each hears all of it, or what is said next would be taken for places: of who
 * is gone, hear_all() tells. */
static void tell_places(struct meet *t)
{
	size_t bytes = (size_t)t->m->world * sizeof(*t->places);

	say_all(t, 0, "");
	for (int32_t i = 1; i < t->m->world; i++)
		(void)sk_link_send(t->os, t->links->fds[i], t->places, bytes,
				   t->until);
}

static int hear_one(struct meet *t, int32_t rank, struct sk_err *err)
{
	struct sk_answer a;

	if (sk_link_receive(t->os, t->links->fds[rank], &a, sizeof(a),
			    t->until) < 0)
		return miss(err, rank, "left before all had met");
	a.why[sizeof(a.why) - 1] = '\0';
	return a.result < 0 ? sk_err_set(err, a.result, "rank %d: %s", rank,
					 a.why) : 0;
}

static int32_t first_silent(const struct pollfd *p)
{
	int32_t i = 0;

	while (p[i].fd < 0)
		i++;
	return i + 1;
}

/* In any order: one that is gone keeps others waiting, who say nothing. */
static int hear_all(struct meet *t, struct sk_err *err)
{
	struct pollfd *p = t->links->polls;
	int32_t others = t->m->world - 1, left = others;
	int r = 0;

	for (int32_t i = 0; i < others; i++)
		p[i] = (struct pollfd){ t->links->fds[i + 1], POLLIN, 0 };
	while (left && r >= 0) {
		r = t->os->poll(t->os, p, (nfds_t)others, t->come_by);
		if (r == -ETIMEDOUT)
			return miss(err, first_silent(p), "did not meet the "
				    "others");
		if (r < 0)
			return sk_err_errno(err, r, "%d ranks have not met "
					    "the others", left);
		for (int32_t i = 0; i < others && r >= 0; i++) {
			if (p[i].fd < 0 || !p[i].revents)
				continue;
			r = hear_one(t, i + 1, err);
			p[i].fd = -1;
			left--;
		}
	}
	return r < 0 ? r : 0;
}

/* The caller says to the others where this rank is. */
static int tell_spot(const struct meet *t, const char *host,
		     struct sk_err *err)
{
	char text[SK_NOTICE_TEXT];
	struct sk_notice notice;
	int r;

	sk_notice_fill_for(t->os, strcmp(host, "*") ? host : NULL,
			   t->m->interfaces, t->door.port, &notice);
	if (!notice.n)
		return sk_err_set(err, -EADDRNOTAVAIL, "this node has no "
				  "address of interface \"%s\" that the other "
				  "ranks could come to", t->m->interfaces ?
							 t->m->interfaces :
							 "*");
	sk_notice_print(&notice, text, sizeof(text));
	r = sk_check_returned(t->m->tell(t->m->tell_ctx, text));
	return r < 0 ? sk_err_errno(err, r, "the others cannot be told where "
				    "rank 0 is") : 0;
}

static int gather_by_port(struct meet *t, const char *host,
			  struct sk_err *err)
{
	int r = t->m->tell ? tell_spot(t, host, err) : 0;

	return r < 0 ? r : gather(t, NULL, err);
}

static int lead(struct meet *t, struct sk_err *err)
{
	bool by_notice = t->m->at[0] == '/';
	uint16_t port = 0;
	char host[256];
	int r = by_notice ? t->os->random(t->os, t->hello.nonce,
					  sizeof(t->hello.nonce)) :
			    sk_seek_parse(t->m->at, host, &port, err);

	if (r >= 0)
		r = t->os->random(t->os, t->nonce, sizeof(t->nonce));
	if (r < 0)
		return err->text[0] ? r : sk_err_errno(err, r, "no nonce");
	r = sk_door_open(t->os, port, &t->door, err);
	if (r < 0)
		return r;
	r = by_notice ? gather_by_notice(t, err) :
			gather_by_port(t, host, err);
	sk_door_close(&t->door);
	if (r >= 0) {
		tell_places(t);
		r = hear_all(t, err);
	}
	say_all(t, r, err->text);
	return r;
}

/* ---- the others ---- */

static int hear(struct meet *t, struct sk_answer *ret, struct sk_err *err)
{
	if (sk_link_receive(t->os, t->links->fds[0], ret, sizeof(*ret),
			    t->until) < 0 || ret->magic != SK_HELLO_MAGIC)
		return miss(err, 0, "left, or was not done in time");
	ret->why[sizeof(ret->why) - 1] = '\0';
	return ret->result < 0 ? sk_err_set(err, ret->result, "%s", ret->why) :
				 0;
}

static int hear_places(struct meet *t, struct sk_err *err)
{
	struct sk_answer a;
	int r = hear(t, &a, err);

	if (r < 0)
		return r;
	memcpy(t->nonce, a.nonce, sizeof(t->nonce));
	if (sk_link_receive(t->os, t->links->fds[0], t->places,
			    (size_t)t->m->world * sizeof(*t->places),
			    t->until) < 0)
		return miss(err, 0, "left before all had met");
	return 0;
}

static int go_to(struct meet *t, int32_t rank, struct sk_err *err)
{
	struct sk_spot at = t->places[rank];
	int r;

	if (!at.family) {	/* beside rank 0 */
		at = t->root;
		at.port = t->places[rank].port;
	}
	r = sk_seek_connect(t->os, &at, t->weave_by, &t->links->fds[rank]);
	if (r >= 0)
		r = sk_link_send(t->os, t->links->fds[rank], &t->hello,
				 sizeof(t->hello), t->weave_by);
	return r < 0 ? sk_err_set(err, sk_door_lacks(r) ? r : -ETIMEDOUT,
				  "cannot reach rank %d: %s", rank,
				  strerrordesc_np(-r)) : 0;
}

static int32_t first_later(const struct meet *t)
{
	int32_t i = t->m->rank + 1;

	while (t->links->fds[i] >= 0)
		i++;
	return i;
}

/* Whoever knows the nonce has it from rank 0. */
static int wait_for_later(struct meet *t, struct sk_err *err)
{
	int32_t left = t->m->world - 1 - t->m->rank;

	while (left) {
		struct sk_hello h;
		int fd, at, r;

		r = sk_door_next(&t->door, &t->hello, t->links->fds, 1,
				 t->weave_by, &h, &fd, &at);
		if (r > 0)	/* and says why to who listens next */
			return miss(err, 0, "ended the meeting");
		if (r == -ETIMEDOUT)
			return miss(err, first_later(t), "did not meet the "
				    "others");
		if (r < 0)
			return sk_err_errno(err, r, "%d ranks did not come to "
					    "rank %d", left, t->m->rank);
		if (h.rank <= t->m->rank || h.rank >= t->m->world ||
		    t->links->fds[h.rank] >= 0) {
			(void)t->os->close(t->os, fd);
			continue;
		}
		t->links->fds[h.rank] = fd;
		left--;
	}
	return 0;
}

static int weave(struct meet *t, struct sk_err *err)
{
	int r = 0;

	t->hello.kind = SK_HELLO_LINK;
	memcpy(t->hello.nonce, t->nonce, sizeof(t->nonce));
	for (int32_t i = 1; i < t->m->rank && r >= 0; i++)
		r = go_to(t, i, err);
	return r < 0 ? r : wait_for_later(t, err);
}

static int follow(struct meet *t, struct sk_err *err)
{
	struct sk_answer a;
	int r = sk_seek(t->os, t->m->at, t->until, &t->hello,
			&t->links->fds[0], &t->root, &a, err);

	if (r < 0)
		return r;
	if (r > 0) {
		a.why[sizeof(a.why) - 1] = '\0';
		return sk_err_set(err, a.result, "%s", a.why);
	}
	r = hear_places(t, err);
	if (r < 0)
		return r;
	r = weave(t, err);
	say(t, t->links->fds[0], r, err->text);
	/* Its word counts, whatever this rank has met with. */
	return hear(t, &a, err);
}

static int join(struct meet *t, struct sk_err *err)
{
	int r = sk_door_open(t->os, 0, &t->door, err);

	if (r < 0)
		return r;
	t->hello.place.port = t->door.port;
	r = follow(t, err);
	sk_door_close(&t->door);
	return r;
}

/* ---- life ---- */

/* Rank 0 listens at one port; where it tells of it, at any. */
static int check_ports(const struct sk_meeting *m, struct sk_err *err)
{
	const char *at = m->at;
	char host[256];
	uint16_t port;
	int r;

	do {
		r = sk_seek_parse(at, host, &port, err);
		if (r < 0)
			return r;
		if (!port && (m->rank || !m->tell))
			return sk_err_set(err, -EINVAL, "the PORT of "
					  "\"HOST:PORT\" is 0: that is for a "
					  "rank 0 that can tell which it got");
		at += r;
		if (*at && !m->rank)
			return sk_err_set(err, -EINVAL, "rank 0 listens at "
					  "one port, and \"%s\" are several",
					  m->at);
	} while (*at++);
	return 0;
}

/* By itself, whether anybody goes there or not. */
static int check_at(const struct sk_meeting *m, struct sk_err *err)
{
	const char *at = m->at;

	if (at[0] != '/')
		return check_ports(m, err);
	if (m->tell)
		return sk_err_set(err, -EINVAL, "by a file the other ranks are "
				  "told by it: sk_meeting.tell is for ports");
	if (at[strlen(at) - 1] == '/')
		return sk_err_set(err, -EINVAL, "ranks meet by a file, and "
				  "\"%s\" is the name of a directory", at);
	return 0;
}

static int check(const struct sk *sk, const struct sk_meeting *m,
		 struct sk_err *err)
{
	int r = sk ? sk_check(sk, err) : 0;

	if (r < 0)
		return r;
	if (!m || !m->at || m->reserved_ || m->reserved[0])
		return sk_err_set(err, -EINVAL, "sk_comm_meet() needs a "
				  "meeting that says where, and whose "
				  "reserved fields are 0");
	if (m->world < 1 || m->rank < 0 || m->rank >= m->world)
		return sk_err_set(err, -EINVAL, "there is no rank %d of %d",
				  m->rank, m->world);
	if (m->secret && strlen(m->secret) > SK_SECRET_MAX)
		return sk_err_set(err, -EINVAL, "the secret has more than %d "
				  "bytes", SK_SECRET_MAX);
	return check_at(m, err);
}

static int meet(struct meet *t, struct sk_err *err)
{
	const struct sk_meeting *m = t->m;

	t->hello = (struct sk_hello){ .magic = SK_HELLO_MAGIC,
		.kind = SK_HELLO_JOIN, .rank = m->rank, .world = m->world };
	if (m->secret)
		strcpy(t->hello.secret, m->secret);
	t->places = calloc((size_t)m->world, sizeof(*t->places));
	if (!t->places || sk_links_new(t->os, m->rank, m->world, &t->links))
		return sk_err_set(err, -ENOMEM, "out of memory");
	if (m->world == 1)
		return 0;
	return m->rank ? join(t, err) : lead(t, err);
}

static void set_times(struct meet *t)
{
	uint32_t ms = t->m->timeout_ms ? t->m->timeout_ms : 60000;
	uint64_t earlier = ms * UINT64_C(1000000) / EARLIER_PART;

	if (earlier > EARLIER_NS)
		earlier = EARLIER_NS;
	t->until = sk_until_ms(t->os, ms);
	t->come_by = t->until - earlier;
	t->weave_by = t->come_by - earlier;
}

SK_API int sk_comm_meet(struct sk *sk, const struct sk_meeting *meeting,
			struct sk_comm *ret_comm)
{
	struct meet t = { .os = sk ? sk->os : sk_os_linux(), .m = meeting };
	struct sk_err err = { "" };
	int r = check(sk, meeting, &err);

	if (r >= 0)
		r = sk_check_result(ret_comm, "a comm", &err);
	if (r < 0)
		return sk_say(r, &err);
	set_times(&t);
	r = meet(&t, &err);
	free(t.places);
	if (r < 0) {
		sk_links_free(t.links);
		return sk_say(r, &err);
	}
	sk_links_comm(t.links, ret_comm);
	return 0;
}

SK_API void sk_comm_meet_free(struct sk_comm *comm)
{
	if (!comm || !sk_links_of(comm))
		return;
	sk_links_free(sk_links_of(comm));
	*comm = (struct sk_comm){ 0 };
}
