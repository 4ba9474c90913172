/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <numa.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "fault-os.h"
#include "memory/slot.h"
#include "base/util.h"
#include "support/files.h"

#define BYTES (300 * 1000u)
#define HUGE (2u << 20)

/* ---- nodes that this machine need not have, in front of libnuma ---- */

static int nodes;

int numa_available(void)
{
	return nodes ? 0 : -1;
}

int numa_num_configured_nodes(void)
{
	return nodes;
}

int numa_max_node(void)
{
	return nodes - 1;
}

static struct sk_slot create(uint64_t bytes)
{
	struct sk_slot slot = SK_SLOT_NULL;
	struct sk_err err = { 0 };
	int r;

	r = sk_slot_create(sk_os_linux(), "test", bytes, -1, &slot, &err);
	cr_assert_eq(r, 0, "%s", err.text);
	return slot;
}

/* How many pages of the mapping at @map the system holds. */
static size_t resident(const struct sk_slot *slot)
{
	size_t pages = slot->bytes / SK_PAGE, n = 0;
	unsigned char *vec = calloc(pages, 1);

	cr_assert_not_null(vec);
	cr_assert_eq(mincore(slot->map, slot->bytes, vec), 0);
	for (size_t i = 0; i < pages; i++)
		n += vec[i] & 1;
	free(vec);
	return n;
}

/* ---- birth and end ---- */

Test(slot, is_whole_pages_mapped_and_sealed)
{
	struct sk_slot slot = create(BYTES);
	struct stat st;
	int seals = fcntl(slot.fd, F_GET_SEALS);

	cr_assert_eq(slot.memory, SK_MEMORY_HOST);
	cr_assert_eq(slot.bytes, sk_round_up(BYTES, SK_PAGE));
	cr_assert_eq(slot.numa_node, -1);
	cr_assert_eq(fstat(slot.fd, &st), 0);
	cr_assert_eq((uint64_t)st.st_size, slot.bytes);
	cr_assert(seals & F_SEAL_SHRINK && seals & F_SEAL_GROW);
	cr_assert_not(seals & (F_SEAL_SEAL | F_SEAL_WRITE));
	cr_assert(fcntl(slot.fd, F_GETFD) & FD_CLOEXEC);
	memset(slot.map, 1, slot.bytes);
	sk_slot_destroy(sk_os_linux(), &slot);
	cr_assert_eq(slot.fd, -1);
	cr_assert_null(slot.map);
	sk_slot_destroy(sk_os_linux(), &slot);
}

Test(slot, can_neither_shrink_nor_grow)
{
	struct sk_slot slot = create(BYTES);

	cr_assert_eq(ftruncate(slot.fd, SK_PAGE), -1);
	cr_assert_eq(errno, EPERM);
	cr_assert_eq(ftruncate(slot.fd, slot.bytes * 2), -1);
	cr_assert_eq(errno, EPERM);
	cr_assert_eq(fallocate(slot.fd, 0, slot.bytes, SK_PAGE), -1);
	cr_assert_eq(errno, EPERM);
	sk_slot_destroy(sk_os_linux(), &slot);
}

Test(slot, bears_its_name_however_long)
{
	char name[400], path[64], text[512];
	struct sk_slot slot = SK_SLOT_NULL;
	ssize_t n;

	memset(name, 'x', sizeof(name));
	name[sizeof(name) - 1] = 0;
	cr_assert_eq(sk_slot_create(sk_os_linux(), name, 1, -1, &slot, NULL),
		     0);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", slot.fd);
	n = readlink(path, text, sizeof(text) - 1);
	cr_assert_gt(n, 0);
	text[n] = 0;
	cr_assert(strstr(text, "memfd:xxxx"), "%s", text);
	sk_slot_destroy(sk_os_linux(), &slot);
}

Test(slot, refuses_sizes_that_cannot_be)
{
	struct sk_slot slot = { .fd = 77 };
	struct sk_err err = { 0 };

	cr_assert_eq(sk_slot_create(sk_os_linux(), "none", 0, -1, &slot,
				    &err), -EINVAL);
	cr_assert(strstr(err.text, "none"), "%s", err.text);
	cr_assert_eq(sk_slot_create(sk_os_linux(), "vast", UINT64_MAX, -1,
				    &slot, &err), -ENOMEM);
	cr_assert(strstr(err.text, "vast"), "%s", err.text);
	/* More than an address space. */
	cr_assert_lt(sk_slot_create(sk_os_linux(), "large",
				    UINT64_C(1) << 60, -1, &slot, &err), 0);
	cr_assert(strstr(err.text, "large"), "%s", err.text);
	cr_assert_eq(slot.fd, 77);
}

