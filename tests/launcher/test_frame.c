#include "tests/support/suite.h"

#include "common/mem.h"
#include "tests/support/sample_message.h"

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
     {0, 0, 0, 0, MSG_SHUTDOWN, 0, 0, 0},
     FRAME_UP,
     "a frame 'shutdown' from the wrong side"},
    {"an agent's word from a launcher",
     {0, 0, 0, 0, MSG_HELLO, 0, 0, 0},
     FRAME_DOWN,
     "a frame 'hello' from the wrong side"},
    {"one byte too many",
     {0, 0, 0, 17, MSG_CREDIT, 0, 0, 0},
     FRAME_UP,
     "a frame 'credit' of 17 bytes, over its limit of 16"},
    {"four gigabytes",
     {255, 255, 255, 255, MSG_OUTPUT, 0, 0, 0},
     FRAME_UP,
     "a frame 'output' of 4294967295 bytes, over its limit of 65552"},
};

TEST(texts_of_a_program_are_cut_to_fit_the_frame)
{
    char text[20001];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    memcpy(text + 3995, "\xe2\x82\xac", 3); /* one character across the limit */
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
    struct msg_finding found = {
        .item = text, .value = text, .key = text, .problem = text};
    msg_finding_pack(&found, &k);
    frame_head(head, MSG_FINDING, 0, k.n);
    ck_assert_int_eq(frame_parse(head, sizeof head, FRAME_UP, &f, &err), 0);
    pack_finish(&k);
}

LOOP_TEST(an_invalid_frame_is_rejected_by_its_header, ARRAY_LEN(refused))
{
    struct ddp_err err;
    struct frame f;
    long n = frame_parse(refused[_i].head, FRAME_HEAD, refused[_i].way, &f, &err);
    ck_assert_msg(n == -1, "%s: %ld", refused[_i].name, n);
    ck_assert_str_eq(err.text, refused[_i].error);
}

TEST(every_prefix_of_a_frame_is_incomplete)
{
    uint8_t buf[FRAME_HEAD + 5 + 3] = {0};
    struct ddp_err err;
    struct frame f = {0};
    frame_head(buf, MSG_OUTPUT, 0x1234, 5);
    memcpy(buf + FRAME_HEAD, "abcdeXYZ", 8);
    for (size_t n = 0; n < FRAME_HEAD + 5; n++)
        ck_assert_int_eq(frame_parse(buf, n, FRAME_UP, &f, &err), 0);
    ck_assert_int_eq(frame_parse(buf, sizeof buf, FRAME_UP, &f, &err), FRAME_HEAD + 5);
    ck_assert_int_eq(f.type, MSG_OUTPUT);
    ck_assert_uint_eq(f.node, 0x1234);
    ck_assert_uint_eq(f.size, 5);
    ck_assert_mem_eq(f.body, "abcde", 5);
}

TEST(every_type_has_a_name)
{
    for (int t = 1; t < MSG_TYPES; t++)
        ck_assert_str_ne(msg_name((enum msg_type)t), "?");
    ck_assert_str_eq(msg_name(MSG_TYPES), "?");
}

/* --- messages: each packed, unpacked, packed again ---------------------------------- */

LOOP_TEST(a_message_round_trips, MSG_TYPES - 1)
{
    enum msg_type type = (enum msg_type)(_i + 1);
    union msg_any m;
    struct pack k = {0}, again = {0};
    struct ddp_err err;
    sample_message(type, &m);
    msg_pack(type, &m, &k);
    msg_finish(type, &m);
    struct frame f = {.type = type, .body = k.p, .size = k.n};
    ck_ok(msg_unpack(&f, &m, &err), err);
    msg_pack(type, &m, &again);
    msg_finish(type, &m);
    ck_assert_uint_eq(again.n, k.n);
    if (k.n > 0)
        ck_assert_mem_eq(again.p, k.p, k.n);
    pack_finish(&k);
    pack_finish(&again);
}

