#include "tests/support/suite.h"

#include "common/mem.h"
#include "launcher/link/merge.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What has been sent up, one line per frame and node: "exit 3: 25". */
static struct log {
    char text[4096];
    int frames;
} sent;

static void write_line(const struct frame *f, void *arg)
{
    size_t n = strlen(sent.text);
    snprintf(sent.text + n, sizeof sent.text - n, "%s %u: %zu\n", msg_name(f->type),
             f->node, f->size);
}

static void on_send(const struct frame *f, void *arg)
{
    struct ddp_err err;
    sent.frames++;
    if (f->type == MSG_MERGED)
        ck_ok(merge_split(f, write_line, NULL, &err), err);
    else
        write_line(f, NULL);
    if (arg) {
        pack_finish(arg);
        *(struct pack *)arg = (struct pack){xmemdup(f->body, f->size), f->size, f->size};
    }
}

static struct loop *loop;
static struct merge *merge;
static struct pack last; /* body of the last frame */

static void setup(void)
{
    struct ddp_err err;
    sent = (struct log){0};
    last = (struct pack){0};
    loop = loop_create(&err);
    ck_assert_ptr_nonnull(loop);
    merge = merge_create(loop, 7, on_send, &last);
    merge_expect(merge, 3);
}

static void teardown(void)
{
    merge_destroy(merge);
    loop_destroy(loop);
    pack_finish(&last);
}

static void up(unsigned node, enum msg_type type, const void *m)
{
    struct pack k = {0};
    msg_pack(type, m, &k);
    merge_up(merge,
             &(struct frame){.type = type, .node = node, .body = k.p, .size = k.n});
    pack_finish(&k);
}

static void on_stop(evutil_socket_t fd, short what, void *arg)
{
    loop_stop(loop, 0);
}

static void run_for(int ms)
{
    struct event *stop = evtimer_new(loop_base(loop), on_stop, NULL);
    event_add(stop, &(struct timeval){ms / 1000, ms % 1000 * 1000});
    loop_run(loop);
    event_free(stop);
}

FIXTURE(setup, teardown)

TEST(equal_messages_of_all_nodes_are_one_frame)
{
    up(7, MSG(spawned));
    up(9, MSG(spawned));
    ck_assert_int_eq(sent.frames, 0);
    up(8, MSG(spawned));
    ck_assert_int_eq(sent.frames, 1);
    ck_assert_str_eq(sent.text, "spawned 7: 0\nspawned 8: 0\nspawned 9: 0\n");
}

TEST(a_node_that_is_late_does_not_hold_up_the_others_for_long)
{
    up(7, MSG(alive, 5));
    up(8, MSG(alive, 5));
    ck_assert_int_eq(sent.frames, 0);
    run_for(400);
    ck_assert_str_eq(sent.text, "alive 7: 8\nalive 8: 8\n");
    up(9, MSG(alive, 5));
    merge_flush(merge);
    ck_assert_int_eq(sent.frames, 2);
}

TEST(different_ones_stay_apart)
{
    up(7, MSG(alive, 5));
    up(8, MSG(alive, 6));
    up(9, MSG(terminated));
    merge_flush(merge);
    ck_assert_int_eq(sent.frames, 1);
    ck_assert_str_eq(sent.text, "alive 7: 8\nalive 8: 8\nterminated 9: 0\n");
}

TEST(exits_are_a_list_and_before_the_end_of_their_node)
{
    up(7, MSG(terminated));
    up(8, MSG(output, .rank = 1, .stream = 1));
    up(8, MSG(exit, .rank = 1));
    up(8, MSG(terminated));
    up(9, MSG(exit, .rank = 2));
    up(9, MSG(terminated));
    ck_assert_int_eq(sent.frames, 2);
    ck_assert_str_eq(sent.text, "output 8: 5\nexit 8: 41\nexit 9: 41\n"
                                "terminated 7: 0\nterminated 8: 0\nterminated 9: 0\n");
}

