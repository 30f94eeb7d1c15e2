#include "tests/support/suite.h"

#include "common/duration.h"
#include "common/mem.h"
#include "common/sock.h"
#include "launcher/link/bootstrap.h"
#include "launcher/link/handshake.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct talk {
    struct secret key;
    struct handshake listener, caller;
    unsigned char offer[HANDSHAKE_OFFER], answer[HANDSHAKE_ANSWER],
        proof[HANDSHAKE_PROOF];
    struct link_keys below, above;
    unsigned node;
};

/* The handshake up to the answer. */
static void begin(struct talk *t, const struct secret *callers_key)
{
    struct ddp_err err;
    struct secret own;
    *t = (struct talk){0};
    ck_ok(secret_make(&t->key, &err), err);
    handshake_offer(&t->listener, &t->key, t->offer);
    handshake_node_key(&t->key, 7, &own);
    ck_ok(handshake_answer(&t->caller, callers_key ? callers_key : &own, 7, t->offer,
                           t->answer, &err),
          err);
}

TEST(the_right_key_is_accepted_and_both_derive_the_same_keys)
{
    struct talk t;
    struct ddp_err err;
    begin(&t, NULL);
    ck_ok(handshake_check(&t.listener, t.answer, t.proof, &t.node, &t.below, &err), err);
    ck_ok(handshake_confirm(&t.caller, t.proof, &t.above, &err), err);
    ck_assert_uint_eq(t.node, 7);
    ck_assert(secret_equal(&t.below.out.key, &t.above.in.key));
    ck_assert(secret_equal(&t.below.in.key, &t.above.out.key));
    ck_assert(!secret_equal(&t.below.in.key, &t.below.out.key));
    ck_assert(!secret_equal(&t.below.in.key, &t.key));
}

TEST(a_wrong_key_is_rejected)
{
    struct talk t;
    struct ddp_err err;
    begin(&t, &(struct secret){{1}});
    ck_assert_int_eq(
        handshake_check(&t.listener, t.answer, t.proof, &t.node, &t.below, &err), -1);
    ck_assert_str_eq(err.text, "it does not know the key of this job");
}

TEST(a_key_is_valid_for_its_node_only)
{
    struct talk t;
    struct ddp_err err;
    struct secret other;
    begin(&t, NULL);
    handshake_node_key(&t.key, 8, &other);
    ck_ok(handshake_answer(&t.caller, &other, 7, t.offer, t.answer, &err), err);
    ck_assert_int_eq(
        handshake_check(&t.listener, t.answer, t.proof, &t.node, &t.below, &err), -1);
}

/* All keys and all bytes sent are not enough to derive the keys of the link. */
TEST(link_keys_are_not_derived_from_sent_bytes)
{
    struct talk t;
    struct handshake replay;
    struct ddp_err err;
    struct link_keys guess;
    begin(&t, NULL);
    replay = t.listener;
    exchange_make(&replay.own);
    memcpy(replay.own.public, t.listener.own.public, SECRET_SIZE);
    ck_ok(handshake_check(&t.listener, t.answer, t.proof, &t.node, &t.below, &err), err);
    ck_ok(handshake_check(&replay, t.answer, t.proof, &t.node, &guess, &err), err);
    ck_assert(!secret_equal(&guess.in.key, &t.below.in.key));
    ck_assert(!secret_equal(&guess.out.key, &t.below.out.key));
    ck_assert(memcmp(t.listener.own.private, (char[SECRET_SIZE]){0}, SECRET_SIZE) == 0);
}

LOOP_TEST(a_changed_bit_in_the_answer_is_detected, HANDSHAKE_ANSWER)
{
    struct talk t;
    struct ddp_err err;
    begin(&t, NULL);
    t.answer[_i] ^= 1;
    ck_assert_int_eq(
        handshake_check(&t.listener, t.answer, t.proof, &t.node, &t.below, &err), -1);
}

