/* Arguments and variables that make no sense are refused in one line each. */
#include "tests/support/suite.h"
#include "tests/worker/team.h"

#include "common/mem.h"

#include <limits.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

TEST(nonsense_is_refused)
{
    struct ddp_err err = {""};
    char byte = 0;
    static const char *const vars[] = {"RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_SIZE",
                                       "PMI_SIZE", "SLURM_STEP_NUM_TASKS"};
    for (size_t i = 0; i < ARRAY_LEN(vars); i++)
        unsetenv(vars[i]);
    struct ddp_group *g = ddp_group_init(NULL, &err);
    ck_assert_msg(g, "%s", err.text);
    ck_assert_int_eq(ddp_group_size(g), 1);
    ck_assert_int_eq(ddp_all_reduce(g, NULL, 3, DDP_F32, DDP_SUM, &err), -1);
    ck_assert_str_eq(err.text, "the buffer of 3 elements is NULL");
    ck_assert_int_eq(ddp_broadcast(g, &byte, 1, DDP_U8, 1, &err), -1);
    ck_assert_str_eq(err.text, "root 1 in a group of 1");
    ck_assert_int_eq(ddp_all_reduce(g, &byte, 1, 9, DDP_SUM, &err), -1);
    ck_assert_str_eq(err.text, "no such element type or operation (9, 0)");
    float f = 0;
    ck_assert_int_eq(ddp_all_reduce(g, &f, 1, DDP_F32, DDP_BXOR, &err), -1);
    ck_assert_str_eq(err.text, "'bxor' is for integers, not for f32");
    ck_assert_int_eq(ddp_send(g, &byte, 1, 1, 0, &err), -1);
    ck_assert_str_eq(err.text, "a message with rank 1 in a group of 1");
    ck_assert_int_eq(ddp_recv(g, &byte, 1, 0, -1, &err), -1);
    ck_assert_str_eq(err.text, "the tag -1 is negative");
    ck_assert_int_eq(ddp_send(g, &byte, 1, -1, 0, &err), -1);
    ck_assert_str_eq(err.text, "a message with rank -1 in a group of 1");
    ck_assert_int_eq(ddp_send(g, &byte, 1, INT_MIN, 0, &err), -1);
    ck_assert_str_eq(err.text, "a message with rank -2147483648 in a group of 1");
    ck_assert_int_eq(ddp_send(g, &byte, SIZE_MAX, 0, 0, &err), -1);
    ck_assert_str_eq(err.text, "18446744073709551615 bytes are more than memory has");
    ck_assert_int_eq(ddp_all_reduce(g, &byte, SIZE_MAX / 4, DDP_U8, DDP_SUM, &err), -1);
    ck_assert_str_eq(err.text, "4611686018427387903 elements are more than memory has");
    ck_assert_int_eq(ddp_all_gatherv(g, &byte, &byte, NULL, DDP_U8, &err), -1);
    ck_assert_str_eq(err.text, "the list of counts is NULL");
    ck_assert_int_eq(ddp_gatherv(g, &byte, 1, &byte, NULL, DDP_U8, 0, &err), -1);
    ck_assert_str_eq(err.text, "the list of counts is NULL");
    ck_assert_ptr_null(ddp_group_sub(g, NULL, 1, &err));
    ck_assert_str_eq(err.text, "a group of 1 out of 1 ranks, without a list of them");
    static const size_t one = 1, two = 2;
    char in[2] = "ab", out[2] = "..";
    ck_assert_int_eq(ddp_gatherv(g, in, 2, out, &one, DDP_U8, 0, &err), -1);
    ck_assert_str_eq(err.text, "rank 0 gives itself 2 elements and takes 1");
    ck_assert_int_eq(ddp_scatterv(g, in, &two, out, 1, DDP_U8, 0, &err), -1);
    ck_assert_str_eq(err.text, "rank 0 gives itself 2 elements and takes 1");
    ck_assert_int_eq(ddp_all_to_allv(g, in, &one, out, &two, DDP_U8, &err), -1);
    ck_assert_str_eq(err.text, "rank 0 gives itself 1 elements and takes 2");
    ck_assert_mem_eq(out, "..", 2);
    static const size_t most = SIZE_MAX;
    ck_assert_int_eq(ddp_all_to_allv(g, in, &one, out, &most, DDP_F64, &err), -1);
    ck_assert_str_eq(err.text, "18446744073709551615 elements are more than memory has");
    ck_assert_ptr_null(ddp_arena_alloc(g, SIZE_MAX - 8, &err));
    ck_assert_int_eq(ddp_barrier(g, &err), 0);
    ddp_group_set_timeout(g, 1);
    ck_assert_int_eq(ddp_recv(g, &byte, 1, 0, 7, &err), -1);
    ck_assert_str_eq(err.text,
                     "rank 0's receive of 1 bytes with tag 7 from rank 0: waits for "
                     "rank 0 on localhost, and has not ended within 0.001 s");
    ddp_group_destroy(g);
    ck_assert_ptr_null(
        ddp_group_init(&(struct ddp_group_options){.rank = 0, .backend = "ib"}, &err));
    ck_assert_str_eq(
        err.text,
        "unknown backend 'ib': 'shm', 'tcp', 'shm+tcp', 'mpi', 'nccl', or none to let it be chosen");
    g = ddp_group_init(&(struct ddp_group_options){.rank = -1, .backend = "shm+tcp"},
                       &err);
    ck_assert_msg(g, "%s", err.text);
    ddp_group_destroy(g);
    ck_assert_ptr_null(
        ddp_group_init(&(struct ddp_group_options){.rank = 2, .size = 2}, &err));
    ck_assert_str_eq(err.text, "rank 2 in a group of 2");
    ck_assert_ptr_null(ddp_group_init(
        &(struct ddp_group_options){.rank = 1, .size = 1 << 20 | 1}, &err));
    ck_assert_str_eq(err.text, "a group of 1048577 ranks: it can have 1048576 at most");
    unsetenv("MASTER_ADDR");
    ck_assert_ptr_null(
        ddp_group_init(&(struct ddp_group_options){.rank = 1, .size = 2}, &err));
    ck_assert_ptr_nonnull(strstr(err.text, "MASTER_ADDR is not set: rank 1 of 2"));
}

static void make_with_an_arena(struct ddp_group *g, const void *bytes)
{
    struct ddp_err err = {""};
    struct ddp_group_options o = {
        .rank = -1, .name = "large", .arena_bytes = *(const size_t *)bytes};
    team_assert(g, !ddp_group_init(&o, &err), "it was made");
    team_assert(g, strstr(err.text, " bytes for each rank is more than memory has"), "%s",
                err.text);
}

LOOP_TEST(an_arena_beyond_memory_is_refused, 2)
{
    static const size_t sizes[] = {SIZE_MAX, INT64_MAX};
    assert_team(&(struct team){.size = 2}, make_with_an_arena, &sizes[_i]);
}