TEST(output_is_not_held_and_a_loss_comes_after_what_is)
{
    up(8, MSG(exit, .rank = 1));
    up(8, MSG(output, .rank = 1, .data = (const uint8_t *)"f", .ndata = 1));
    up(7, MSG(node_lost, .node = 8, .text = (char[]){"gone"}));
    ck_assert_int_eq(sent.frames, 3);
    ck_assert_str_eq(sent.text, "output 8: 6\nexit 8: 41\nnode_lost 7: 12\n");
}

TEST(a_list_is_sent_soon)
{
    up(8, MSG(exit, .rank = 1));
    run_for(50);
    ck_assert_str_eq(sent.text, "exit 8: 41\n");
}

TEST(a_long_list_is_sent_at_once)
{
    for (uint32_t i = 0; i < 6000; i++) /* 288 KiB */
        up(8, MSG(exit, .rank = i));
    ck_assert_int_eq(sent.frames, 1);
}

static void fence(unsigned node, int32_t status, const char *data)
{
    up(node, MSG(fence, .key = (const uint8_t *)"k", .nkey = 1, .status = status,
                 .data = (const uint8_t *)data, .ndata = (uint32_t)strlen(data)));
}

/* The data of all come with one node; the first error is kept; through two agents. */
TEST(contributions_to_a_fence_are_joined)
{
    struct ddp_err err;
    struct msg_merged m;
    struct msg_fence all;
    fence(7, 0, "ab");
    fence(9, -5, "cd");
    fence(8, -6, "e");
    ck_assert_int_eq(sent.frames, 1);
    ck_assert_str_eq(sent.text, "fence 7: 22\nfence 8: 17\nfence 9: 17\n");
    struct frame f = {.type = MSG_MERGED, .body = last.p, .size = last.n};
    ck_ok(msg_merged_unpack(&f, &m, &err), err);
    struct frame one = {
        .type = MSG_FENCE, .body = m.frames[0].body, .size = m.frames[0].nbody};
    ck_ok(msg_fence_unpack(&one, &all, &err), err);
    ck_assert_int_eq(all.status, -5);
    ck_assert_uint_eq(all.ndata, 5);
    ck_assert_mem_eq(all.data, "abcde", 5);
    msg_fence_finish(&all);
    merge_expect(merge, 4);
    merge_up_spans(merge, &one, m.frames[0].spans, m.frames[0].nspans);
    fence(3, 0, "fg");
    ck_assert_int_eq(sent.frames, 2);
    ck_assert_ptr_nonnull(strstr(sent.text, "fence 3: 24\nfence 7: 17\n"));
    msg_merged_finish(&m);
}

TEST(a_fence_of_some_nodes_is_forwarded)
{
    up(8, MSG(fence, .nodes = (uint32_t[]){0, 1}, .nnodes = 2));
    ck_assert_str_eq(sent.text, "fence 8: 24\n");
}

static const struct {
    uint32_t type, span;
} bad[] = {{MSG_OUTPUT + 100, 0},
           {MSG_MERGED, 0},
           {MSG_NODE_LOST, 0},
           {MSG_SPAWNED, 0x00020001},
           {MSG_SPAWNED, 0xffff}};

LOOP_TEST(a_merged_frame_that_cannot_be_is_refused, ARRAY_LEN(bad))
{
    struct pack k = {0};
    struct ddp_err err;
    uint32_t span = bad[_i].span;
    struct merged_frame e = {.type = bad[_i].type, .spans = &span, .nspans = 1};
    msg_merged_pack(&(struct msg_merged){&e, 1}, &k);
    struct frame f = {.type = MSG_MERGED, .body = k.p, .size = k.n};
    ck_assert_int_eq(merge_split(&f, write_line, NULL, &err), -1);
    ck_assert_str_eq(sent.text, "");
    pack_finish(&k);
}
