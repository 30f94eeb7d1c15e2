/* Node maps, PMI-1 and PMI-2, and detection of a program's MPI. */
#include "tests/support/suite.h"

#include "common/elf_file.h"
#include "common/mem.h"
#include "launcher/agent/plugin.h"
#include "launcher/link/link.h"
#include "launcher/link/rankmap.h"
#include "launcher/opts.h"
#include "launcher/plugins/mpi/mpi_kind.h"
#include "launcher/plugins/mpi/pmi_wire.h"
#include "launcher/plugins/plugins.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

/* --- maps --------------------------------------------------------------------------- */

static const struct {
    const char *nodes[4]; /* NULL: no more */
    uint32_t nranks;
    const char *mapping; /* as in PMI_process_mapping */
    const char *error;   /* instead, a part of it */
} maps[] = {
    {{"0-3 a"}, 4, "(vector,(0,1,4))", NULL},
    {{"0-3 a", "4-7 b"}, 8, "(vector,(0,2,4))", NULL},
    {{"0-2 a", "3-4 b"}, 5, "(vector,(0,1,3),(1,1,2))", NULL},
    {{"0-3 a", "4-7 b", "8-9 c"}, 10, "(vector,(0,2,4),(2,1,2))", NULL},
    /* cyclic: the pattern once, repeated */
    {{"0,2,4 a", "1,3,5 b"}, 6, "(vector,(0,2,1))", NULL},
    {{"0,2,4 a", "1,3 b"}, 5, "(vector,(0,2,1))", NULL},
    {{"0-1,4 a", "2-3 b"}, 5, "(vector,(0,2,2))", NULL},
    {{"1 a", "0 b"}, 2, "(vector,(1,1,1),(0,1,1))", NULL},
    {{"0 a"}, 2, NULL, "a map of 1 ranks for a job of 2"},
    {{"0-1 a", "1-2 b"}, 3, NULL, "rank 1 is twice in the map"},
    {{"0-5 a"}, 2, NULL, "rank 2 is twice in the map, or not of the job"},
    {{"0-1"}, 2, NULL, "no host name in the rank map: '0-1'"},
    {{"0-x a"}, 2, NULL, "x"},
};

LOOP_TEST(ranks_are_mapped_to_nodes, ARRAY_LEN(maps))
{
    struct strv text = {0};
    struct rankmap map;
    struct ddp_err err;
    for (size_t i = 0; i < ARRAY_LEN(maps[_i].nodes) && maps[_i].nodes[i]; i++)
        strv_push(&text, maps[_i].nodes[i]);
    int rc = rankmap_read(&map, &text, maps[_i].nranks, &err);
    ck_assert_int_eq(rc, maps[_i].error ? -1 : 0);
    if (rc == 0) {
        char *mapping = pmi_mapping(&map);
        ck_assert_str_eq(mapping, maps[_i].mapping);
        free(mapping);
        rankmap_finish(&map);
    } else {
        ck_assert_msg(strstr(err.text, maps[_i].error), "%s", err.text);
    }
    strv_finish(&text);
}

TEST(a_mapping_too_long_for_pmi_is_omitted)
{
    enum { N = 4000 };
    struct strv text = {0};
    struct rankmap map;
    struct ddp_err err;
    int *ranks = xcalloc(N, sizeof *ranks);
    for (int node = 0; node < 2; node++) {
        int n = 0;
        for (int r = 0; r < N; r++) {
            if ((r * r / 7) % 2 == node) /* no pattern */
                ranks[n++] = r;
        }
        rankmap_push(&text, node ? "b" : "a", ranks, n);
    }
    ck_ok(rankmap_read(&map, &text, N, &err), err);
    ck_assert_ptr_null(pmi_mapping(&map));
    rankmap_finish(&map);
    strv_finish(&text);
    free(ranks);
}

/* --- PMI's wire --------------------------------------------------------------------- */

static const struct {
    bool second;
    const char *text;
    const char *words[8]; /* name, value, ... */
} requests[] = {
    {false,
     "cmd=init pmi_version=1 pmi_subversion=1\n",
     {"cmd", "init", "pmi_version", "1", "pmi_subversion", "1"}},
    {false,
     "cmd=put kvsname=k key=a value=b  c=d \n",
     {"cmd", "put", "kvsname", "k", "key", "a", "value", "b  c=d "}},
    {false, "  cmd=abort   exitcode=-3\r\n", {"cmd", "abort", "exitcode", "-3"}},
    {false, "\n", {NULL}},
    {true, "    13cmd=finalize;", {"cmd", "finalize"}},
    {true,
     "    37cmd=kvs-put;key=a;value=x;;y=z;;;q=1;",
     {"cmd", "kvs-put", "key", "a", "value", "x;y=z;", "q", "1"}},
    {true, "     0", {NULL}},
};

