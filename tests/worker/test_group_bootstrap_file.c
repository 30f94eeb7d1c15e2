/* Meeting in a file, which earlier runs may have used. */
#define CASE_SECONDS 250
#include "tests/support/suite.h"
#include "tests/worker/meet.h"

#include "common/duration.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>

static char dir[] = "/tmp/ddp-meet-XXXXXX";
static char path[64], file_url[80];

static void make_dir(void)
{
    strcpy(dir + sizeof dir - 7, "XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/meeting", dir);
    snprintf(file_url, sizeof file_url, "file://%s", path);
}

/* As rank 0 makes it. */
static void put_meeting(const char *text)
{
    put_file(path, text);
    ck_assert_int_eq(chmod(path, 0600), 0);
}

static void remove_dir(void)
{
    unlink(path);
    ck_assert_int_eq(rmdir(dir), 0);
}

/* What is left in the file by: no run, a full disk, a run that was killed, whose address
 * is another's now, one of another size, one of another version. */
static const char *const leftovers[] = {
    NULL,
    "",
    "ddpgroup meeting 3, 4 ranks, ddp/group/0.0\n1@127.0.0.1@00000000deadbeef\n",
    "ddpgroup meeting 3, 9 ranks, ddp/group/0.0\n1@127.0.0.1@00000000deadbeef\n",
    "ddpgroup meeting 1, 4 ranks, ddp/group/0.0\n2 500\nca",
};

LOOP_TEST(ranks_meet_in_a_file_whatever_is_in_it, ARRAY_LEN(leftovers))
{
    make_dir();
    if (leftovers[_i])
        put_meeting(leftovers[_i]);
    assert_team(&(struct team){.size = 4, .layout = "aabb", .meeting = file_url},
                meet_and_sum, file_url);
    ck_assert_int_eq(access(path, F_OK), -1); /* rank 0 has removed it */
    remove_dir();
}

TEST(who_has_not_come_to_the_file_is_named)
{
    struct ddp_err err;
    make_dir();
    meet_alone(
        &(struct ddp_group_options){
            .rank = 1, .size = 4, .timeout_ms = 200, .meeting = file_url},
        &err);
    ck_assert_msg(strstr(err.text, "rank 0 has not come to file:///") &&
                      !strstr(err.text, "has ended"),
                  "%s", err.text);
    put_meeting(leftovers[2]);
    meet_alone(
        &(struct ddp_group_options){
            .rank = 1, .size = 4, .timeout_ms = 200, .meeting = file_url},
        &err);
    ck_assert_msg(strstr(err.text, "in time; the rank 0 that has written it has ended"),
                  "%s", err.text);
    meet_alone(
        &(struct ddp_group_options){
            .rank = 0, .size = 4, .timeout_ms = 200, .meeting = file_url},
        &err);
    ck_assert_msg(strstr(err.text, "3 of 4 ranks have not come to tcp://") &&
                      strstr(err.text, "in time: 1-3"),
                  "%s", err.text);
    remove_dir();
}

/* One rank is stopped while it waits, for longer than its deadline; then the other comes.
 */
static void join_stopped(int rank, bool stopped, const char *url, int port)
{
    enum { LIMIT_MS = 6000, BETWEEN_MS = 300, STOPPED_MS = 7000, LATE_MS = 7800 };
    struct ddp_err err = {""};
    if (stopped)
        team_stop(BETWEEN_MS, STOPPED_MS);
    else
        sleep_ms(LATE_MS);
    struct ddp_group *g =
        ddp_group_init(&(struct ddp_group_options){.rank = rank,
                                                   .size = 2,
                                                   .master_addr = "127.0.0.1",
                                                   .master_port = port,
                                                   .timeout_ms = stopped ? LIMIT_MS : 0,
                                                   .meeting = url},
                       &err);
    fprintf(stderr, "%s", err.text);
    ddp_group_destroy(g);
    _exit(!g);
}

