/* Two links over a socketpair in one loop: frames arrive unchanged, sealed and unsealed,
 * in pieces of any size. */
#include "tests/support/suite.h"

#include "common/duration.h"
#include "common/mem.h"
#include "common/sock.h"
#include "launcher/link/link.h"

#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

struct end {
    struct link *link;
    size_t frames, bytes;
    uint8_t last; /* byte of the last body */
    bool closes;  /* the link, at its first frame */
    char *closed; /* the reason; "": closed normally */
};

static struct loop *loop;
static struct end up, down; /* up receives from below */
static int fds[2];

static void on_frame(struct link *l, const struct frame *f, void *arg)
{
    struct end *e = arg;
    e->frames++;
    e->bytes += f->size;
    if (f->size > 0)
        e->last = f->body[f->size - 1];
    if (e->closes) {
        link_close(l);
        e->link = NULL;
    }
}

static void on_closed(struct link *l, const char *why, void *arg)
{
    struct end *e = arg;
    ck_assert_msg(!e->closed, "closed twice");
    e->closed = xstrdup(why ? why : "");
}

static const struct link_events events = {on_frame, on_closed};

static void open_ends(bool sealed)
{
    struct ddp_err err;
    struct link_keys a = {.out = {{{1}}, 0}, .in = {{{2}}, 0}},
                     b = {.out = {{{2}}, 0}, .in = {{{1}}, 0}};
    loop = loop_create(&err);
    up = down = (struct end){0};
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
    up.link = link_create(loop, fds[0], FRAME_UP, sealed ? &a : NULL, &events, &up);
    down.link = link_create(loop, fds[1], FRAME_DOWN, sealed ? &b : NULL, &events, &down);
}

static void close_ends(void)
{
    link_destroy(up.link);
    link_destroy(down.link);
    free(up.closed);
    free(down.closed);
    loop_destroy(loop);
}

/* Run the loop until `*what` has reached `n`. */
static void run_until(const size_t *what, size_t n)
{
    int64_t deadline = now_ms() + 50000;
    while (*what < n) {
        ck_assert_msg(now_ms() < deadline, "%zu of %zu", *what, n);
        event_base_loop(loop_base(loop), EVLOOP_ONCE | EVLOOP_NONBLOCK);
    }
}

static const size_t sizes[] = {0, 1, 7, 1000, 65536};

LOOP_TEST(frames_arrive_whole_and_in_order, 2)
{
    size_t sent = 0, bytes = 0;
    uint8_t *body = xcalloc(1, PIECE_MAX);
    open_ends(_i);
    for (int round = 0; round < 40; round++) {
        for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
            memset(body, round, sizes[i]);
            link_send(down.link, MSG_OUTPUT, 3, "ab", 2, body, sizes[i]);
            sent++;
            bytes += 2 + sizes[i];
        }
    }
    run_until(&up.frames, sent);
    ck_assert_uint_eq(up.bytes, bytes);
    ck_assert_uint_eq(up.last, 39);
    link_send(up.link, MSG_SHUTDOWN, NODE_ALL, NULL, 0, NULL, 0);
    run_until(&down.frames, 1);
    free(body);
    close_ends();
}

LOOP_TEST(what_has_arrived_is_read_in_one_turn_of_the_loop, 2)
{
    static const uint8_t body[1000];
    open_ends(_i);
    for (int i = 0; i < 50; i++)
        link_send(down.link, MSG_OUTPUT, 3, "ab", 2, body, sizeof body);
    link_flush(down.link, now_ms() + 50000);
    event_base_loop(loop_base(loop), EVLOOP_ONCE | EVLOOP_NONBLOCK);
    ck_assert_uint_eq(up.frames, 50);
    close_ends();
}

LOOP_TEST(what_has_arrived_is_received_before_its_turn, 2)
{
    static const uint8_t body[PIECE_MAX];
    open_ends(_i);
    link_receive(up.link);
    ck_assert_uint_eq(up.frames, 0);
    for (int i = 0; i < 3; i++)
        link_send(down.link, MSG_OUTPUT, 3, NULL, 0, body, PIECE_MAX / 2);
    link_flush(down.link, now_ms() + 50000);
    link_receive(up.link);
    ck_assert_uint_eq(up.frames, 3);
    close_ends();
}

LOOP_TEST(the_close_is_reported_once_after_the_last_frame, 2)
{
    open_ends(_i);
    link_send(down.link, MSG_TERMINATED, 0, NULL, 0, NULL, 0);
    link_close(down.link);
    down.link = NULL;
    run_until(&up.frames, 1);
    for (int i = 0; i < 5; i++)
        event_base_loop(loop_base(loop), EVLOOP_ONCE | EVLOOP_NONBLOCK);
    ck_assert_ptr_nonnull(up.closed);
    ck_assert_str_eq(up.closed, "");
    close_ends();
}