/* Names of a cluster take a fraction of their size; any other bytes are an error. */
TEST(a_map_is_compressed)
{
    struct strv map = {0}, again = {0};
    struct ddp_err err;
    uint32_t size;
    size_t n;
    for (int i = 0; i < 1000; i++)
        strv_pushf(&map, "%d-%d node%05d", 8 * i, 8 * i + 7, i);
    uint8_t *data = rankmap_pack(&map, &n, &size);
    ck_assert_uint_lt(n, size / 2);
    ck_ok(rankmap_unpack(data, n, size, &again, &err), err);
    ck_assert_uint_eq(again.n, map.n);
    ck_assert_str_eq(again.v[999], "7992-7999 node00999");
    strv_finish(&again);
    ck_assert_int_eq(rankmap_unpack(data, n, size - 1, &again, &err), -1);
    strv_finish(&again);
    ck_assert_int_eq(rankmap_unpack(data, n / 2, size, &again, &err), -1);
    strv_finish(&again);
    data[n / 2] ^= 1;
    ck_assert_int_eq(rankmap_unpack(data, n, size, &again, &err), -1);
    ck_assert_str_eq(err.text, "the rank map is garbled");
    strv_finish(&again);
    strv_finish(&map);
    free(data);
}

LOOP_TEST(a_request_is_complete_only_at_its_end, ARRAY_LEN(requests))
{
    size_t n = strlen(requests[_i].text);
    for (size_t k = 0; k < n; k++) {
        char *exact = xmemdup(requests[_i].text, k + 1);
        ck_assert_int_eq(pmi_request_size(exact, k, requests[_i].second), 0);
        free(exact);
    }
}

LOOP_TEST(a_request_is_parsed, ARRAY_LEN(requests))
{
    struct pmi_request r;
    char *text = xstrdup(requests[_i].text);
    long n = pmi_request_size(text, strlen(text), requests[_i].second);
    ck_assert_int_gt(n, 0);
    pmi_request_read(&r, text, (size_t)n, requests[_i].second);
    size_t words = 0;
    for (; words < 4 && requests[_i].words[2 * words]; words++)
        ck_assert_str_eq(pmi_word(&r, requests[_i].words[2 * words]),
                         requests[_i].words[2 * words + 1]);
    ck_assert_uint_eq(r.n, words);
    ck_assert_ptr_null(pmi_word(&r, "nothing"));
    free(text);
}

TEST(malformed_requests_are_rejected)
{
    char *line = xcalloc(PMI_REQUEST_MAX + 2, 1);
    memset(line, 'x', PMI_REQUEST_MAX);
    ck_assert_int_eq(pmi_request_size(line, PMI_REQUEST_MAX, false), -1);
    ck_assert_int_eq(pmi_request_size(line, PMI_REQUEST_MAX - 1, false), 0);
    line[PMI_REQUEST_MAX] = '\n';
    ck_assert_int_eq(pmi_request_size(line, PMI_REQUEST_MAX + 1, false), -1);
    ck_assert_int_eq(pmi_request_size("cmd=in", 6, true), -1);
    ck_assert_int_eq(pmi_request_size("999999", 6, true), -1);
    free(line);
}

TEST(more_words_than_are_parsed)
{
    char text[PMI_REQUEST_MAX] = "";
    struct pmi_request r;
    size_t n = 0;
    for (int i = 0; i < PMI_WORDS + 10; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, "w%d=%d ", i, i);
    strcat(text, "\n");
    pmi_request_read(&r, text, strlen(text), false);
    ck_assert_uint_eq(r.n, PMI_WORDS);
    ck_assert_str_eq(pmi_word(&r, "w511"), "511");
    ck_assert_ptr_null(pmi_word(&r, "w512"));
}

/* --- programs ----------------------------------------------------------------------- */

TEST(libraries_of_this_program)
{
    struct elf elf;
    ck_assert_int_eq(elf_read("/proc/self/exe", &elf), 0);
    ck_assert(elf_names(&elf, "malloc"));
    ck_assert(!elf_names(&elf, "mallo") && !elf_names(&elf, "MPI_Send_c"));
    bool libc = false;
    for (size_t i = 0; i < elf.needs.n; i++)
        libc |= strcmp(elf.needs.v[i], "libc.so.6") == 0;
    ck_assert(libc);
    char *found = elf_find("/proc/self/exe", &elf, NULL, "libc.so.6");
    ck_assert_ptr_nonnull(found);
    ck_assert_ptr_null(elf_find("/proc/self/exe", &elf, "/nowhere", "libnone.so.1"));
    free(found);
    char library[64];
    ck_assert_int_eq(mpi_kind_of("/proc/self/exe", &elf, NULL, library, sizeof library),
                     MPI_UNSEEN);
    ck_assert_str_eq(library, "");
    elf_finish(&elf);
}