TEST(an_answer_to_another_offer_is_rejected)
{
    struct talk t;
    struct handshake fresh;
    struct ddp_err err;
    unsigned char offer[HANDSHAKE_OFFER];
    begin(&t, NULL);
    handshake_offer(&fresh, &t.key, offer);
    ck_assert_int_eq(handshake_check(&fresh, t.answer, t.proof, &t.node, &t.below, &err),
                     -1);
}

TEST(a_listener_without_the_key_is_detected)
{
    struct talk t;
    struct ddp_err err;
    begin(&t, NULL);
    ck_ok(handshake_check(&t.listener, t.answer, t.proof, &t.node, &t.below, &err), err);
    t.proof[3] ^= 0x80;
    ck_assert_int_eq(handshake_confirm(&t.caller, t.proof, &t.above, &err), -1);
    ck_assert_str_eq(err.text, "the listener does not know the key of this job");
}

TEST(another_version_is_named)
{
    struct talk t;
    struct ddp_err err;
    begin(&t, NULL);
    t.offer[7]++;
    ck_assert_int_eq(handshake_answer(&t.caller, &t.key, 7, t.offer, t.answer, &err), -1);
    ck_assert_str_eq(err.text,
                     "the other side speaks protocol 2, this one 1: versions of "
                     "ddprun differ");
}

/* --- bootstrap ---------------------------------------------------------------------- */

static struct bootstrap example(void)
{
    struct bootstrap s = {.node = 3, .name = xstrdup("n3"), .log_level = xstrdup("info")};
    memset(s.key.bytes, 0xa5, sizeof s.key.bytes);
    strv_push(&s.calls, "10.0.0.1 4711");
    strv_push(&s.calls, "fd00::1 4711");
    return s;
}

/* A launcher, or a parent; its proof may be delayed, as by packets that are lost for some
 * seconds, or wrong. */
struct server {
    int fd, port;
    struct secret key;
    int64_t delay_ms;
    bool lies;
    struct link_keys keys;
    pthread_t thread;
};

static void *serve(void *arg)
{
    struct server *l = arg;
    struct talk t;
    struct ddp_err err;
    int64_t until = now_ms() + 60000;
    ck_assert_int_eq(sock_await(l->fd, POLLIN, until), 0);
    int fd = accept(l->fd, NULL, NULL);
    sock_set_nonblock(fd, true);
    handshake_offer(&t.listener, &l->key, t.offer);
    ck_assert_int_eq(sock_write_all(fd, t.offer, sizeof t.offer, until), 0);
    ck_assert_int_eq(sock_read_all(fd, t.answer, sizeof t.answer, until), 0);
    sleep_ms(l->delay_ms);
    ck_ok(handshake_check(&t.listener, t.answer, t.proof, &t.node, &l->keys, &err), err);
    t.proof[0] ^= l->lies;
    ck_assert_int_eq(sock_write_all(fd, t.proof, sizeof t.proof, until), 0);
    close(fd);
    return NULL;
}

static void server_start(struct server *l, int port)
{
    struct ddp_err err;
    ck_ok(secret_make(&l->key, &err), err);
    l->fd = sock_listen("127.0.0.1", port, &l->port, &err);
    if (l->fd >= 0)
        ck_assert_int_eq(pthread_create(&l->thread, NULL, serve, l), 0);
}

/* The keys of both ends are the same. */
static void server_end(struct server *l, int fd, const struct link_keys *keys)
{
    pthread_join(l->thread, NULL);
    if (fd >= 0) {
        ck_assert(secret_equal(&keys->in.key, &l->keys.out.key));
        ck_assert(secret_equal(&keys->out.key, &l->keys.in.key));
        close(fd);
    }
    close(l->fd);
}

