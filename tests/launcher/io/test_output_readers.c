/* Slow readers of our output, and readers that close it. */
#include "tests/launcher/io/output_fixture.h"

#include "common/duration.h"
#include "common/mem.h"

#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

/* Our stdout becomes the writing end; returns the reading end. */
static int stdout_is(int fds[2])
{
    fflush(NULL);
    ck_assert_int_eq(dup2(fds[1], 1), 1);
    close(fds[1]);
    return fds[0];
}

static int stdout_pipe(void)
{
    int fds[2];
    ck_assert_int_eq(pipe(fds), 0);
    return stdout_is(fds);
}

enum reader { PIPE, PIPE_OF_ANOTHER, SOCKET, READERS };

static int stdout_for(enum reader kind)
{
    int fds[2];
    if (kind != SOCKET)
        return stdout_pipe();
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    return stdout_is(fds);
}

/* A pipe belongs to the user that made it. Only root can change its user here; otherwise
 * PIPE_OF_ANOTHER is the same as PIPE. */
static void make_for(enum reader kind)
{
    bool other = kind == PIPE_OF_ANOTHER && geteuid() == 0;
    if (other)
        ck_assert_int_eq(seteuid(65534), 0);
    make(&(struct opts){0}, 1, false);
    if (other) {
        ck_assert_int_eq(seteuid(0), 0);
        prctl(PR_SET_DUMPABLE, 1); /* setuid() has cleared it; the leak check needs it */
    }
}

FIXTURE(output_setup, output_teardown)

LOOP_TEST(a_slow_reader_gets_everything, READERS)
{
    int reader = stdout_for((enum reader)_i);
    make_for((enum reader)_i);
    stuck = true;
    size_t fed = 0, got = 0;
    static char piece[65536], back[65536];
    while (output_room(output) > 0) {
        for (size_t i = 0; i < sizeof piece; i++)
            piece[i] = (char)((fed + i) % 251);
        output_feed(output, 0, OUT_STDOUT, piece, sizeof piece);
        fed += sizeof piece;
        turn();
    }
    ck_assert_int_eq(drains, 0);
    ck_assert_int_eq(fcntl(1, F_GETFL) & O_NONBLOCK, 0); /* our stdout is unchanged */
    while (got < fed) {
        ssize_t n = read(reader, back, sizeof back);
        ck_assert_int_gt(n, 0);
        bool same = true;
        for (ssize_t i = 0; i < n; i++)
            same &= back[i] == (char)((got + (size_t)i) % 251);
        ck_assert_msg(same, "bytes after %zu differ", got);
        got += (size_t)n;
        turn();
    }
    stuck = false;
    turn();
    ck_assert_int_eq(drains, 1);
    ck_assert_uint_gt(output_room(output), 1 << 20);
}

TEST(a_slow_reader_of_a_fifo_gets_everything)
{
    char *folder = temp_dir();
    char *pattern = xasprintf("%s/%%r", folder), *path = xasprintf("%s/0", folder);
    ck_assert_int_eq(mkfifo(path, 0600), 0);
    int reader = open(path, O_RDONLY | O_NONBLOCK);
    ck_assert_int_ge(reader, 0);
    ck_assert_int_eq(fcntl(reader, F_SETFL, 0), 0);
    stuck = true;
    stdout_pipe();
    make(&(struct opts){.output_filename = pattern, .output_from = "1"}, 2, false);
    enum { SIZE = 200000 };
    char *big = xcalloc(1, SIZE);
    output_feed(output, 0, OUT_STDOUT, big, SIZE);
    turn();
    /* read() alone would return 0 as long as the writer's thread has not opened it */
    struct pollfd p = {.fd = reader, .events = POLLIN};
    for (ssize_t got = 0, n; got < SIZE; got += n) {
        ck_assert_int_eq(poll(&p, 1, 10000), 1);
        n = read(reader, big, SIZE);
        ck_assert_int_gt(n, 0);
    }
    free(big);
    free(path);
    free(pattern);
    free(folder);
}

TEST(flushing_ends_at_its_deadline)
{
    stdout_pipe();
    make(&(struct opts){0}, 1, false);
    char *big = xcalloc(1, 1 << 20);
    output_feed(output, 0, OUT_STDOUT, big, 1 << 20);
    ck_assert_int_eq(output_flush(output, now_ms() + 50), -1);
    free(big);
}

TEST(a_closed_reader_is_reported_once)
{
    int reader = stdout_pipe();
    make(&(struct opts){0}, 1, false);
    close(reader);
    for (int i = 0; i < 3; i++) {
        feed(0, OUT_STDOUT, "text\n");
        turn();
    }
    ck_assert_int_eq(left, 1);
    ck_assert_int_eq(failed, 0);
    ck_assert_uint_gt(output_room(output), 0);
    ck_assert_int_eq(output_flush(output, now_ms() + 1000), -1);
}

TEST(a_full_disk_is_reported_once)
{
    int full = open("/dev/full", O_WRONLY);
    fflush(NULL);
    dup2(full, 1);
    make(&(struct opts){0}, 1, false);
    feed(0, OUT_STDOUT, "text\n");
    turn();
    feed(0, OUT_STDOUT, "text\n");
    turn();
    ck_assert_int_eq(left, 0);
    ck_assert_int_eq(failed, 1);
}

TEST(both_streams_to_one_pipe_keep_their_order)
{
    int reader = stdout_pipe();
    dup2(1, 2);
    make(&(struct opts){0}, 2, false);
    for (int i = 0; i < 100; i++)
        feed(i % 2, i % 3 ? OUT_STDOUT : OUT_STDERR, "x\n");
    turn();
    char text[1024];
    ck_assert_int_eq(read(reader, text, sizeof text), 600);
    for (int i = 0; i < 100; i++)
        ck_assert_int_eq(text[i * 6 + 1], '0' + i % 2);
}
