#include "tests/support/suite.h"

#include "common/mem.h"
#include "launcher/link/message.h"

#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

/* --- frames ------------------------------------------------------------------------- */

static const struct {
    const char *name;
    uint8_t head[FRAME_HEAD];
    enum frame_way way;
    const char *error;
} refused[] = {
    {"type 0", {0, 0, 0, 0, 0, 0, 0, 0}, FRAME_UP, "a frame of unknown type 0"},
    {"type 255", {0, 0, 0, 0, 255, 0, 0, 0}, FRAME_UP, "a frame of unknown type 255"},
    {"padding", {0, 0, 0, 0, MSG_HELLO, 1, 0, 0}, FRAME_UP, "a frame of unknown type 1"},
    {"a launcher's word from an agent",
     {0, 0, 0, 0, MSG_LEAVE, 0, 0, 0},
     FRAME_UP,
     "a frame 'leave' from the wrong side"},
    {"an agent's word from a launcher",
     {0, 0, 0, 0, MSG_HELLO, 0, 0, 0},
     FRAME_DOWN,
     "a frame 'hello' from the wrong side"},
    {"one byte too many",
     {0, 0, 0, 17, MSG_CREDIT, 0, 0, 0},
     FRAME_UP,
     "a frame 'credit' of 17 bytes, over its limit of 16"},
    {"four gigabytes",
     {255, 255, 255, 255, MSG_OUT, 0, 0, 0},
     FRAME_UP,
     "a frame 'out' of 4294967295 bytes, over its limit of 65552"},
};

START_TEST(words_of_a_program_fit_into_their_frame)
{
    char text[20001];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    memcpy(text + 3995, "\xe2\x82\xac", 3); /* one character across the end of the room */
    struct msg_abort m = {.rank = 1, .code = 3, .text = text}, again = {0};
    struct pack k = {0}, whole = {0};
    uint8_t head[FRAME_HEAD];
    struct frame f;
    struct ddp_err err;
    msg_abort_pack(&m, &k);
    frame_head(head, MSG_ABORT, 0, k.n);
    pack_bytes(&whole, head, sizeof head);
    pack_bytes(&whole, k.p, k.n);
    ck_assert_int_eq(frame_parse(whole.p, whole.n, FRAME_UP, &f, &err), (long)whole.n);
    ck_assert_int_eq(msg_abort_unpack(&f, &again, &err), 0);
    ck_assert_uint_eq(strlen(again.text), 3995 + strlen(" ..."));
    ck_assert_str_eq(again.text + 3994, "x ...");
    msg_abort_finish(&again);
    pack_finish(&k);
    pack_finish(&whole);
}
END_TEST

START_TEST(a_frame_that_cannot_be_is_refused_by_its_head)
{
    struct ddp_err err;
    struct frame f;
    long n = frame_parse(refused[_i].head, FRAME_HEAD, refused[_i].way, &f, &err);
    ck_assert_msg(n == -1, "%s: %ld", refused[_i].name, n);
    ck_assert_str_eq(err.text, refused[_i].error);
}
END_TEST

START_TEST(every_beginning_of_a_frame_wants_more)
{
    uint8_t buf[FRAME_HEAD + 5 + 3] = {0};
    struct ddp_err err;
    struct frame f = {0};
    frame_head(buf, MSG_OUT, 0x1234, 5);
    memcpy(buf + FRAME_HEAD, "abcdeXYZ", 8);
    for (size_t n = 0; n < FRAME_HEAD + 5; n++)
        ck_assert_int_eq(frame_parse(buf, n, FRAME_UP, &f, &err), 0);
    ck_assert_int_eq(frame_parse(buf, sizeof buf, FRAME_UP, &f, &err), FRAME_HEAD + 5);
    ck_assert_int_eq(f.type, MSG_OUT);
    ck_assert_uint_eq(f.node, 0x1234);
    ck_assert_uint_eq(f.size, 5);
    ck_assert_mem_eq(f.body, "abcde", 5);
}
END_TEST

START_TEST(every_type_has_a_name)
{
    for (int t = 1; t < MSG_TYPES; t++)
        ck_assert_str_ne(msg_name((enum msg_type)t), "?");
    ck_assert_str_eq(msg_name(MSG_TYPES), "?");
}
END_TEST