/* A message may end in any number of bytes: only what precedes them can be truncated. */
LOOP_TEST(a_truncated_or_overlong_message_is_rejected, MSG_TYPES - 1)
{
    enum msg_type type = (enum msg_type)(_i + 1);
    union msg_any m;
    struct pack k = {0};
    struct ddp_err err;
    size_t nrest;
    sample_message(type, &m);
    const void *rest = msg_pack_head(type, &m, &k, &nrest);
    size_t head = k.n;
    pack_bytes(&k, rest, nrest);
    msg_finish(type, &m);
    pack_u8(&k, 0);
    for (size_t n = 0; n <= k.n; n++) {
        if (n == k.n - 1)
            continue;
        uint8_t *exact = xmemdup(k.p, n); /* a sanitizer detects a read beyond it */
        struct frame f = {.type = type, .body = exact, .size = n};
        bool accepted = msg_unpack(&f, &m, &err) == 0;
        ck_assert_msg(accepted == (rest && n >= head), "%s: %zu", msg_name(type), n);
        msg_finish(type, &m);
        free(exact);
    }
    pack_finish(&k);
}

/* Each of `bad` differs from a valid message in one field. */
TEST(a_value_out_of_bounds_is_rejected)
{
    const struct {
        enum msg_type type;
        const void *bad;
    } cases[] = {
        {MSG(signal, .number = 0)},
        {MSG(signal, .number = 65)},
        {MSG(store_ready, .addr = (char[]){"a"}, .port = 65536)},
        {MSG(store_ready, .addr = NULL)},
        {MSG(member, .state = MEMBER_ALL + 1)},
        {MSG(output, .stream = 2)},
        {MSG(share, .host = (char[]){"a"}, .nlocal = 0)},
        {MSG(job, .wdir = (char[]){"/"}, .id = (char[]){""},
             .master_addr = (char[]){""})},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        union msg_any m;
        struct pack k = {0};
        struct ddp_err err;
        msg_pack(cases[i].type, cases[i].bad, &k);
        struct frame f = {.type = cases[i].type, .body = k.p, .size = k.n};
        ck_assert_msg(msg_unpack(&f, &m, &err) == -1, "case %zu", i);
        pack_finish(&k);
    }
}

/* A count that exceeds the frame must not allocate memory. */
TEST(a_huge_count_of_records_is_rejected)
{
    union msg_any m;
    struct pack k = {0};
    struct ddp_err err;
    pack_str(&k, "host");
    pack_u32(&k, 0);
    pack_u32(&k, UINT32_MAX);
    struct frame f = {.type = MSG_SHARE, .body = k.p, .size = k.n};
    ck_assert_int_eq(msg_unpack(&f, &m, &err), -1);
    ck_assert_ptr_null(m.share.ranks);
    pack_finish(&k);
}

TEST(a_huge_count_allocates_nothing)
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

TEST(a_text_with_a_nul_is_rejected)
{
    struct pack k = {0};
    pack_u32(&k, 3);
    pack_bytes(&k, "a\0b", 3);
    struct unpack u = {.p = k.p, .n = k.n};
    ck_assert_ptr_null(unpack_str(&u));
    ck_assert(u.bad);
    pack_finish(&k);
}

TEST(a_text_of_a_program_fits_into_its_frame)
{
    struct pack k = {0};
    struct ddp_err err;
    struct msg_abort m = {.rank = 1, .text = xcalloc(1, 10001)}, got = {0};
    for (size_t i = 0; i < 10000; i += 2)
        memcpy(m.text + i, "\u00e9", 2);
    msg_abort_pack(&m, &k);
    struct frame f = {.type = MSG_ABORT, .body = k.p, .size = k.n};
    ck_assert_uint_le(k.n, 4096); /* its limit in messages.def */
    ck_ok(msg_abort_unpack(&f, &got, &err), err);
    size_t n = strlen(got.text);
    ck_assert_str_eq(got.text + n - strlen("\u00e9 ..."), "\u00e9 ...");
    msg_abort_finish(&m);
    msg_abort_finish(&got);
    pack_finish(&k);
}

TEST(an_agent_of_another_protocol_is_detected_first)
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

/* What the launcher may have to hold does not grow with the nodes. */
TEST(output_credit_is_bounded_over_the_job)
{
    ck_assert_uint_eq(output_credit(1), 512 << 10);
    ck_assert_uint_eq(output_credit(128), 512 << 10);
    ck_assert_uint_eq(output_credit(1024), 64 << 10);
    ck_assert_uint_eq(output_credit(65534), 4 << 10);
    for (uint32_t n = 1; n <= 16384; n++)
        ck_assert_uint_le((uint64_t)n * output_credit(n), 64 << 20);
}