Test(slot, binding_to_a_node_is_harmless)
{
	struct sk_slot slot = SK_SLOT_NULL;

	nodes = 1;
	cr_assert_eq(sk_slot_create(sk_os_linux(), "node", BYTES, 0, &slot,
				    NULL), 0);
	cr_assert(slot.numa_node == 0 || slot.numa_node == -1);
	cr_assert_eq(sk_slot_populate(sk_os_linux(), &slot, 0, slot.bytes,
				      NULL), 0);
	sk_slot_destroy(sk_os_linux(), &slot);
	cr_assert_eq(sk_slot_create(sk_os_linux(), "node", BYTES, 100000,
				    &slot, NULL), 0);
	cr_assert_eq(slot.numa_node, -1);
	sk_slot_destroy(sk_os_linux(), &slot);
	cr_assert_geq(sk_numa_node_here(), -1);
}

/* The first is one as well as any other. */
Test(slot, each_node_is_preferred_when_it_is_asked_for)
{
	nodes = 2;
	for (int node = 0; node < 2; node++) {
		struct sk_slot slot = SK_SLOT_NULL;
		struct sk_fault_os fault;

		sk_fault_os_init(&fault, sk_os_linux());
		/* Whether this machine has it, or lets us, is not asked. */
		sk_fault_os_fail(&fault, SK_FAULT_MBIND, 1, 1, EPERM);
		cr_assert_eq(sk_slot_create(&fault.os, "node", BYTES, node,
					    &slot, NULL), 0);
		cr_assert_eq(sk_fault_os_hits(&fault), 1, "node %d", node);
		cr_assert_eq(slot.numa_node, -1);
		sk_slot_destroy(&fault.os, &slot);
	}
}

Test(slot, a_node_is_told_where_there_are_several)
{
	for (nodes = 0; nodes < 2; nodes++)
		cr_assert_eq(sk_numa_node_here(), -1, "%d nodes", nodes);
	cr_assert_geq(sk_numa_node_here(), 0);
}

Test(slot, is_not_inherited_by_fork)
{
	struct sk_slot slot = create(BYTES);
	unsigned char vec[1];
	int status;
	pid_t pid;

	cr_assert_eq(mincore(slot.map, SK_PAGE, vec), 0);
	pid = fork();
	if (pid == 0)
		_exit(mincore(slot.map, SK_PAGE, vec) < 0 && errno == ENOMEM ?
		      0 : 1);
	cr_assert_eq(waitpid(pid, &status, 0), pid);
	cr_assert_eq(status, 0, "the child sees the slot");
	sk_slot_destroy(sk_os_linux(), &slot);
}

/* ---- populating ---- */

Test(slot, populate_faults_in_what_is_asked)
{
	struct sk_slot slot = create(16 * SK_PAGE);

	cr_assert_eq(resident(&slot), 0);
	cr_assert_eq(sk_slot_populate(sk_os_linux(), &slot, 0, 0, NULL), 0);
	cr_assert_eq(resident(&slot), 0);
	cr_assert_eq(sk_slot_populate(sk_os_linux(), &slot, 2 * SK_PAGE + 1,
				      4 * SK_PAGE + 1, NULL), 0);
	cr_assert_geq(resident(&slot), 3);
	cr_assert_eq(sk_slot_populate(sk_os_linux(), &slot, 0, slot.bytes,
				      NULL), 0);
	cr_assert_eq(resident(&slot), 16);
	sk_slot_destroy(sk_os_linux(), &slot);
}

Test(slot, populate_keeps_what_is_there)
{
	static const int errors[] = { 0, EINVAL };

	for (size_t i = 0; i < SK_ARRAY_SIZE(errors); i++) {
		struct sk_slot slot = create(4 * SK_PAGE);
		struct sk_fault_os fault;

		sk_fault_os_init(&fault, sk_os_linux());
		if (errors[i])
			sk_fault_os_fail(&fault, SK_FAULT_MADVISE, 1, 1,
					 errors[i]);
		memset(slot.map, 0x42, slot.bytes);
		cr_assert_eq(sk_slot_populate(&fault.os, &slot, 0, slot.bytes,
					      NULL), 0);
		for (size_t k = 0; k < slot.bytes; k++)
			cr_assert_eq(((char *)slot.map)[k], 0x42);
		sk_slot_destroy(sk_os_linux(), &slot);
	}
}

Test(slot, populate_without_the_advice_allocates_and_touches)
{
	struct sk_slot slot = create(16 * SK_PAGE);
	struct sk_fault_os fault;

	sk_fault_os_init(&fault, sk_os_linux());
	sk_fault_os_fail(&fault, SK_FAULT_MADVISE, 1, 1, EINVAL);
	cr_assert_eq(sk_slot_populate(&fault.os, &slot, 0, slot.bytes, NULL),
		     0);
	cr_assert_eq(sk_fault_os_calls(&fault, SK_FAULT_FALLOCATE), 1);
	cr_assert_eq(resident(&slot), 16);
	sk_slot_destroy(sk_os_linux(), &slot);
}