/* --- messages: each packed, unpacked, packed again ------------------------------------
 */

static char **words(const char *a, const char *b, struct strv *s)
{
    strv_push(s, a);
    strv_push(s, b);
    return s->v;
}

static void pack_hello(struct pack *k)
{
    struct msg_hello m = {.protocol = LINK_PROTOCOL,
                          .version = xstrdup("0.1"),
                          .hostname = xstrdup("n1"),
                          .ncpus = 4,
                          .ngpus = 2,
                          .addr = NULL};
    words("10.0.0.1", "fe80::1", &m.addrs);
    msg_hello_pack(&m, k);
    msg_hello_finish(&m);
}

static void pack_job(struct pack *k)
{
    struct msg_job m = {.wdir = xstrdup("/tmp"),
                        .id = xstrdup("1"),
                        .master_addr = xstrdup("::1"),
                        .interface = NULL,
                        .master_port = 29500,
                        .nranks = 2,
                        .nnodes = 1,
                        .rank_names = 7,
                        .bind_to = 1,
                        .input = 2,
                        .columns = 80};
    words("sh", "-c", &m.argv);
    words("A=1", "B=", &m.env);
    words("A", "B", &m.user_set);
    msg_job_pack(&m, k);
    msg_job_finish(&m);
}

static void pack_share(struct pack *k)
{
    struct msg_share m = {.host = xstrdup("n1"), .node_rank = 1, .nlocal = 2};
    m.ranks = xcalloc(2, sizeof *m.ranks);
    m.ranks[1] = (struct share_rank){.rank = 9, .cross_rank = 1, .cross_size = 2};
    msg_share_pack(&m, k);
    msg_share_finish(&m);
}

static void pack_store(struct pack *k)
{
    struct msg_store m = {.addr = xstrdup("10.0.0.1"), .port = 1, .open = true};
    msg_store_pack(&m, k);
    msg_store_finish(&m);
}

static void pack_exit(struct pack *k)
{
    struct msg_exit m = {
        .rank = 3, .status = -1, .at_ns = -5, .peak_kib = 1 << 20, .told = true};
    msg_exit_pack(&m, k);
}

static void pack_cannot(struct pack *k)
{
    struct msg_cannot m = {.rank = UINT32_MAX, .code = 127, .text = xstrdup("no")};
    msg_cannot_pack(&m, k);
    msg_cannot_finish(&m);
}

static void pack_lost(struct pack *k)
{
    struct msg_node m = {.node = 3, .text = xstrdup("gone")};
    msg_node_pack(&m, k);
    msg_node_finish(&m);
}

static void pack_vouch(struct pack *k)
{
    struct msg_vouch m = {.id = 77};
    struct sockaddr_in *v4 = (void *)&m.peer;
    struct sockaddr_in6 *v6 = (void *)&m.local;
    *v4 = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(80)};
    *v6 = (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_addr = in6addr_loopback};
    msg_vouch_pack(&m, k);
}

static void pack_vouched(struct pack *k)
{
    struct msg_vouched m = {.id = 77, .yes = false, .why = xstrdup("who?")};
    msg_vouched_pack(&m, k);
    msg_vouched_finish(&m);
}

static void pack_hosts(struct pack *k)
{
    struct msg_hosts m = {.width = 2,
                          .window = 4,
                          .timeout_ms = 1000,
                          .agent = xstrdup("/a"),
                          .ssh = xstrdup("ssh"),
                          .nhosts = 2};
    m.hosts = xcalloc(2, sizeof *m.hosts);
    m.hosts[0].name = xstrdup("a");
    m.hosts[1] = (struct host){.name = xstrdup("b"), .user = xstrdup("u"), .port = 22};
    msg_hosts_pack(&m, k);
    msg_hosts_finish(&m);
}

static void pack_abort(struct pack *k)
{
    struct msg_abort m = {
        .rank = 3, .code = -1, .at_ns = 7, .text = xstrdup("called MPI_Abort")};
    msg_abort_pack(&m, k);
    msg_abort_finish(&m);
}