TEST(a_stop_is_no_part_of_the_deadline)
{
    enum { CASES = 4 };
    char urls[2][64];
    int port;
    make_dir();
    pid_t store = team_server(&port), ranks[2 * CASES];
    meet_url(urls[0], sizeof urls[0]);
    meet_url(urls[1], sizeof urls[1]);
    const struct {
        const char *url;
        int stopped;
    } cases[CASES] = {{"env://", 1}, {urls[0], 0}, {urls[1], 1}, {file_url, 1}};
    for (int i = 0; i < 2 * CASES; i++) {
        ranks[i] = fork();
        if (ranks[i] == 0)
            join_stopped(i % 2, i % 2 == cases[i / 2].stopped, cases[i / 2].url, port);
    }
    for (int i = 0; i < 2 * CASES; i++) {
        int status;
        ck_assert_int_eq(waitpid(ranks[i], &status, 0), ranks[i]);
        ck_assert_msg(status == 0, "%s: rank %d", cases[i / 2].url, i % 2);
    }
    kill(store, SIGKILL);
    waitpid(store, NULL, 0);
    remove_dir();
}

/* A rank 0 that is there holds locks: another one waits, and so do ranks of a group of
 * another size. Until it has written it holds that of the first byte: the address that is
 * in the file is an earlier run's. */
TEST(a_file_in_use_is_left_alone)
{
    static const struct {
        int rank, size, locked; /* 0: all bytes */
        const char *text;
    } cases[] = {{0, 4, 1, "another rank 0 is at '/"},
                 {1, 4, 1, "rank 0 has not come to file:///"},
                 {0, 4, 0, "another rank 0 is at '/"},
                 {1, 5, 0, "ranks of another group, or of another size, are at '/"}};
    struct ddp_err err;
    make_dir();
    put_meeting(leftovers[2]);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct flock lock = {
            .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = cases[i].locked};
        ck_assert_int_eq(fcntl(fd, F_OFD_SETLK, &lock), 0);
        meet_alone(&(struct ddp_group_options){.rank = cases[i].rank,
                                               .size = cases[i].size,
                                               .timeout_ms = 200,
                                               .meeting = file_url},
                   &err);
        ck_assert_msg(strstr(err.text, cases[i].text), "%s", err.text);
    }
    close(fd);
    remove_dir();
}

TEST(other_files_are_left_alone)
{
    struct ddp_err err;
    struct stat st;
    make_dir();
    put_meeting("my thesis");
    meet_alone(
        &(struct ddp_group_options){
            .rank = 1, .size = 4, .timeout_ms = 5000, .meeting = file_url},
        &err);
    ck_assert_msg(strstr(err.text, "is a file of something else"), "%s", err.text);
    ck_assert_int_eq(stat(path, &st), 0);
    ck_assert_int_eq(st.st_size, 9);
    remove_dir();
    meet_alone(&(struct ddp_group_options){.rank = 1, /* nothing is at address 0 */
                                           .size = 4,
                                           .timeout_ms = 5000,
                                           .meeting = "file:///proc/self/mem"},
               &err);
    ck_assert_msg(strstr(err.text, "cannot read '/proc/self/mem': "), "%s", err.text);
}

/* As on a full disk. */
TEST(a_file_that_cannot_be_written_is_told)
{
    struct ddp_err err;
    struct rlimit before, none;
    make_dir();
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &before), 0);
    none = before;
    none.rlim_cur = 0;
    signal(SIGXFSZ, SIG_IGN);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &none), 0);
    meet_alone(
        &(struct ddp_group_options){
            .rank = 0, .size = 4, .timeout_ms = 5000, .meeting = file_url},
        &err);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &before), 0);
    ck_assert_msg(strstr(err.text, "cannot write to '/tmp/ddp-meet-"), "%s", err.text);
    ck_assert_msg(strstr(err.text, "File too large"), "%s", err.text);
    remove_dir();
}

/* Who can read it could join, and whose it is could be rank 0: planted in /tmp, say. */
TEST(a_file_that_others_can_read_is_no_place_to_meet)
{
    make_dir();
    put_meeting("");
    for (int i = 0; i < 4; i++) {
        struct ddp_err err;
        uid_t owner = i < 2 ? geteuid() : geteuid() + 1;
        if (chown(path, owner, (gid_t)-1) < 0)
            break; /* only root can give a file away */
        ck_assert_int_eq(chmod(path, i < 2 ? 0640 : 0600), 0);
        meet_alone(
            &(struct ddp_group_options){
                .rank = i % 2, .size = 4, .timeout_ms = 5000, .meeting = file_url},
            &err);
        ck_assert_msg(strstr(err.text, "or others can read it"), "%s", err.text);
    }
    remove_dir();
}