/* What bootstrap_connect() to this launcher returns, and sets errno to. */
static int connect_to(struct server *l, struct link_keys *keys, struct ddp_err *err)
{
    struct bootstrap s = {.node = 7};
    int64_t left_ms = 60000;
    server_start(l, 0);
    ck_assert_int_ge(l->fd, 0);
    handshake_node_key(&l->key, 7, &s.key);
    strv_pushf(&s.calls, "127.0.0.1 %d", l->port);
    int fd = bootstrap_connect(&s, &left_ms, keys, err), why = errno;
    bootstrap_finish(&s);
    errno = why;
    return fd;
}

TEST(a_late_proof_is_waited_for)
{
    struct server l = {.delay_ms = 4500}; /* longer than an address is tried */
    struct ddp_err err;
    struct link_keys keys;
    int fd = connect_to(&l, &keys, &err);
    ck_assert_msg(fd >= 0, "%s", err.text);
    server_end(&l, fd, &keys);
}

TEST(a_launcher_with_a_wrong_proof_is_none)
{
    struct server l = {.lies = true};
    struct ddp_err err;
    struct link_keys keys;
    ck_assert_int_eq(connect_to(&l, &keys, &err), -1);
    ck_assert_int_eq(errno, EPROTO);
    ck_assert_ptr_nonnull(strstr(err.text, "the listener does not know the key"));
    server_end(&l, -1, NULL);
}

/* Another program has the first port of the parent, and makes no offer. */
TEST(the_parent_is_found_at_its_second_port)
{
    struct server l = {.fd = -1};
    struct ddp_err err;
    struct link_keys keys;
    struct bootstrap s = {.node = 7};
    int other = -1;
    for (int i = 0; i < 100 && l.fd < 0; i++) {
        if (other >= 0)
            close(other);
        other = sock_listen("127.0.0.1", 0, &s.parent.port, &err);
        ck_assert_int_ge(other, 0);
        server_start(&l, s.parent.port + 1);
    }
    ck_assert_int_ge(l.fd, 0);
    handshake_node_key(&l.key, 7, &s.parent.key);
    s.parent.name = xstrdup("127.0.0.1");
    int fd = bootstrap_connect_parent(&s, now_ms() + 60000, &keys, &err);
    ck_assert_msg(fd >= 0, "%s", err.text);
    server_end(&l, fd, &keys);
    close(other);
    bootstrap_finish(&s);
}

/* However long a parent that starts later would be waited for. */
TEST(a_parent_whose_name_is_unknown_is_not_waited_for)
{
    struct ddp_err err;
    struct link_keys keys;
    struct bootstrap s = {.node = 7, .parent = {.port = 20000}};
    s.parent.name = xasprintf("n%080d", 0); /* no label of a name is as long */
    ck_assert_int_eq(bootstrap_connect_parent(&s, INT64_MAX / 2, &keys, &err), -1);
    bootstrap_finish(&s);
}

TEST(without_an_answer_the_first_address_is_named)
{
    struct ddp_err err;
    struct link_keys keys;
    struct bootstrap s = {.node = 7};
    int64_t left_ms = 60000;
    strv_push(&s.calls, "127.0.0.1 1"); /* nothing listens there */
    strv_push(&s.calls, "10.0.0.1");
    ck_assert_int_eq(bootstrap_connect(&s, &left_ms, &keys, &err), -1);
    ck_assert_str_eq(err.text,
                     "cannot connect to '127.0.0.1' port 1: Connection refused");
    bootstrap_finish(&s);
}

TEST(bootstrap_lines_round_trip_and_no_byte_more_is_read)
{
    struct bootstrap s = example(), t = {0};
    struct ddp_err err;
    int p[2];
    char *text = bootstrap_write(&s), rest;
    ck_assert_int_eq(pipe2(p, O_NONBLOCK), 0);
    ck_assert_int_eq(write(p[1], text, strlen(text)), (ssize_t)strlen(text));
    ck_assert_int_eq(write(p[1], "X", 1), 1);
    ck_ok(bootstrap_read(p[0], INT64_MAX / 2, &t, &err), err);
    ck_assert_int_eq(read(p[0], &rest, 1), 1);
    ck_assert_int_eq(rest, 'X');
    ck_assert(secret_equal(&s.key, &t.key));
    ck_assert_uint_eq(t.node, 3);
    ck_assert_str_eq(t.name, "n3");
    ck_assert_str_eq(t.log_level, "info");
    ck_assert_uint_eq(t.calls.n, 2);
    ck_assert_str_eq(t.calls.v[1], "fd00::1 4711");
    close(p[0]);
    close(p[1]);
    free(text);
    bootstrap_finish(&s);
    bootstrap_finish(&t);
}