Test(slot, populate_says_that_memory_is_short)
{
	static const int errors[] = { EFAULT, ENOMEM };
	struct sk_slot slot = create(4 * SK_PAGE);
	struct sk_fault_os fault;
	struct sk_err err = { 0 };

	for (size_t i = 0; i < SK_ARRAY_SIZE(errors); i++) {
		sk_fault_os_init(&fault, sk_os_linux());
		sk_fault_os_fail(&fault, SK_FAULT_MADVISE, 1, 1, errors[i]);
		cr_assert_eq(sk_slot_populate(&fault.os, &slot, 0,
					      slot.bytes, &err), -ENOMEM);
		cr_assert(strstr(err.text, "16384"), "%s", err.text);
	}
	sk_fault_os_init(&fault, sk_os_linux());
	sk_fault_os_fail(&fault, SK_FAULT_MADVISE, 1, 1, EINVAL);
	sk_fault_os_fail(&fault, SK_FAULT_FALLOCATE, 1, 1, ENOSPC);
	cr_assert_eq(sk_slot_populate(&fault.os, &slot, 0, slot.bytes, &err),
		     -ENOMEM);
	cr_assert_eq(resident(&slot), 0);
	sk_slot_destroy(sk_os_linux(), &slot);
}

/* The sentence names the limit that was met. */
Test(slot, creating_says_what_to_raise)
{
	static const struct { int call, error; const char *advice; } cases[] = {
		{ SK_FAULT_FTRUNCATE, EFBIG, "limit of file sizes" },
		{ SK_FAULT_MEMFD_CREATE, EMFILE, "limit of open files" },
		{ SK_FAULT_FTRUNCATE, ENOMEM, "memory budget" },
	};
	struct sk_slot slot = SK_SLOT_NULL;
	struct sk_fault_os fault;

	for (size_t i = 0; i < SK_ARRAY_SIZE(cases); i++) {
		struct sk_err err = { 0 };

		sk_fault_os_init(&fault, sk_os_linux());
		sk_fault_os_fail(&fault, cases[i].call, 1, 2,
				 cases[i].error);
		cr_assert_eq(sk_slot_create(&fault.os, "s", 4 * SK_PAGE, -1,
					    &slot, &err), -cases[i].error);
		cr_assert(strstr(err.text, cases[i].advice), "%s", err.text);
	}
}

Test(slot, populate_refuses_what_lies_outside)
{
	struct sk_slot slot = create(4 * SK_PAGE);
	struct sk_err err = { 0 };

	cr_assert_eq(sk_slot_populate(sk_os_linux(), &slot, 2, 1, &err),
		     -EINVAL);
	cr_assert_eq(sk_slot_populate(sk_os_linux(), &slot, 0,
				      slot.bytes + 1, &err), -EINVAL);
	cr_assert(err.text[0]);
	sk_slot_destroy(sk_os_linux(), &slot);
}

/* How many bytes of the mapping lie in huge pages. */
static uint64_t in_huge_pages(const void *map)
{
	unsigned long from = 0, to = 0, kib = 0;
	FILE *f = fopen("/proc/self/smaps", "re");
	bool here = false;
	char line[256];

	cr_assert_not_null(f);
	while (fgets(line, sizeof(line), f)) {
		if (sscanf(line, "%lx-%lx ", &from, &to) == 2)
			here = from <= (uintptr_t)map && (uintptr_t)map < to;
		else if (here && sscanf(line, "ShmemPmdMapped: %lu", &kib) == 1)
			break;
	}
	(void)fclose(f);
	return (uint64_t)kib << 10;
}

/* Whether the kernel makes huge pages of shared memory on request. */
static bool can_collapse(void)
{
	int fd = memfd_create("probe", MFD_CLOEXEC);
	char *map, *at;
	bool can;

	cr_assert(fd >= 0 && ftruncate(fd, HUGE) == 0);
	map = mmap(NULL, 2 * HUGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
		   0);
	at = (char *)(((uintptr_t)map + HUGE - 1) / HUGE * HUGE);
	cr_assert_eq(mmap(at, HUGE, PROT_READ | PROT_WRITE,
			  MAP_SHARED | MAP_FIXED, fd, 0), at);
	at[0] = 1;
	can = madvise(at, HUGE, 25 /* MADV_COLLAPSE */) == 0;
	(void)munmap(map, 2 * HUGE);
	(void)munmap(at, HUGE);
	(void)close(fd);
	return can;
}