/* Reads so many bytes in a process of its own. */
static pid_t read_all(size_t n)
{
    static uint8_t bytes[PIECE_MAX];
    pid_t pid = fork();
    while (pid == 0 && n > 0) {
        ssize_t got = sock_await(fds[0], POLLIN, now_ms() + 20000) == 0
                          ? read(fds[0], bytes, sizeof bytes)
                          : 0;
        if (got <= 0)
            _exit(1);
        n -= (size_t)got;
    }
    if (pid == 0)
        _exit(0);
    return pid;
}

TEST(a_flush_waits_for_the_peer_up_to_its_deadline)
{
    enum { N = 64 };
    static const uint8_t body[PIECE_MAX];
    int status;
    open_ends(false);
    for (int i = 0; i < N; i++)
        link_send(down.link, MSG_OUTPUT, 3, NULL, 0, body, sizeof body);
    link_flush(down.link, now_ms() + 20);
    pid_t pid = read_all((size_t)N * (FRAME_HEAD + sizeof body));
    link_flush(down.link, now_ms() + 50000);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_int_eq(status, 0);
    close_ends();
}

LOOP_TEST(no_frame_is_delivered_after_the_close, 2)
{
    open_ends(_i);
    up.closes = true;
    for (int i = 0; i < 2; i++)
        link_send(down.link, MSG_TERMINATED, 0, NULL, 0, NULL, 0);
    run_until(&up.frames, 1);
    for (int i = 0; i < 5; i++)
        event_base_loop(loop_base(loop), EVLOOP_ONCE | EVLOOP_NONBLOCK);
    ck_assert_uint_eq(up.frames, 1);
    ck_assert_ptr_null(up.closed);
    ck_assert_str_eq(down.closed, "");
    close_ends();
}

LOOP_TEST(sending_to_a_closed_peer_is_safe, 2)
{
    open_ends(_i);
    signal(SIGPIPE, SIG_IGN);
    link_destroy(down.link);
    down.link = NULL;
    for (int i = 0; i < 5; i++) {
        link_send(up.link, MSG_PING, 0, NULL, 0, NULL, 0);
        event_base_loop(loop_base(loop), EVLOOP_ONCE | EVLOOP_NONBLOCK);
    }
    ck_assert_ptr_nonnull(up.closed);
    close_ends();
}

/* Malformed bytes on the wire, and their errors. */
static void expect_broken(const void *bytes, size_t n, const char *why)
{
    ck_assert_int_eq(write(fds[1], bytes, n), (ssize_t)n);
    int64_t deadline = now_ms() + 50000;
    while (!up.closed && now_ms() < deadline)
        event_base_loop(loop_base(loop), EVLOOP_ONCE | EVLOOP_NONBLOCK);
    ck_assert_ptr_nonnull(up.closed);
    ck_assert_str_eq(up.closed, why);
    ck_assert_uint_eq(up.frames, 0);
}

static const char forged[] = "a record that was not sealed with the key of this job";

enum { RECORD = 4 + 8 + SEAL_EXTRA };

static void seal_a_frame(unsigned char record[RECORD])
{
    struct seal s = {{{2}}, 0};
    uint8_t head[FRAME_HEAD];
    memcpy(record, (unsigned char[]){0, 0, 0, 8 + SEAL_EXTRA}, 4);
    frame_head(head, MSG_TERMINATED, 0, 0);
    seal_close(&s, record, 4, head, 8, record + 4);
}

LOOP_TEST(a_record_that_was_changed_breaks_the_link, 4 + 8 + SEAL_EXTRA)
{
    unsigned char record[RECORD];
    seal_a_frame(record);
    record[_i] ^= 0x10;
    open_ends(true);
    if (_i == 2 || _i == 3) { /* a valid length would wait for more bytes */
        record[1] = _i == 2 ? 2 : 0;
        record[3] = _i == 3 ? SEAL_EXTRA : record[3];
    }
    expect_broken(record, sizeof record, forged);
    close_ends();
}

TEST(a_record_sent_twice_breaks_the_link)
{
    unsigned char record[RECORD];
    seal_a_frame(record);
    open_ends(true);
    ck_assert_int_eq(write(fds[1], record, sizeof record), (ssize_t)sizeof record);
    run_until(&up.frames, 1);
    up.frames = 0;
    expect_broken(record, sizeof record, forged);
    close_ends();
}

TEST(malformed_bytes_break_an_unsealed_link)
{
    open_ends(false);
    expect_broken("\0\0\0\0\377\0\0\0", 8, "a frame of unknown type 255");
    close_ends();
}
