/* tests/worker/train/test_kept.c - memory that outlives the ranks of an attempt */
#include "tests/support/suite.h"
#include "worker/ddp/kept.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void make_memory(void)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)getpid(), memfd_create("kept", 0));
    setenv("DDPRUN_KEPT_MEMORY", path, 1);
}

static int open_ok(uint64_t *host)
{
    struct ddp_err err;
    int fd = kept_open(host, &err);
    ck_assert_msg(fd >= 0, "%s", err.text);
    return fd;
}

static struct kept_cell map_ok(int fd, int local, int column, int half, size_t bytes)
{
    struct ddp_err err;
    struct kept_cell cell;
    ck_assert_msg(kept_map(fd, local, column, half, bytes, &cell, &err) == 0, "%s",
                  err.text);
    return cell;
}

static void fill(const struct kept_cell *cell, char with, bool whole)
{
    memset(cell->at + KEPT_HEAD, with, cell->bytes);
    kept_set_whole(cell, whole);
}

TEST(all_ranks_of_a_host_have_its_number)
{
    uint64_t one, other, elsewhere;
    make_memory();
    close(open_ok(&one));
    close(open_ok(&other));
    ck_assert_uint_eq(one, other);
    make_memory();
    close(open_ok(&elsewhere));
    ck_assert_uint_ne(one, elsewhere);
}

TEST(a_job_that_cannot_restart_has_none)
{
    uint64_t host;
    struct ddp_err err;
    unsetenv("DDPRUN_KEPT_MEMORY");
    ck_assert_int_lt(kept_open(&host, &err), 0);
    ck_assert_ptr_nonnull(strstr(err.text, "needs a job that may restart"));
    setenv("DDPRUN_KEPT_MEMORY", "/nonexistent/none/file", 1);
    ck_assert_int_lt(kept_open(&host, &err), 0);
    ck_assert_ptr_nonnull(
        strstr(err.text, "cannot open DDPRUN_KEPT_MEMORY, '/nonexistent/"));
}

/* Those that were complete are found by another process, and no others. */
TEST(whole_parts_are_found)
{
    enum { BYTES = 100000 };
    uint64_t host, at = 0;
    int half, found = 0;
    char head[16], all[BYTES];
    make_memory();
    int fd = open_ok(&host);
    struct kept_cell cells[] = {map_ok(fd, 0, 0, 0, BYTES), map_ok(fd, 0, 1, 1, BYTES),
                                map_ok(fd, 255, KEPT_COLUMNS - 1, 1, BYTES)};
    fill(&cells[0], 'a', false);
    fill(&cells[1], 'b', true);
    fill(&cells[2], 'c', true);
    for (int i = 0; i < 3; i++)
        kept_unmap(&cells[i]);
    close(fd);
    fd = open_ok(&host);
    while (kept_next(fd, &at, head, sizeof head, &half)) {
        ck_assert_int_eq(half, 1);
        ck_assert(kept_read(fd, at, all, BYTES));
        ck_assert_int_eq(head[0], "bc"[found++]);
        ck_assert_int_eq(all[BYTES - 1], head[0]);
    }
    ck_assert_int_eq(found, 2);
    /* taken again, it is empty until it is whole */
    cells[1] = map_ok(fd, 0, 1, 1, 50);
    at = 0;
    ck_assert(kept_next(fd, &at, head, sizeof head, &half));
    ck_assert_int_eq(head[0], 'c');
    kept_unmap(&cells[1]);
    close(fd);
}

TEST(parts_of_ranks_that_are_gone_are_freed)
{
    static const struct {
        int local, column;
        bool stays;
    } of[] = {{0, 0, true}, {0, 1, false}, {1, 0, true},
              {1, 7, true}, {2, 0, false}, {3, 0, true}};
    uint64_t host, at = 0;
    int half, left = 0;
    char head[8];
    make_memory();
    int fd = open_ok(&host);
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        struct kept_cell cell = map_ok(fd, of[i].local, of[i].column, 0, 100);
        fill(&cell, (char)i, true);
        kept_unmap(&cell);
    }
    kept_trim(fd, 0, 2, 1); /* rank 0 of two, with one column */
    while (kept_next(fd, &at, head, sizeof head, &half)) {
        ck_assert(of[(int)head[0]].stays);
        left++;
    }
    ck_assert_int_eq(left, 4);
    close(fd);
}