Test(slot, populate_gives_huge_pages_to_every_mapping)
{
	const struct sk_os *os = sk_os_linux();
	struct sk_slot slot = create(3 * HUGE + SK_PAGE);
	void *map;

	cr_assert_eq((uintptr_t)slot.map % HUGE, 0);
	cr_assert_eq(sk_slot_map_fd(os, slot.fd, slot.bytes - 5, true, &map,
				    NULL), 0);
	cr_assert_eq((uintptr_t)map % HUGE, 0);
	cr_assert_eq(sk_slot_populate_map(os, map, 0, slot.bytes,
					  true), 0);
	cr_assert_eq(resident(&slot), slot.bytes / SK_PAGE);
	cr_assert_eq(sk_slot_populate(os, &slot, 0, slot.bytes, NULL), 0);
	cr_assert_eq(in_huge_pages(map), can_collapse() ? 3 * HUGE : 0);
	cr_assert_eq(in_huge_pages(slot.map), in_huge_pages(map));
	sk_slot_unmap(os, map, slot.bytes - 5);
	sk_slot_destroy(os, &slot);
}

Test(slot, populate_goes_on_without_huge_pages)
{
	/* the first page of the first, of the second; all of them; the rest */
	for (uint64_t n = 1; n <= 3; n++) {
		struct sk_slot slot = create(2 * HUGE);
		struct sk_fault_os fault;

		sk_fault_os_init(&fault, sk_os_linux());
		sk_fault_os_fail(&fault, SK_FAULT_MADVISE, n, 1, ENOMEM);
		cr_assert_eq(sk_slot_populate(&fault.os, &slot, 0, slot.bytes,
					      NULL), 0);
		cr_assert_eq(sk_fault_os_hits(&fault), 1);
		cr_assert_eq(resident(&slot), slot.bytes / SK_PAGE);
		sk_slot_destroy(sk_os_linux(), &slot);
	}
}

/* Somebody looks at a page just then, as a rank does that faults in as well. */
Test(slot, populate_tries_huge_pages_again)
{
	for (unsigned times = 1; times <= 4; times++) {
		struct sk_slot slot = create(2 * HUGE);
		struct sk_fault_os fault;

		sk_fault_os_init(&fault, sk_os_linux());
		sk_fault_os_fail(&fault, SK_FAULT_MADVISE, 3, times, EAGAIN);
		cr_assert_eq(sk_slot_populate(&fault.os, &slot, 0, slot.bytes,
					      NULL), 0);
		cr_assert_eq(sk_fault_os_hits(&fault), times);
		cr_assert_eq(slot.small, times == 4 || !can_collapse());
		cr_assert_eq(in_huge_pages(slot.map), slot.small ? 0 :
			     2 * HUGE);
		sk_slot_destroy(sk_os_linux(), &slot);
	}
}

Test(slot, populate_asks_no_huge_page_where_something_is)
{
	struct sk_slot slot = create(2 * HUGE);
	struct sk_fault_os fault;

	memset(slot.map, 0x17, HUGE / 2);
	((char *)slot.map)[HUGE] = 0x18;
	sk_fault_os_init(&fault, sk_os_linux());
	cr_assert_eq(sk_slot_populate(&fault.os, &slot, 0, slot.bytes, NULL),
		     0);
	/* For the second: its first page, and all of it; then both. */
	cr_assert_eq(sk_fault_os_calls(&fault, SK_FAULT_MADVISE), 3);
	for (size_t i = 0; i < 2 * HUGE; i++)
		cr_assert_eq(((char *)slot.map)[i], i < HUGE / 2 ? 0x17 :
			     i == HUGE ? 0x18 : 0);
	sk_slot_destroy(sk_os_linux(), &slot);
}

#define STORED (16 * HUGE)

static void *store_all(void *map)
{
	for (size_t i = 0; i < STORED / sizeof(uint64_t); i++)
		((volatile uint64_t *)map)[i] = i * 3;
	return NULL;
}

/* A rank copies into memory that agent and rank fault in meanwhile. */
Test(slot, populate_loses_no_store_beside_it)
{
	const struct sk_os *os = sk_os_linux();

	for (int round = 0; round < 5; round++) {
		struct sk_slot slot = create(STORED);
		pthread_t storing;
		uint64_t *map;

		cr_assert_eq(sk_slot_map_fd(os, slot.fd, STORED, true,
					    (void **)&map, NULL), 0);
		cr_assert_eq(pthread_create(&storing, NULL, store_all, map),
			     0);
		for (uint64_t at = 0; at < STORED; at += 2 * HUGE) {
			cr_assert_eq(sk_slot_populate(os, &slot, at,
						      at + 2 * HUGE, NULL),
				     0);
			cr_assert_eq(sk_slot_populate_map(os, map, at,
							  at + 2 * HUGE,
							  round != 1), 0);
		}
		cr_assert_eq(pthread_join(storing, NULL), 0);
		for (size_t i = 0; i < STORED / sizeof(uint64_t); i++)
			cr_assert_eq(((uint64_t *)slot.map)[i], i * 3);
		sk_slot_unmap(os, map, STORED);
		sk_slot_destroy(os, &slot);
	}
}

/* ---- small pages, later ---- */

