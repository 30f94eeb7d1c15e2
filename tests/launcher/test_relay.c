/* The agents below an agent: one that gives up its connection before it has joined. */
#include "tests/support/suite.h"

#include "common/duration.h"
#include "common/sock.h"
#include "launcher/agent/relay.h"
#include "launcher/link/handshake.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { SELF = 1, CHILD = 2, WAIT_MS = 20000 };

static struct loop *loop;
static int port;
static char sent[100]; /* "hello 2 " */

static void on_up(const struct frame *f, void *arg)
{
    size_t n = strlen(sent);
    snprintf(sent + n, sizeof sent - n, "%s %u ", msg_name(f->type), (unsigned)f->node);
    if (f->type == MSG_HELLO)
        loop_stop(loop, 0);
}

/* Connect, as the agent of CHILD, and answer the offer. The proof is in transit when this
 * returns, or will be. */
static int begin(struct handshake *h, const struct secret *key)
{
    unsigned char offer[HANDSHAKE_OFFER], answer[HANDSHAKE_ANSWER];
    struct ddp_err err;
    int fd = sock_connect("127.0.0.1", port, now_ms() + WAIT_MS, false, &err);
    ck_assert_msg(fd >= 0, "%s", err.text);
    while (sock_read_all(fd, offer, sizeof offer, now_ms() + 10) < 0)
        event_base_loop(loop_base(loop), EVLOOP_NONBLOCK);
    ck_assert_int_eq(handshake_answer(h, key, CHILD, offer, answer, &err), 0);
    ck_assert_int_eq(sock_write_all(fd, answer, sizeof answer, now_ms() + WAIT_MS), 0);
    return fd;
}

static void on_time(evutil_socket_t fd, short what, void *arg)
{
    loop_stop(loop, 1);
}

static void on_frame(struct link *l, const struct frame *f, void *arg) {}

static void on_closed(struct link *l, const char *why, void *arg) {}

/* It waits too long for its parent's proof and calls the launcher, or the parent again,
 * while the parent takes the connection for the child's. */
TEST(an_agent_that_gives_up_is_not_reported)
{
    static const struct link_events events = {on_frame, on_closed};
    struct secret job = {{1}}, own, child;
    struct handshake h;
    struct link_keys keys;
    struct ddp_err err;
    unsigned char proof[HANDSHAKE_PROOF];
    signal(SIGPIPE, SIG_IGN); /* as in agent_run() */
    loop = loop_create(&err);
    handshake_node_key(&job, SELF, &own);
    handshake_node_key(&own, CHILD, &child);
    close(sock_listen(NULL, 0, &port, &err)); /* a free one */
    struct relay *r = relay_listen(loop, SELF, port, &own, on_up, NULL, &err);
    ck_assert_msg(r != NULL, "%s", err.text);

    close(begin(&h, &child));
    struct event *time = loop_timer(loop, on_time, NULL);
    for (int64_t until = now_ms() + 300; now_ms() < until; sleep_ms(10))
        event_base_loop(loop_base(loop), EVLOOP_NONBLOCK);
    ck_assert_str_eq(sent, "");

    int fd = begin(&h, &child);
    while (sock_read_all(fd, proof, sizeof proof, now_ms() + 10) < 0)
        event_base_loop(loop_base(loop), EVLOOP_NONBLOCK);
    ck_assert_int_eq(handshake_confirm(&h, proof, &keys, &err), 0);
    sock_set_nonblock(fd, true);
    struct link *l = link_create(loop, fd, FRAME_DOWN, &keys, &events, NULL);
    const struct msg_hello hello = {0};
    link_send_msg(l, CHILD, MSG_HELLO, &hello);
    loop_arm(time, WAIT_MS);
    ck_assert_int_eq(loop_run(loop), 0);
    ck_assert_str_eq(sent, "hello 2 ");
    loop_free(time);
    link_destroy(l);
    relay_destroy(r);
    loop_destroy(loop);
}
