/* SPDX-License-Identifier: Apache-2.0 */
#include "common.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "support/random.h"

void need_uring(void)
{
	const struct sk_io_opts opts = { .backend = SK_IO_URING };
	struct sk_err err = { "" };
	struct sk_io *io = NULL;

	if (sk_io_new(sk_os_linux(), &opts, &io, &err) < 0)
		cr_skip("no io_uring here: %s", err.text);
	sk_io_free(io);
}

void place_make(struct place *p)
{
	strcpy(p->path, "/var/tmp/shardkeep-io-XXXXXX");
	if (!mkdtemp(p->path)) {
		strcpy(p->path, "/tmp/shardkeep-io-XXXXXX");
		cr_assert(mkdtemp(p->path));
	}
	p->fd = open(p->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	cr_assert_geq(p->fd, 0);
}

void place_remove(struct place *p)
{
	DIR *dir = fdopendir(p->fd);
	struct dirent *e;

	cr_assert(dir);
	rewinddir(dir);
	while ((e = readdir(dir)))
		if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
			unlinkat(p->fd, e->d_name, 0);
	closedir(dir);
	cr_assert_eq(rmdir(p->path), 0);
}

bool exists(const struct place *p, const char *name)
{
	return faccessat(p->fd, name, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

char *random_memory(size_t bytes, uint64_t *state)
{
	size_t whole = sk_round_up(bytes + 1, SK_PAGE);
	char *m = mmap(NULL, whole, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	cr_assert_neq(m, MAP_FAILED);
	for (size_t i = 0; i < whole; i++)
		m[i] = (char)draw(state, 256);
	return m;
}

void free_memory(char *m, size_t bytes)
{
	munmap(m, sk_round_up(bytes + 1, SK_PAGE));
}

struct sk_io *make_io(const struct sk_os *os, struct sk_io_opts opts)
{
	struct sk_err err = { "" };
	struct sk_io *io = NULL;
	int r = sk_io_new(os, &opts, &io, &err);

	cr_assert_eq(r, 0, "%s", err.text);
	return io;
}

void check_file(const struct place *p, const struct sk_write *w)
{
	size_t head = w->head ? w->head_bytes : 0;
	_cleanup_free_ char *got = malloc(w->bytes + 1);
	int fd = openat(p->fd, w->name, O_RDONLY);
	struct stat st;

	cr_assert_geq(fd, 0);
	cr_assert_eq(fstat(fd, &st), 0);
	cr_assert_eq((uint64_t)st.st_size, w->bytes, "%zu of %zu bytes",
		     (size_t)st.st_size, (size_t)w->bytes);
	cr_assert_eq(st.st_mode & 0777, 0600);
	cr_assert_eq((uint64_t)pread(fd, got, w->bytes + 1, 0), w->bytes);
	close(fd);
	cr_assert(!head || memcmp(got, w->head, head) == 0);
	cr_assert(w->bytes == head ||
		  memcmp(got + head, (const char *)w->data + head,
			 w->bytes - head) == 0);
}