static void *load_all(void *map)
{
	for (int round = 0; round < 20; round++)
		for (size_t i = 0; i < STORED / sizeof(uint64_t); i += 512)
			cr_assert_eq(((volatile uint64_t *)map)[i], i * 3);
	return NULL;
}

/* Of every mapping, and while others load and store. */
Test(slot, collapse_gives_huge_pages_to_what_is_small)
{
	const struct sk_os *os = sk_os_linux();
	struct sk_slot slot = create(STORED + SK_PAGE);
	pthread_t storing, loading;
	void *map;

	cr_assert_eq(sk_slot_map_fd(os, slot.fd, slot.bytes, true, &map,
				    NULL), 0);
	store_all(map);
	cr_assert_eq(in_huge_pages(map), 0);
	cr_assert_eq(pthread_create(&storing, NULL, store_all, map), 0);
	cr_assert_eq(pthread_create(&loading, NULL, load_all, map), 0);
	for (int i = 0; i < 2; i++)	/* the second time is for nothing */
		cr_assert_eq(sk_slot_collapse(os, &slot, 0, slot.bytes) == 0,
			     can_collapse());
	cr_assert_eq(pthread_join(storing, NULL), 0);
	cr_assert_eq(pthread_join(loading, NULL), 0);
	load_all(slot.map);
	load_all(map);	/* mapped anew, as it is touched */
	cr_assert_eq(in_huge_pages(slot.map), can_collapse() ? STORED : 0);
	cr_assert_eq(in_huge_pages(map), in_huge_pages(slot.map));
	sk_slot_unmap(os, map, slot.bytes);
	sk_slot_destroy(os, &slot);
}

/* Whole huge pages alone; a failure is told. */
Test(slot, collapse_asks_for_what_is_whole)
{
	struct sk_slot slot = create(3 * HUGE);
	struct sk_fault_os fault;

	sk_fault_os_init(&fault, sk_os_linux());
	sk_fault_os_fail(&fault, SK_FAULT_MADVISE, 1, 1, ENOMEM);
	cr_assert_eq(sk_slot_collapse(&fault.os, &slot, 0, 0), 0);
	cr_assert_eq(sk_slot_collapse(&fault.os, &slot, 5, 2 * HUGE - 1), 0);
	cr_assert_eq(sk_fault_os_calls(&fault, SK_FAULT_MADVISE), 0);
	cr_assert_eq(sk_slot_collapse(&fault.os, &slot, 5, 3 * HUGE - 1),
		     -ENOMEM);
	sk_slot_destroy(sk_os_linux(), &slot);
}

/* ---- sealing writes ---- */

Test(slot, sealed_writes_leave_old_mappings_only)
{
	const struct sk_os *os = sk_os_linux();
	struct sk_slot slot = create(BYTES);
	void *client = NULL, *reader = NULL;
	struct sk_err err = { 0 };
	char path[64];
	int fd;

	cr_assert_eq(sk_slot_map_fd(os, slot.fd, slot.bytes, true, &client,
				    &err), 0, "%s", err.text);
	cr_assert_eq(sk_slot_seal_writes(os, &slot, &err), 0, "%s", err.text);

	cr_assert_eq(fallocate(slot.fd,
			       FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
			       SK_PAGE), -1);
	cr_assert_eq(errno, EPERM);
	cr_assert_eq(madvise(client, SK_PAGE, MADV_REMOVE), -1);
	cr_assert_eq(pwrite(slot.fd, "x", 1, 0), -1);
	cr_assert_eq(errno, EPERM);
	cr_assert_eq(ftruncate(slot.fd, 0), -1);
	cr_assert_eq(sk_slot_map_fd(os, slot.fd, slot.bytes, true, &reader,
				    &err), -EPERM);
	cr_assert_null(reader);
	cr_assert(strstr(err.text, "writing"), "%s", err.text);
	/* Nor does another descriptor of it help. */
	snprintf(path, sizeof(path), "/proc/self/fd/%d", slot.fd);
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd >= 0) {
		cr_assert_eq(mmap(NULL, SK_PAGE, PROT_WRITE, MAP_SHARED, fd,
				  0), MAP_FAILED);
		close(fd);
	}

	cr_assert_eq(sk_slot_map_fd(os, slot.fd, slot.bytes, false, &reader,
				    &err), 0, "%s", err.text);
	memcpy(client, "still", 6);
	cr_assert_str_eq(reader, "still");
	cr_assert_str_eq(slot.map, "still");
	memcpy(slot.map, "owner", 6);
	cr_assert_str_eq(reader, "owner");
	cr_assert_eq(sk_slot_populate(os, &slot, 0, slot.bytes, NULL), 0);

	sk_slot_unmap(os, client, slot.bytes);
	sk_slot_unmap(os, reader, slot.bytes);
	sk_slot_destroy(os, &slot);
}