static void pack_serve(struct pack *k)
{
    struct msg_serve m = {.nspace = xstrdup("job"),
                          .host = xstrdup("n1"),
                          .uri = xstrdup("u"),
                          .tmpdir = xstrdup("/tmp"),
                          .node = 1,
                          .nranks = 4};
    words("0-1 n0", "2-3 n1", &m.map);
    msg_serve_pack(&m, k);
    msg_serve_finish(&m);
}

static void pack_member(struct pack *k)
{
    struct msg_member m = {.rank = 3, .state = MEMBER_LEFT};
    msg_member_pack(&m, k);
}

/* Unpack, and pack what came out: 0 with the bytes in `k`, else -1. */
#define AGAIN(name, type)                                                               \
    static int again_##name(const struct frame *f, struct pack *k, struct ddp_err *err) \
    {                                                                                   \
        struct type m = {0};                                                            \
        if (type##_unpack(f, &m, err) < 0)                                              \
            return -1;                                                                  \
        type##_pack(&m, k);                                                             \
        FINISH_##name(&m);                                                              \
        return 0;                                                                       \
    }
#define FINISH_hello   msg_hello_finish
#define FINISH_job     msg_job_finish
#define FINISH_share   msg_share_finish
#define FINISH_store   msg_store_finish
#define FINISH_exit    (void)
#define FINISH_cannot  msg_cannot_finish
#define FINISH_lost    msg_node_finish
#define FINISH_vouch   (void)
#define FINISH_vouched msg_vouched_finish
#define FINISH_hosts   msg_hosts_finish
#define FINISH_abort   msg_abort_finish
#define FINISH_serve   msg_serve_finish
#define FINISH_member  (void)
AGAIN(hello, msg_hello)
AGAIN(job, msg_job)
AGAIN(share, msg_share)
AGAIN(store, msg_store)
AGAIN(exit, msg_exit)
AGAIN(cannot, msg_cannot)
AGAIN(lost, msg_node)
AGAIN(vouch, msg_vouch)
AGAIN(vouched, msg_vouched)
AGAIN(hosts, msg_hosts)
AGAIN(abort, msg_abort)
AGAIN(serve, msg_serve)
AGAIN(member, msg_member)

static const struct {
    enum msg_type type;
    void (*pack)(struct pack *k);
    int (*again)(const struct frame *f, struct pack *k, struct ddp_err *err);
} messages[] = {
    {MSG_HELLO, pack_hello, again_hello},       {MSG_JOB, pack_job, again_job},
    {MSG_SHARE, pack_share, again_share},       {MSG_STORE, pack_store, again_store},
    {MSG_EXIT, pack_exit, again_exit},          {MSG_CANNOT, pack_cannot, again_cannot},
    {MSG_LOST, pack_lost, again_lost},          {MSG_VOUCH, pack_vouch, again_vouch},
    {MSG_VOUCHED, pack_vouched, again_vouched}, {MSG_HOSTS, pack_hosts, again_hosts},
    {MSG_ABORT, pack_abort, again_abort},       {MSG_SERVE, pack_serve, again_serve},
    {MSG_MEMBER, pack_member, again_member},
};

START_TEST(a_message_survives_the_way)
{
    struct pack k = {0}, again = {0};
    struct ddp_err err;
    messages[_i].pack(&k);
    struct frame f = {.type = messages[_i].type, .body = k.p, .size = k.n};
    ck_ok(messages[_i].again(&f, &again, &err), err);
    ck_assert_uint_eq(again.n, k.n);
    ck_assert_mem_eq(again.p, k.p, k.n);
    pack_finish(&k);
    pack_finish(&again);
}
END_TEST

START_TEST(a_message_cut_short_or_too_long_is_refused)
{
    struct pack k = {0}, again = {0};
    struct ddp_err err;
    messages[_i].pack(&k);
    for (size_t n = 0; n < k.n; n++) {
        uint8_t *exact = xmemdup(k.p, n); /* so that a sanitizer sees one byte too far */
        struct frame f = {.type = messages[_i].type, .body = exact, .size = n};
        ck_assert_msg(messages[_i].again(&f, &again, &err) == -1, "taken at %zu", n);
        free(exact);
    }
    pack_u8(&k, 0);
    struct frame f = {.type = messages[_i].type, .body = k.p, .size = k.n};
    ck_assert_int_eq(messages[_i].again(&f, &again, &err), -1);
    pack_finish(&k);
    pack_finish(&again);
}
END_TEST

/* A fence ends in bytes of any number, so that only its head can be cut short. */
START_TEST(a_fence_keeps_its_nodes_and_its_bytes)
{
    struct msg_fence m = {.service = SERVICE_PMI,
                          .key = (const uint8_t *)"key",
                          .nkey = 3,
                          .nodes = (uint32_t[]){0, 5},
                          .nnodes = 2,
                          .status = -52};
    struct pack k = {0};
    struct ddp_err err;
    msg_fence_pack_head(&m, &k);
    size_t head = k.n;
    pack_bytes(&k, "data", 4);
    for (size_t n = 0; n <= k.n; n++) {
        uint8_t *exact = xmemdup(k.p, n);
        struct frame f = {.type = MSG_FENCE, .body = exact, .size = n};
        struct msg_fence got = {0};
        ck_assert_int_eq(msg_fence_unpack(&f, &got, &err), n < head ? -1 : 0);
        if (n == k.n) {
            ck_assert_uint_eq(got.service, SERVICE_PMI);
            ck_assert_mem_eq(got.key, "key", 3);
            ck_assert_uint_eq(got.nnodes, 2);
            ck_assert_uint_eq(got.nodes[1], 5);
            ck_assert_int_eq(got.status, -52);
            ck_assert_mem_eq(got.data, "data", 4);
        }
        msg_fence_finish(&got);
        free(exact);
    }
    pack_finish(&k);
}
END_TEST

START_TEST(a_wild_count_costs_nothing)
{
    struct pack k = {0};
    pack_u32(&k, UINT32_MAX);
    struct unpack u = {.p = k.p, .n = k.n};
    struct strv out = {0};
    unpack_strs(&u, &out);
    ck_assert(u.bad);
    ck_assert_uint_eq(out.n, 0);
    strv_finish(&out);
    pack_finish(&k);
}
END_TEST

START_TEST(a_text_with_a_nul_inside_is_refused)
{
    struct pack k = {0};
    pack_u32(&k, 3);
    pack_bytes(&k, "a\0b", 3);
    struct unpack u = {.p = k.p, .n = k.n};
    ck_assert_ptr_null(unpack_str(&u));
    ck_assert(u.bad);
    pack_finish(&k);
}
END_TEST

START_TEST(an_agent_of_another_protocol_says_so_first)
{
    struct pack k = {0};
    struct ddp_err err;
    struct msg_hello m = {0};
    pack_u32(&k, LINK_PROTOCOL + 1);
    pack_str(&k, "9.9");
    pack_str(&k, "and whatever that version says then");
    struct frame f = {.type = MSG_HELLO, .body = k.p, .size = k.n};
    ck_assert_int_eq(msg_hello_unpack(&f, &m, &err), -1);
    ck_assert_str_eq(err.text, "its version 9.9 speaks protocol 2, this one 1");
    pack_finish(&k);
}
END_TEST

Suite *suite(void)
{
    Suite *s = suite_create("frame");
    TCase *t = tcase_create("frames");
    tcase_add_test(t, words_of_a_program_fit_into_their_frame);
    tcase_add_loop_test(t, a_frame_that_cannot_be_is_refused_by_its_head, 0,
                        ARRAY_LEN(refused));
    tcase_add_test(t, every_beginning_of_a_frame_wants_more);
    tcase_add_test(t, every_type_has_a_name);
    suite_add_tcase(s, t);
    t = tcase_create("messages");
    tcase_add_loop_test(t, a_message_survives_the_way, 0, ARRAY_LEN(messages));
    tcase_add_loop_test(t, a_message_cut_short_or_too_long_is_refused, 0,
                        ARRAY_LEN(messages));
    tcase_add_test(t, a_fence_keeps_its_nodes_and_its_bytes);
    tcase_add_test(t, a_wild_count_costs_nothing);
    tcase_add_test(t, a_text_with_a_nul_inside_is_refused);
    tcase_add_test(t, an_agent_of_another_protocol_says_so_first);
    suite_add_tcase(s, t);
    return s;
}
