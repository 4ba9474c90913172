/* SPDX-License-Identifier: Apache-2.0 */
/* Small files of text: whole, in pieces, cut, absent and failing. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/text.h"

/* A table that reads at most so much at once, and fails at a place. */
struct slow {
	struct sk_os os;
	size_t most;
	size_t good;		/* bytes until it fails */
};

static ssize_t read_slowly(const struct sk_os *os, int fd, void *buf,
			   size_t size)
{
	struct slow *s = (struct slow *)os;
	ssize_t n;

	if (s->good == 0)
		return -EIO;
	size = size < s->most ? size : s->most;
	size = size < s->good ? size : s->good;
	n = sk_os_linux()->read(sk_os_linux(), fd, buf, size);
	s->good -= n > 0 ? (size_t)n : 0;
	return n;
}

static struct slow begin(char path[32], const char *text)
{
	int fd;

	strcpy(path, "/tmp/test-text-XXXXXX");
	fd = mkstemp(path);
	cr_assert(fd >= 0);
	cr_assert_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
	close(fd);
	return (struct slow){ .os = *sk_os_linux(), .most = 3,
			      .good = SIZE_MAX };
}

Test(text, is_read_in_the_pieces_that_come)
{
	char path[32], text[64];
	struct slow s = begin(path, "4 of 10\nof 20\n");

	s.os.read = read_slowly;
	cr_expect_eq(sk_text_read(&s.os, path, text, sizeof(text)), 0);
	cr_expect_str_eq(text, "4 of 10\nof 20\n");
	unlink(path);
}

Test(text, may_be_empty_but_not_absent)
{
	char path[32], text[2] = "x";
	struct slow s = begin(path, "");

	cr_expect_eq(sk_text_read(&s.os, path, text, 1), -EFBIG, "no room to "
		     "see its end");
	cr_expect_eq(sk_text_read(&s.os, path, text, 2), 0);
	cr_expect_str_eq(text, "");
	unlink(path);
	text[0] = 'x';
	cr_expect_eq(sk_text_read(&s.os, path, text, 2), -ENOENT);
	cr_expect_str_eq(text, "");
}

Test(text, that_is_longer_than_the_room_is_cut_and_said)
{
	char path[32], text[5];
	struct slow s = begin(path, "12345");

	cr_expect_eq(sk_text_read(&s.os, path, text, sizeof(text)), -EFBIG);
	cr_expect_str_eq(text, "1234");
	unlink(path);
}

Test(text, that_fails_leaves_what_was_read)
{
	char path[32], text[16];
	struct slow s = begin(path, "1234567");

	s.os.read = read_slowly;
	s.good = 4;
	cr_expect_eq(sk_text_read(&s.os, path, text, sizeof(text)), -EIO);
	cr_expect_str_eq(text, "1234");
	unlink(path);
}

static const char *cleaned(const char *text)
{
	static char buf[128];

	strcpy(buf, text);
	sk_text_clean(buf);
	return buf;
}

/* Who names a tensor does not write lines into a log, nor to a terminal. */
Test(text, is_one_line_of_characters_when_it_is_clean)
{
	cr_expect_str_eq(cleaned(""), "");
	cr_expect_str_eq(cleaned("tensor \"w\", größer, 層, 😀"),
			 "tensor \"w\", größer, 層, 😀");
	cr_expect_str_eq(cleaned("a\n<0>b\tc\r\x1b[31m\x7f"),
			 "a?<0>b?c??[31m?");
	/* The second set of control characters: CSI, and the next line. */
	cr_expect_str_eq(cleaned("\xc2\x9b" "31m\xc2\x85.\xc2\xa0"),
			 "??31m??.\xc2\xa0");
	/* What has the rest read from right to left, and ends of lines. */
	cr_expect_str_eq(cleaned("a\u202egpj.exe\u2066\u200f\u061c\u2028z"),
			 "a???gpj.exe????????" "???z");
	cr_expect_str_eq(cleaned("\u202f\u2065\u206a"),
			 "\u202f\u2065\u206a");
	/* What is no UTF-8, or was cut within a character. */
	cr_expect_str_eq(cleaned("\xff\xc0\xaf\xed\xa0\x80z\xe5\xb1"),
			 "??????z??");
}

/* Older builds let the second set of control characters stand in names. */
Test(text, that_is_stored_may_have_what_is_not_said_any_more)
{
	for (int c = 0x80; c < 0xa0; c++) {
		char text[] = { (char)0xc2, (char)c, 0 };

		cr_expect_eq(sk_text_character(text), 0, "%#x", (unsigned)c);
		cr_expect_eq(sk_text_stored(text), 2, "%#x", (unsigned)c);
	}
	for (int c = 0; c < 0x20; c++)
		cr_expect_eq(sk_text_stored((char[]){ (char)c, 0 }), 0);
	cr_expect_eq(sk_text_stored("\x7f"), 0);
	cr_expect_eq(sk_text_stored("\x9b"), 0, "no UTF-8");
	cr_expect_eq(sk_text_stored("\xc2\xa0"), 2);
	cr_expect_eq(sk_text_stored("層"), 3);
}

Test(text, of_an_error_is_clean)
{
	char long_name[2 * SK_ERR_MAX];
	struct sk_err err = { "" };

	sk_err_set(&err, -EINVAL, "the name \"%s\"", "x\n<0>forged");
	cr_expect_str_eq(err.text, "the name \"x?<0>forged\"");
	sk_err_prefix(&err, -EINVAL, "job %s", "\x1b[2J");
	cr_expect_str_eq(err.text, "job ?[2J: the name \"x?<0>forged\"");
	sk_err_errno(&err, -ENOENT, "file \x9b");
	cr_expect_str_eq(err.text, "file ?: No such file or directory");
	/* Cut at the end of its room, and not within a character. */
	for (size_t i = 0; i + 3 < sizeof(long_name); i += 3)
		memcpy(long_name + i, "\xe5\xb1\xa4", 4);
	sk_err_set(&err, -EINVAL, "%s", long_name);
	for (const char *s = err.text; *s; s += sk_text_character(s))
		cr_assert(sk_text_character(s), "at %zu",
			  (size_t)(s - err.text));
}

/* ---- sentences ---- */

/* What a long path leaves no room for is not the reason. */
Test(text, a_sentence_that_is_too_long_keeps_its_reason)
{
	char path[2 * SK_ERR_MAX];
	struct sk_err err;

	memset(path, 'p', sizeof(path) - 1);
	path[sizeof(path) - 1] = 0;
	for (size_t n = 0; n < sizeof(path); n++) {
		const char *p = path + sizeof(path) - 1 - n;
		bool fits = strlen("cannot open \"\": No such file or "
				   "directory") + n < SK_ERR_MAX;

		cr_assert_eq(sk_err_errno(&err, -ENOENT, "cannot open \"%s\"",
					  p), -ENOENT);
		cr_assert(strstr(err.text, fits ? "p\": No such file" : "...: "
				 "No such file or directory") || !n, "%zu: %s",
			  n, err.text);
		cr_assert_eq(sk_err_prefix(&err, -EIO, "job"), -EIO);
		cr_assert(!strncmp(err.text, "job: cannot open", 16), "%s",
			  err.text);
	}
	/* Of a long reason, the words stay, and it begins. */
	cr_assert_eq(sk_err_set(&err, -EIO, "because %s", path), -EIO);
	cr_assert_eq(sk_err_prefix(&err, -EIO, "\"%s\"", path), -EIO);
	cr_assert(strstr(err.text, "pp...: because ppp"), "%s", err.text);
	cr_assert_eq(strlen(err.text), SK_ERR_MAX - 1);
}