Test(slot, before_sealing_writes_a_hole_can_be_punched)
{
	struct sk_slot slot = create(BYTES);

	memcpy(slot.map, "here", 5);
	cr_assert_eq(fallocate(slot.fd,
			       FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
			       SK_PAGE), 0);
	cr_assert_str_eq(slot.map, "");
	sk_slot_destroy(sk_os_linux(), &slot);
}

Test(slot, sealing_writes_twice_is_fine_and_closes_the_set)
{
	struct sk_slot slot = create(BYTES);

	cr_assert_eq(sk_slot_seal_writes(sk_os_linux(), &slot, NULL), 0);
	cr_assert_eq(sk_slot_seal_writes(sk_os_linux(), &slot, NULL), 0);
	cr_assert_eq(fcntl(slot.fd, F_ADD_SEALS, F_SEAL_WRITE), -1);
	cr_assert_eq(errno, EPERM);
	sk_slot_destroy(sk_os_linux(), &slot);
}

Test(slot, sealing_writes_fails_where_the_set_was_closed)
{
	struct sk_slot slot = create(BYTES);
	struct sk_err err = { 0 };

	cr_assert_eq(fcntl(slot.fd, F_ADD_SEALS, F_SEAL_SEAL), 0);
	cr_assert_eq(sk_slot_seal_writes(sk_os_linux(), &slot, &err),
		     -EPERM);
	cr_assert(err.text[0]);
	sk_slot_destroy(sk_os_linux(), &slot);
}

/* ---- descriptors of others ---- */

Test(slot, reopened_descriptor_reads_only)
{
	struct sk_slot slot = create(BYTES);
	struct sk_fault_os fault;
	struct sk_err err = { 0 };
	char text[6];
	int fd;

	memcpy(slot.map, "image", 6);
	fd = sk_slot_reopen_ro(sk_os_linux(), &slot, &err);
	cr_assert_geq(fd, 0, "%s", err.text);
	cr_assert_eq(pread(fd, text, 6, 0), 6);
	cr_assert_str_eq(text, "image");
	cr_assert_eq(pwrite(fd, "x", 1, 0), -1);
	cr_assert_eq(errno, EBADF);
	cr_assert_eq(fcntl(fd, F_GETFL) & O_ACCMODE, O_RDONLY);
	cr_assert(fcntl(fd, F_GETFD) & FD_CLOEXEC);
	close(fd);
	sk_fault_os_init(&fault, sk_os_linux());
	sk_fault_os_fail(&fault, SK_FAULT_OPENAT, 1, 1, EMFILE);
	cr_assert_eq(sk_slot_reopen_ro(&fault.os, &slot, &err), -EMFILE);
	cr_assert(err.text[0]);
	sk_slot_destroy(sk_os_linux(), &slot);
}

static void expect_no_slot(int fd, uint64_t bytes, int error,
			   const char *words)
{
	struct sk_err err = { 0 };
	void *map = &err;

	cr_assert_eq(sk_slot_map_fd(sk_os_linux(), fd, bytes, false, &map,
				    &err), error, "%s", words);
	cr_assert(strstr(err.text, words), "%s", err.text);
	cr_assert_eq(map, &err);
}

Test(slot, map_refuses_what_is_no_slot)
{
	struct sk_slot slot = create(BYTES);
	int open_memfd = memfd_create("open", MFD_CLOEXEC |
					      MFD_ALLOW_SEALING);
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);

	cr_assert(open_memfd >= 0 && null >= 0);
	cr_assert_eq(ftruncate(open_memfd, BYTES), 0);
	expect_no_slot(null, SK_PAGE, -EBADF, "not a memfd");
	expect_no_slot(-1, SK_PAGE, -EBADF, "not a memfd");
	expect_no_slot(open_memfd, SK_PAGE, -EBADF, "shrink");
	expect_no_slot(slot.fd, slot.bytes + 1, -EBADF, "announced");
	expect_no_slot(slot.fd, 0, -EINVAL, "0 bytes");
	close(null);
	close(open_memfd);
	sk_slot_destroy(sk_os_linux(), &slot);
}

Test(slot, read_only_map_follows_the_writer)
{
	const struct sk_os *os = sk_os_linux();
	struct sk_slot slot = create(BYTES);
	void *writer, *reader;
	int fd;

	fd = sk_slot_reopen_ro(os, &slot, NULL);
	cr_assert_geq(fd, 0);
	cr_assert_eq(sk_slot_map_fd(os, slot.fd, BYTES, true, &writer, NULL),
		     0);
	cr_assert_eq(sk_slot_map_fd(os, fd, BYTES, false, &reader, NULL), 0);
	close(fd);
	((char *)writer)[BYTES - 1] = 9;
	cr_assert_eq(((char *)reader)[BYTES - 1], 9);
	sk_slot_unmap(os, writer, BYTES);
	sk_slot_unmap(os, reader, BYTES);
	sk_slot_unmap(os, NULL, BYTES);
	sk_slot_destroy(os, &slot);
}

/* ---- what the system may refuse ---- */