TEST(long_bootstrap_lines_are_read_whole)
{
    struct bootstrap s = example(), t = {0};
    struct ddp_err err;
    int p[2];
    for (int i = 0; i < 1000; i++)
        strv_pushf(&s.calls, "10.0.0.%d 4711", i);
    char *text = bootstrap_write(&s);
    ck_assert_int_eq(pipe2(p, O_NONBLOCK), 0);
    ck_assert_int_eq(write(p[1], text, strlen(text)), (ssize_t)strlen(text));
    ck_ok(bootstrap_read(p[0], INT64_MAX / 2, &t, &err), err);
    ck_assert_uint_eq(t.calls.n, s.calls.n);
    ck_assert_str_eq(t.calls.v[1001], "10.0.0.999 4711");
    close(p[0]);
    close(p[1]);
    free(text);
    bootstrap_finish(&s);
    bootstrap_finish(&t);
}

/* One text for many hosts: each finds its node by its name. */
TEST(the_node_is_found_by_the_host_name)
{
    static const char *const names[] = {"node001", "node002", "node003", "login",
                                        "a.x.org"};
    static const unsigned nodes[] = {0, 1, 2, 5, 6};
    struct bootstrap s = {.detached = true, .stdio = true}, t = {0};
    struct ddp_err err;
    strv_push(&s.calls, "10.0.0.1 4711");
    for (size_t i = 0; i < 5; i++)
        bootstrap_add_node(&s, nodes[i], names[i]);
    char *text = bootstrap_write(&s);
    ck_assert_ptr_nonnull(
        strstr(text, "\nnodes 0 node[001-003]\nnodes 5 login,a.x.org\n"));
    ck_ok(bootstrap_parse(text, &t, &err), err);
    ck_assert(t.detached && t.stdio);
    ck_assert_ptr_null(t.name);
    for (size_t i = 0; i < 5; i++) {
        ck_assert(bootstrap_take_node(&t, names[i]));
        ck_assert_str_eq(t.name, names[i]);
        ck_assert_uint_eq(t.node, nodes[i]);
    }
    ck_assert(bootstrap_take_node(&t, "node002.cluster"));
    ck_assert_uint_eq(t.node, 1);
    ck_assert(bootstrap_take_node(&t, "a"));
    ck_assert_uint_eq(t.node, 6);
    ck_assert(!bootstrap_take_node(&t, "node004"));
    ck_assert(!bootstrap_take_node(&t, "a.y.org"));
    free(text);
    bootstrap_finish(&s);
    bootstrap_finish(&t);
}

/* Both ways of the lines, those of one node and those of all, give the same tree: that of
 * five nodes with a width of two. */
