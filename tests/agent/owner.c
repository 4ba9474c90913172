/* SPDX-License-Identifier: Apache-2.0 */
/* Whose the files of root's agent are: read by their user, and by no other. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/rig.h"

#define NOBODY 65534
#define STRANGER 65533
#define JOB "owned"
#define STEP 10
#define STEP_DIR "step-000000000010"
#define IMAGE STEP_DIR "/rank-00000-of-00001.safetensors"

static void become(uid_t uid)
{
	CHECK(setgroups(0, NULL) == 0 && setgid(uid) == 0 && setuid(uid) == 0,
	      "setuid");
}

static char *path_of(const struct rig *rig, const char *name, char buf[256])
{
	snprintf(buf, 256, "%s/" JOB "/%s", rig->store, name);
	return buf;
}

static bool is_refused(int r)
{
	return r < 0 && errno == EACCES;
}

static bool can_list(const char *path)
{
	DIR *dir = opendir(path);

	if (dir)
		closedir(dir);
	return dir;
}

/* The bytes are those that the rank put there. */
static void check_read(const struct rig *rig)
{
	char path[256];
	uint64_t header;
	uint32_t word;
	int fd = open(path_of(rig, IMAGE, path), O_RDONLY | O_CLOEXEC);

	CHECK(fd >= 0, "%s: %s", path, strerror(errno));
	CHECK(pread(fd, &header, 8, 0) == 8, "short");
	CHECK(pread(fd, &word, 4, (off_t)(8 + header)) == 4, "short");
	CHECK(word == rank_word(0, STEP), "word %x", word);
	close(fd);
}

/* Nothing is made, renamed or removed in what stays root's. */
static void check_fixed(const struct rig *rig)
{
	static const char *const dirs[] = { "", STEP_DIR "/" };
	char path[256], image[256], step[256], name[64];

	path_of(rig, IMAGE, image);
	path_of(rig, STEP_DIR, step);
	for (int i = 0; i < 2; i++) {
		snprintf(name, sizeof(name), "%snew", dirs[i]);
		path_of(rig, name, path);
		CHECK(is_refused(open(path, O_CREAT | O_WRONLY | O_CLOEXEC,
				      0600)), "created %s", path);
		CHECK(is_refused(symlink("/etc", path)), "linked %s", path);
		CHECK(is_refused(rename(image, path)), "renamed to %s", path);
	}
	CHECK(is_refused(unlink(image)), "removed");
	CHECK(is_refused(rename(step, path_of(rig, "moved", path))),
	      "moved the step");
	CHECK(chmod(step, 0777) < 0 && errno == EPERM, "opened the step");
}

static void as_owner(const struct rig *rig)
{
	char path[256];
	struct rank r;

	become(NOBODY);
	CHECK_STATUS(rank_open(&r, rig, &(struct rank_options){
		.job = JOB, .world = 1 }), 0, &r.msg);
	rank_snapshot(&r, STEP);
	CHECK_STATUS(rank_wait(&r, STEP, 3, WAIT_MS), 0, &r.msg);
	check_read(rig);
	CHECK(can_list(path_of(rig, STEP_DIR, path)), "cannot list the step");
	check_fixed(rig);
	/* What the owner does to a file of theirs does not stop the agent. */
	CHECK(truncate(path_of(rig, IMAGE, path), 100) == 0, "truncate");
	(void)snapshot_flags(r.sock, JOB, STEP);
	rank_snapshot(&r, STEP + 1);
	CHECK_STATUS(rank_wait(&r, STEP + 1, 3, WAIT_MS), 0, &r.msg);
	rank_close(&r);
	_exit(0);
}

/* A job has one owner on the store: its name is nobody else's, whoever knows
 * of it. */
static void check_name_is_taken(const struct rig *rig)
{
	struct rank r;

	CHECK_STATUS(rank_open(&r, rig, &(struct rank_options){
		.job = JOB, .world = 1 }), -EACCES, &r.msg);
	CHECK(strstr(rig_why(&r.msg), "another user"), "%s",
	      rig_why(&r.msg));
	rank_close(&r);
	CHECK_STATUS(rank_open(&r, rig, &(struct rank_options){
		.job = "strangers", .world = 1 }), 0, &r.msg);
	rank_close(&r);
}

static void as_stranger(const struct rig *rig)
{
	char path[256];

	become(STRANGER);
	check_name_is_taken(rig);
	CHECK(is_refused(open(path_of(rig, IMAGE, path), O_RDONLY |
			      O_CLOEXEC)), "read another user's image");
	CHECK(!can_list(rig->store), "listed the store");
	CHECK(!can_list(path_of(rig, "", path)), "listed another user's job");
	CHECK(is_refused(open(path_of(rig, ".owner", path), O_RDONLY |
			      O_CLOEXEC)), "read .owner");
	_exit(0);
}

static void run_as(void (*user)(const struct rig *rig), const struct rig *rig)
{
	int status;
	pid_t pid = fork();

	CHECK(pid >= 0, "fork");
	if (!pid)
		user(rig);
	CHECK(waitpid(pid, &status, 0) == pid && status == 0, "status %d",
	      status);
}

/* Root's own jobs are entered by root alone. */
static void test_root(const struct rig *rig)
{
	char path[256];
	struct stat st;
	struct rank r;

	CHECK_STATUS(rank_open(&r, rig, &(struct rank_options){
		.job = "root", .world = 1 }), 0, &r.msg);
	rank_snapshot(&r, STEP);
	CHECK_STATUS(rank_wait(&r, STEP, 3, WAIT_MS), 0, &r.msg);
	rank_close(&r);
	snprintf(path, sizeof(path), "%s/root", rig->store);
	CHECK(stat(path, &st) == 0 && (st.st_mode & 07777) == 0700, "mode %o",
	      st.st_mode);
}

int main(int argc, char **argv)
{
	struct rig rig;

	if (geteuid() != 0)
		return 77;	/* one user cannot tell */
	umask(022);
	rig_init(&rig, argc > 1 ? argv[1] : NULL);
	rig_start(&rig, "--store", rig.store, "--memory", "256M", NULL);
	run_as(as_owner, &rig);
	run_as(as_stranger, &rig);
	test_root(&rig);
	CHECK(rig_stop(&rig) == 0, "exit status");
	/* Of the next agent, which knows of no rank. */
	rig_start(&rig, "--store", rig.store, "--memory", "256M", NULL);
	run_as(as_stranger, &rig);
	CHECK(rig_stop(&rig) == 0, "exit status");
	rig_remove(&rig);
	return 0;
}
