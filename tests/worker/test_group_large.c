/* Messages and collectives of more than 2 GiB: no size may have been kept in an int.
 *
 * Takes 6 GiB and half a minute or more, so only when asked for:
 *     DDP_TEST_LARGE=1 meson test -C build --suite large
 */
#define CASE_SECONDS 600
#include "tests/support/suite.h"
#include "tests/worker/team.h"

#include "common/mem.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static const size_t more = ((size_t)1 << 31) + 5;
static const uint64_t least_kib = 12 << 20;

/* one rank may fill its memory minutes before the other on a busy machine */
static const struct team teams[] = {{.size = 2, .timeout_ms = 300000},
                                    {.size = 2, .backend = "tcp", .timeout_ms = 300000}};

static uint64_t available_kib(void)
{
    char line[128];
    uint64_t kib = 0;
    FILE *f = fopen("/proc/meminfo", "re");
    while (f && kib == 0 && fgets(line, sizeof line, f))
        sscanf(line, "MemAvailable: %" SCNu64, &kib);
    if (f)
        fclose(f);
    return kib;
}

/* Another byte at each place, also at places that lie 2^31 or 2^32 apart. */
static unsigned char byte_at(size_t i)
{
    return (unsigned char)(i ^ (i >> 8) ^ (i >> 16) ^ (i >> 24) * 7 ^ (i >> 31) * 13);
}

/* times * byte_at() + plus, of 256 places that differ in its first term alone. */
static void block_at(size_t i, unsigned times, unsigned plus, unsigned char block[256])
{
    unsigned high = byte_at(i);
    for (unsigned j = 0; j < 256; j++)
        block[j] = (unsigned char)(times * (high ^ j) + plus);
}

static void fill(unsigned char *data, unsigned times, unsigned plus)
{
    unsigned char block[256];
    for (size_t i = 0; i < more; i += sizeof block) {
        block_at(i, times, plus, block);
        memcpy(data + i, block, more - i < sizeof block ? more - i : sizeof block);
    }
}

static void check(struct ddp_group *g, const unsigned char *data, unsigned times,
                  unsigned plus)
{
    unsigned char block[256];
    for (size_t i = 0; i < more; i += sizeof block) {
        block_at(i, times, plus, block);
        size_t n = more - i < sizeof block ? more - i : sizeof block;
        team_assert(g, memcmp(data + i, block, n) == 0, "bytes from %zu on", i);
    }
}

static void send_case(struct ddp_group *g, unsigned char *data)
{
    struct ddp_err err = {""};
    if (ddp_group_rank(g) == 0) {
        fill(data, 1, 0);
        team_ok(g, ddp_send(g, data, more, 1, 0, &err));
    } else {
        memset(data, 0, more);
        team_ok(g, ddp_recv(g, data, more, 0, 0, &err));
        check(g, data, 1, 0);
    }
}

static void bytes_case(struct ddp_group *g, unsigned char *data)
{
    struct ddp_err err = {""};
    unsigned rank = (unsigned)ddp_group_rank(g);
    fill(data, 1, rank);
    team_ok(g, ddp_all_reduce(g, data, more, DDP_U8, DDP_SUM, &err));
    check(g, data, 2, 1);
    data[more - 1] += (unsigned char)rank;
    team_ok(g, ddp_broadcast(g, data, more, DDP_U8, 1, &err));
    team_assert(g, data[more - 1] == (unsigned char)(2 * byte_at(more - 1) + 2),
                "the end");
}

static void floats_case(struct ddp_group *g, float *data, size_t count)
{
    struct ddp_err err = {""};
    int rank = ddp_group_rank(g);
    for (size_t i = 0; i < count; i++)
        data[i] = (float)(byte_at(i) + rank);
    team_ok(g, ddp_all_reduce(g, data, count, DDP_F32, DDP_SUM, &err));
    for (size_t i = 0; i < count; i++)
        team_assert(g, data[i] == (float)(2 * byte_at(i) + 1), "element %zu", i);
}

/* In one team, with the same memory: the kernel takes long to give it. */
static void large_case(struct ddp_group *g, const void *arg)
{
    size_t count = more / sizeof(float) + 1;
    void *data = malloc(count * sizeof(float));
    team_assert(g, data, "no %zu bytes", count * sizeof(float));
    madvise(data, count * sizeof(float), MADV_HUGEPAGE);
    send_case(g, data);
    bytes_case(g, data);
    floats_case(g, data, count);
    free(data);
}

LOOP_TEST(more_than_2_gib_are_sent_and_reduced, ARRAY_LEN(teams))
{
    assert_team(&teams[_i], large_case, NULL);
}

__attribute__((constructor)) static void skip_without_memory(void)
{
    uint64_t kib = available_kib();
    if (!getenv("DDP_TEST_LARGE") || kib < least_kib) {
        fprintf(stderr,
                "skipped: %" PRIu64
                " GiB of memory are free, and DDP_TEST_LARGE=1 starts it; "
                "needs memory 12 GiB\n",
                kib >> 20);
        exit(77);
    }
}