TEST(a_tree_has_one_parent_per_node)
{
    static const long parents[] = {-1, -1, 0, 0, 1};
    static const unsigned numbers[] = {0, 1, 4, 5, 6};
    struct bootstrap all = {.width = 2}, common = {0};
    struct ddp_err err;
    memset(&all.key, 7, sizeof all.key);
    strv_push(&all.calls, "10.0.0.1 4711");
    for (size_t i = 0; i < 5; i++) {
        char name[8];
        snprintf(name, sizeof name, "n%u", numbers[i]);
        bootstrap_add_node(&all, numbers[i], name);
    }
    char *text = bootstrap_write(&all);
    ck_ok(bootstrap_parse(text, &common, &err), err);
    free(text);
    int listens[7] = {0};
    for (size_t i = 0; i < 5; i++) {
        struct bootstrap own = {.node = numbers[i], .calls = all.calls}, read = {0};
        char name[8];
        long at = bootstrap_parent_place(2, i);
        snprintf(name, sizeof name, "n%u", numbers[i]);
        ck_assert_int_eq(at, parents[i]);
        const char *parent = at < 0 ? NULL : all.nodes[at].name;
        ck_assert(bootstrap_take_node(&common, name));
        own.name = name;
        bootstrap_set_tree(&own, &all.key, 2, all.nodes, 5, i);
        text = bootstrap_write(&own);
        ck_ok(bootstrap_parse(text, &read, &err), err);
        free(text);
        ck_assert_int_eq(read.listen, common.listen);
        ck_assert_int_eq(read.listen > 0, i < 2);
        ck_assert_pstr_eq(read.parent.name, parent);
        ck_assert_pstr_eq(common.parent.name, parent);
        if (at >= 0) {
            ck_assert_int_eq(read.parent.port, listens[at]);
            ck_assert(secret_equal(&read.parent.key, &common.parent.key));
            struct secret key; /* as the parent derives it */
            handshake_node_key(&all.key, numbers[at], &key);
            handshake_node_key(&key, numbers[i], &key);
            ck_assert(secret_equal(&read.parent.key, &key));
        }
        listens[i] = read.listen;
        free(own.parent.name);
        bootstrap_finish(&read);
    }
    bootstrap_finish(&common);
    bootstrap_finish(&all);
}

#define KEY "key a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5\n"

static const struct {
    const char *text, *error;
} bad_bootstrap[] = {
    {"ls -l\n", "this is not the bootstrap of a launcher"},
    {KEY "end\n", "this is not the bootstrap of a launcher"},
    {"ddprun-agent 2\nend\n", "versions differ: it speaks protocol '2', this one 1"},
    {"ddprun-agent 1\nkey 12\nend\n", "the key is not 64 hexadecimal digits"},
    {"ddprun-agent 1\n" KEY "node -1\nend\n", "'-1' is not the number of a node"},
    {"ddprun-agent 1\n" KEY "node 70000\nend\n", "'70000' is not the number of a node"},
    {"ddprun-agent 1\n" KEY "node 1\nname n\nend\n",
     "no key, no name or no address to call"},
    {"ddprun-agent 1\n" KEY "nodes x n\n", "'x n' is no node assignment"},
    {"ddprun-agent 1\n" KEY "nodes 65000 n[1-2000]\n",
     "'65000 n[1-2000]' has too many nodes"},
    {"ddprun-agent 1\n" KEY "parent 70000 ab n1\nend\n", "'70000 ab n1' is no parent"},
    {"ddprun-agent 1\nfoo bar\nend\n", "unknown bootstrap line 'foo'"},
};

LOOP_TEST(other_input_on_stdin_is_rejected, ARRAY_LEN(bad_bootstrap))
{
    struct bootstrap s = {0};
    struct ddp_err err;
    ck_assert_int_eq(bootstrap_parse(bad_bootstrap[_i].text, &s, &err), -1);
    ck_assert_str_eq(err.text, bad_bootstrap[_i].error);
    bootstrap_finish(&s);
}

TEST(truncated_bootstrap_lines_are_rejected)
{
    struct bootstrap s = {0};
    struct ddp_err err;
    int p[2];
    ck_assert_int_eq(pipe2(p, O_NONBLOCK), 0);
    ck_assert_int_eq(write(p[1], "ddprun-agent 1\n", 15), 15);
    close(p[1]);
    ck_assert_int_eq(bootstrap_read(p[0], INT64_MAX / 2, &s, &err), -1);
    ck_assert_str_eq(err.text, "incomplete bootstrap: this program is started by ddprun");
    ck_assert(s.missing);
    close(p[0]);
    bootstrap_finish(&s);
}