Test(slot, old_kernels_know_no_noexec_seal)
{
	struct sk_slot slot = SK_SLOT_NULL;
	struct sk_fault_os fault;

	sk_fault_os_init(&fault, sk_os_linux());
	sk_fault_os_fail(&fault, SK_FAULT_MEMFD_CREATE, 1, 1, EINVAL);
	cr_assert_eq(sk_slot_create(&fault.os, "old", BYTES, -1, &slot,
				    NULL), 0);
	cr_assert_eq(sk_fault_os_calls(&fault, SK_FAULT_MEMFD_CREATE), 2);
	sk_slot_destroy(sk_os_linux(), &slot);
}

Test(slot, create_survives_the_failure_of_every_call)
{
	for (uint64_t n = 1;; n++) {
		struct sk_slot slot = { .fd = 77 };
		int before = count_fds(), r;
		struct sk_err err = { 0 };
		struct sk_fault_os fault;

		sk_fault_os_init(&fault, sk_os_linux());
		sk_fault_os_fail(&fault, SK_FAULT_ANY, n, 1, EIO);
		r = sk_slot_create(&fault.os, "frail", 2 * HUGE, -1, &slot,
				   &err);
		if (r == 0) {
			sk_slot_destroy(sk_os_linux(), &slot);
		} else {
			cr_assert_eq(r, -EIO, "call %lu", n);
			cr_assert(strstr(err.text, "frail"), "%s", err.text);
			cr_assert_eq(slot.fd, 77, "call %lu", n);
		}
		cr_assert_eq(count_fds(), before, "call %lu", n);
		if (!sk_fault_os_hits(&fault))
			break;
		cr_assert_lt(n, 50);
	}
}

Test(slot, map_survives_the_failure_of_every_call)
{
	struct sk_slot slot = create(BYTES);
	uint64_t n;

	for (n = 1; n < 50; n++) {
		struct sk_fault_os fault;
		void *map = NULL;
		int r;

		sk_fault_os_init(&fault, sk_os_linux());
		sk_fault_os_fail(&fault, SK_FAULT_ANY, n, 1, EIO);
		r = sk_slot_map_fd(&fault.os, slot.fd, BYTES, true, &map,
				   NULL);
		if (!sk_fault_os_hits(&fault)) {
			cr_assert_eq(r, 0);
			sk_slot_unmap(sk_os_linux(), map, BYTES);
			break;
		}
		cr_assert_eq(r, -EIO, "call %lu", n);
		cr_assert_null(map);
	}
	cr_assert_gt(n, 3);
	sk_slot_destroy(sk_os_linux(), &slot);
}

/* ---- huge pages, told of by a system of our own making ---- */

struct fake {
	struct sk_os os;
	const char *free_pages, *promised, *near;
	int answer;		/* descriptor -> which file was opened */
	unsigned huge_asked, small_asked;
};

static int fake_openat(const struct sk_os *os, int dirfd, const char *path,
		       int flags, mode_t mode)
{
	struct fake *fake = os->ctx;
	const char *text = fake->near;
	int fd;

	(void)dirfd;
	(void)flags;
	(void)mode;
	if (strstr(path, "resv_hugepages"))
		text = fake->promised;
	else if (strstr(path, "/sys/kernel/mm"))
		text = fake->free_pages;
	if (!text)
		return -ENOENT;
	fd = memfd_create("fake", MFD_CLOEXEC);
	if (fd >= 0 && write(fd, text, strlen(text)) < 0)
		cr_assert_fail("no memory");
	return fd;
}

/* Notes what is asked for, and gives small pages for huge ones. */
static int fake_memfd_create(const struct sk_os *os, const char *name,
			     unsigned flags)
{
	struct fake *fake = os->ctx;

	if (flags & MFD_HUGETLB)
		fake->huge_asked++;
	else
		fake->small_asked++;
	if (flags & MFD_HUGETLB && fake->answer)
		return fake->answer;
	return memfd_create(name, flags & (MFD_CLOEXEC | MFD_ALLOW_SEALING));
}

static struct fake fake_system(const char *free_pages, const char *promised,
			       const char *near)
{
	struct fake fake = {
		.os = *sk_os_linux(),
		.free_pages = free_pages,
		.promised = promised,
		.near = near,
	};

	fake.os.openat = fake_openat;
	fake.os.memfd_create = fake_memfd_create;
	return fake;
}

struct huge_case {
	const char *free_pages, *promised, *near;
	int node, answer;
	bool huge;
};