/* Each byte of a program's beginning changed, and each length of it: reading stays inside
 * the file. */
TEST(a_corrupt_program_is_no_crash)
{
    char *dir = temp_dir(), *path = xasprintf("%s/broken", dir);
    unsigned char head[1024];
    FILE *f = fopen("/proc/self/exe", "r");
    ck_assert_ptr_nonnull(f);
    size_t n = fread(head, 1, sizeof head, f);
    fclose(f);
    for (size_t i = 0; i < n; i += i < 64 ? 1 : 29) {
        for (int how = 0; how < 2; how++) {
            unsigned char was = head[i];
            struct elf elf;
            head[i] = (unsigned char)~was;
            f = fopen(path, "w");
            ck_assert_ptr_nonnull(f);
            ck_assert_uint_eq(fwrite(head, 1, how ? n : i, f), how ? n : i);
            fclose(f);
            head[i] = was;
            if (elf_read(path, &elf) == 0)
                elf_finish(&elf);
        }
    }
    free(path);
    free(dir);
}

static const struct {
    enum mpi_kind kind;
    unsigned served;
    uint32_t nranks;
    const char *error; /* a part of it; NULL: none */
} checks[] = {
    {MPI_UNSEEN, MPI_NONE, 4, NULL},
    {MPI_WANTS_PMIX, MPI_AUTO, 4, NULL},
    {MPI_WANTS_PMIX, MPI_PMI, 1, NULL},
    {MPI_WANTS_PMIX, MPI_PMI, 4, "'./p' needs PMIx"},
    {MPI_WANTS_PMI, MPI_PMI, 4, NULL},
    {MPI_WANTS_PMI, MPI_PMIX, 4, "'./p' needs PMI, which is not served"},
    {MPI_TOO_OLD, MPI_AUTO, 4, "it would run as 4 programs of one rank each"},
    {MPI_TOO_OLD, MPI_AUTO, 1, NULL},
};

LOOP_TEST(ranks_that_could_not_connect_are_rejected, ARRAY_LEN(checks))
{
    struct ddp_err err;
    int rc = mpi_kind_check(checks[_i].kind, "./p", "libmpi.so", checks[_i].served,
                            checks[_i].nranks, &err);
    ck_assert_int_eq(rc, checks[_i].error ? -1 : 0);
    if (rc < 0)
        ck_assert_msg(strstr(err.text, checks[_i].error), "%s", err.text);
}

/* --- ranks without MPI ---------------------------------------------------------------
 */

enum { REPORT_MS = 2500 }; /* more than a report of the agent takes */

static int absent = -1; /* the rank reported */

static void on_frame(struct link *l, const struct frame *f, void *arg)
{
    struct ddp_err err;
    union msg_any m;
    ck_assert_int_eq(msg_unpack(f, &m, &err), 0);
    if (f->type == MSG_MEMBER && m.member.state == MEMBER_ABSENT) {
        absent = (int)m.member.rank;
        loop_stop(arg, 0);
    }
    msg_finish(f->type, &m);
}

static void on_over(evutil_socket_t fd, short what, void *arg)
{
    loop_stop(arg, 0);
}

/* The rank that is reported when one of two exits with 0, or -1. */
static int reported(bool stop_before, bool stop_after)
{
    static const struct link_events events = {on_frame, NULL};
    struct ddp_err err;
    int ends[2];
    struct agent **state = xcalloc(1, mpi_agent.state_size);
    struct share_rank ranks[] = {{.rank = 4}, {.rank = 5}};
    struct agent a = {.loop = loop_create(&err), .job = {.nnodes = 2, .nranks = 6}};
    a.share.ranks = ranks;
    a.share.nlocal = ARRAY_LEN(ranks);
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
    a.up = link_create(a.loop, ends[0], FRAME_DOWN, NULL, &events, a.loop);
    struct link *above = link_create(a.loop, ends[1], FRAME_UP, NULL, &events, a.loop);
    struct event *over = loop_timer(a.loop, on_over, a.loop);
    loop_arm(over, REPORT_MS);
    *state = &a;
    ck_assert_int_eq(mpi_agent.prepare(state, &a.job, &err), 0);
    if (stop_before)
        mpi_agent.stop(state, true);
    mpi_agent.rank_exited(state, 1, &(struct msg_exit){.rank = 5});
    if (stop_after)
        mpi_agent.stop(state, true);
    absent = -1;
    loop_run(a.loop);
    mpi_agent.fini(state);
    free(state);
    loop_free(over);
    link_destroy(above);
    link_destroy(a.up);
    loop_destroy(a.loop);
    return absent;
}

TEST(a_rank_without_mpi_is_reported_while_others_run)
{
    ck_assert_int_eq(reported(false, false), 5);
    ck_assert_int_eq(reported(true, false), -1);
    ck_assert_int_eq(reported(false, true), -1);
}