Test(slot, takes_huge_pages_where_enough_are_free)
{
	static const struct huge_case cases[] = {
		{ "2\n", "0\n", NULL, -1, 0, true },
		{ "5\n", "3\n", NULL, -1, 0, true },
		{ "1\n", "0\n", NULL, -1, 0, false },
		{ "5\n", "4\n", NULL, -1, 0, false },
		{ "5\n", "9\n", NULL, -1, 0, false },
		{ "9\n", "0\n", "2\n", 0, 0, true },
		{ "9\n", "0\n", "1\n", 0, 0, false },
		{ "9\n", "0\n", NULL, 0, 0, false },
		{ NULL, NULL, NULL, -1, 0, false },
		{ "x\n", "0\n", NULL, -1, 0, false },
		{ "2\n", "0\n", NULL, -1, -ENOMEM, false },
		{ "2\n", "0\n", NULL, -1, -EINVAL, false },
	};

	for (size_t i = 0; i < SK_ARRAY_SIZE(cases); i++) {
		const struct huge_case *t = &cases[i];
		struct fake fake = fake_system(t->free_pages, t->promised,
					       t->near);
		struct sk_slot slot = SK_SLOT_NULL;

		fake.os.ctx = &fake;
		fake.answer = t->answer;
		cr_assert_eq(sk_slot_create(&fake.os, "huge", HUGE + 1,
					    t->node, &slot, NULL), 0);
		cr_assert_eq(slot.huge, t->huge, "case %zu", i);
		cr_assert_eq(fake.huge_asked > 0, t->huge || t->answer,
			     "case %zu", i);
		cr_assert_eq(slot.bytes, t->huge ? 2 * HUGE : HUGE + SK_PAGE,
			     "case %zu", i);
		sk_slot_destroy(sk_os_linux(), &slot);
	}
}

Test(slot, small_slots_take_no_huge_page)
{
	struct fake fake = fake_system("100\n", "0\n", "100\n");
	struct sk_slot slot = SK_SLOT_NULL;

	fake.os.ctx = &fake;
	cr_assert_eq(sk_slot_create(&fake.os, "small", HUGE - 1, -1, &slot,
				    NULL), 0);
	cr_assert_eq(fake.huge_asked, 0);
	cr_assert_not(slot.huge);
	sk_slot_destroy(sk_os_linux(), &slot);
}

/* On machines that have huge pages: odd sizes map and unmap all the same. */
Test(slot, real_huge_pages_serve)
{
	const struct sk_os *os = sk_os_linux();
	struct sk_slot slot = create(2 * HUGE);
	struct sk_err err = { 0 };
	void *map, *again;

	if (!slot.huge) {
		sk_slot_destroy(os, &slot);
		cr_skip_test("no free huge pages");
	}
	cr_assert_eq(sk_slot_populate(os, &slot, 0, 5, &err), 0, "%s",
		     err.text);
	cr_assert_eq(sk_slot_map_fd(os, slot.fd, HUGE + 5, true, &map, &err),
		     0, "%s", err.text);
	cr_assert_eq(sk_slot_seal_writes(os, &slot, &err), 0, "%s", err.text);
	((char *)map)[HUGE + 4] = 3;
	cr_assert_eq(((char *)slot.map)[HUGE + 4], 3);
	sk_slot_unmap(os, map, HUGE + 5);
	cr_assert_eq(mincore(map, SK_PAGE, (unsigned char *)&err), -1);
	cr_assert_eq(sk_slot_map_fd(os, slot.fd, 2 * HUGE, true, &again,
				    &err), -EPERM);
	sk_slot_destroy(os, &slot);
}

/* A descriptor that somebody kept: each call may fail, and nothing is left. */
Test(slot, each_call_of_an_adoption_may_fail)
{
	const struct sk_os *os = sk_os_linux();
	struct sk_slot slot = SK_SLOT_NULL, adopted;
	struct sk_fault_os fault;
	struct sk_err err;
	struct held before;
	uint64_t hits = 1;
	int r = -EIO;

	cr_assert_eq(sk_slot_create(os, "adopted", 3 * SK_PAGE, 0, &slot,
				    &err), 0, "%s", err.text);
	before = held_now();
	for (uint64_t n = 1; hits; n++) {
		err.text[0] = 0;
		adopted = (struct sk_slot)SK_SLOT_NULL;
		sk_fault_os_init(&fault, os);
		sk_fault_os_fail(&fault, SK_FAULT_ANY, n, 1, EIO);
		r = sk_slot_adopt(&fault.os, slot.fd, slot.bytes, 0, &adopted,
				  &err);
		hits = sk_fault_os_hits(&fault);
		if (!hits)
			break;
		cr_assert(r < 0 && err.text[0], "call %d: %d", (int)n, r);
		cr_assert_null(adopted.map, "call %d", (int)n);
		cr_assert_eq(held_now().maps, before.maps, "call %d", (int)n);
		cr_assert_eq(held_now().fds, before.fds, "call %d", (int)n);
	}
	cr_assert_eq(r, 0);
	cr_assert(adopted.fd == slot.fd && adopted.bytes == slot.bytes);
	adopted.fd = -1;
	sk_slot_destroy(os, &adopted);
	sk_slot_destroy(os, &slot);
}
