/* A fault at every message: whatever a rank is about to say when it fails, all others get
 * one error that names it, soon, and can be destroyed.
 *
 * A rank "says" something when it sends on a socket, when it announces or steps in the
 * memory of its host, and when it writes into or takes from a ring there. The linker puts
 * a counter before each of these. A first run of a program that uses everything counts a
 * rank's words; in each further run it fails at one of them:
 *     kill   before it is said
 *     cut    in the middle: half of the bytes have gone, or the memory is written and
 *            no rank woken
 *     close  TCP only: both directions are shut, and the rank lives
 * Long messages of collectives are divided over several streams (DDP_TCP_STREAMS).
 * Some words of each rank are tried; with DDP_TEST_POINTS=all every one.
 */
#define CASE_SECONDS (getenv("DDP_TEST_POINTS") ? 3600 : 280)
#include "tests/support/suite.h"
#include "tests/worker/team.h"

#include "common/duration.h"
#include "common/mem.h"
#include "worker/group/shm.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

enum { RANKS = 4, SAMPLES = 2 };

enum fault { COUNT, KILL, CUT, CLOSE, FAULTS };
static const char *const fault_names[] = {"count", "kill", "cut", "close"};

/* Borrowed by a run. */
struct point {
    int victim;
    enum fault fault;
    unsigned at; /* the word, from 1 */
};

/* Written by the ranks, read by the test. */
static struct board {
    unsigned words[2];     /* of the victim in its program: all, those by TCP */
    char why[RANKS][512];  /* the error of the outermost group */
    int64_t took_ms;       /* the longest from the victim's end to an error */
    _Atomic int64_t fault; /* when */
} * board;

/* ---- the words ---- */

static const struct point *mine; /* NULL: not the victim, or not yet */
static unsigned words[2];

static bool now_is_the_time(bool by_tcp)
{
    words[0] += mine != NULL;
    words[1] += mine && by_tcp;
    if (!mine || mine->fault == COUNT || (mine->fault == CLOSE && !by_tcp))
        return false;
    return words[mine->fault == CLOSE] == mine->at;
}

static void die(void)
{
    board->fault = now_ms();
    raise(SIGKILL);
}

/* What another host, or the network, can cut. */
static bool is_tcp(int fd)
{
    int family = 0;
    getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &family, &(socklen_t){sizeof family});
    return family != AF_UNIX;
}

/* True when the socket's word is to be said by halves. */
static bool spoil(int fd)
{
    if (!now_is_the_time(is_tcp(fd)))
        return false;
    if (mine->fault == KILL)
        die();
    board->fault = now_ms();
    if (mine->fault == CLOSE)
        shutdown(fd, SHUT_RDWR);
    return mine->fault == CUT;
}

ssize_t __real_send(int fd, const void *data, size_t size, int flags);
ssize_t __wrap_send(int fd, const void *data, size_t size, int flags);
ssize_t __wrap_send(int fd, const void *data, size_t size, int flags)
{
    if (spoil(fd)) {
        __real_send(fd, data, is_tcp(fd) ? size / 2 : size, flags);
        die(); /* a packet goes whole */
    }
    return __real_send(fd, data, size, flags);
}

ssize_t __real_sendmsg(int fd, const struct msghdr *msg, int flags);
ssize_t __wrap_sendmsg(int fd, const struct msghdr *msg, int flags);
ssize_t __wrap_sendmsg(int fd, const struct msghdr *msg, int flags)
{
    if (spoil(fd)) {
        struct iovec *last = &msg->msg_iov[msg->msg_iovlen - 1];
        last->iov_len /= is_tcp(fd) ? 2 : 1;
        __real_sendmsg(fd, msg, flags);
        die();
    }
    return __real_sendmsg(fd, msg, flags);
}

/* In memory a word is written at once; a rank may die between that and waking. */
static bool dies_behind(void)
{
    if (!now_is_the_time(false))
        return false;
    if (mine->fault == KILL)
        die();
    return true;
}

void __real_shm_post(struct shm *s, uint32_t what, uint64_t bytes, int64_t where,
                     const void *small, size_t nsmall);
void __wrap_shm_post(struct shm *s, uint32_t what, uint64_t bytes, int64_t where,
                     const void *small, size_t nsmall);
void __wrap_shm_post(struct shm *s, uint32_t what, uint64_t bytes, int64_t where,
                     const void *small, size_t nsmall)
{
    bool dies = dies_behind();
    __real_shm_post(s, what, bytes, where, small, nsmall);
    if (dies)
        die();
}

void __real_shm_step(struct shm *s);
void __wrap_shm_step(struct shm *s);
void __wrap_shm_step(struct shm *s)
{
    bool dies = dies_behind();
    __real_shm_step(s);
    if (dies)
        die();
}

void __real_shm_wake(struct shm *s, int local);
void __wrap_shm_wake(struct shm *s, int local);
void __wrap_shm_wake(struct shm *s, int local)
{
    if (dies_behind())
        die(); /* the ring has been written: no rank is woken */
    __real_shm_wake(s, local);
}

/* ---- the program: a bit of everything ---- */

enum { LONG = 60000, SHORT = 3000 };

static int talk(struct ddp_group *g, struct ddp_err *err)
{
    static char out[4 * LONG], in[4 * LONG];
    int rank = ddp_group_rank(g), size = ddp_group_size(g), x = rank, from, rc = 0;
    int next = (rank + 1) % size, before = (rank + size - 1) % size;
    struct ddp_request *r[2] = {
        ddp_isend(g, out, sizeof out, next, 1, err),
        ddp_irecv(g, in, sizeof in, before, 1, err),
    };
    for (int i = 0; i < 2; i++)
        rc = rc || !r[i] || ddp_wait(r[i], err) < 0 ? -1 : 0;
    if (rc < 0)
        return -1;
    if (rank != 0)
        return ddp_send(g, &x, sizeof x, 0, 2, err);
    for (int i = 1; i < size && rc == 0; i++)
        rc = ddp_recv_any(g, &x, sizeof x, 2, &from, err);
    return rc;
}

static int compute(struct ddp_group *g, float *x, struct ddp_err *err)
{
    static float y[LONG];
    int size = ddp_group_size(g), last = size - 1;
    size_t block = LONG / (size_t)size;
    return ddp_all_reduce(g, x, 2, DDP_F32, DDP_MAX, err) ||
                   ddp_all_reduce(g, x, SHORT, DDP_F32, DDP_MAX, err) ||
                   ddp_all_reduce(g, x, LONG, DDP_F32, DDP_MAX, err) ||
                   ddp_broadcast(g, x, LONG, DDP_F32, last, err) ||
                   ddp_reduce(g, x, y, LONG, DDP_F32, DDP_MIN, 0, err) ||
                   ddp_all_gather(g, x, y, block, DDP_F32, err) ||
                   ddp_reduce_scatter(g, x, y, block, DDP_F32, DDP_SUM, err) ||
                   ddp_gather(g, x, y, SHORT, DDP_F32, last, err) ||
                   ddp_scatter(g, x, y, SHORT, DDP_F32, 0, err) ||
                   ddp_all_to_all(g, x, y, SHORT, DDP_F32, err) || ddp_barrier(g, err)
               ? -1
               : 0;
}

static int part(struct ddp_group *g, struct ddp_err *err)
{
    struct ddp_group *sub = NULL;
    static float x[SHORT];
    char c = 0;
    if (ddp_group_split(g, ddp_group_rank(g) / 2, 0, &sub, err) < 0)
        return -1;
    int rank = ddp_group_rank(sub), rc = 0;
    if (ddp_group_size(sub) > 1)
        rc =
            rank == 0 ? ddp_send(sub, &c, 1, 1, 3, err) : ddp_recv(sub, &c, 1, 0, 3, err);
    rc = rc || ddp_all_reduce(sub, x, SHORT, DDP_F32, DDP_MIN, err) ? -1 : 0;
    ddp_group_destroy(sub);
    return rc;
}

static int program(struct ddp_group *g, struct ddp_err *err)
{
    static float here[LONG];
    float *arena = ddp_arena_alloc(g, sizeof here, err);
    return !arena || talk(g, err) || compute(g, here, err) || part(g, err) ||
                   compute(g, arena, err)
               ? -1
               : 0;
}

/* ---- what the others get ---- */

static bool names(const char *why, int rank)
{
    char alone[32], inside[32];
    snprintf(alone, sizeof alone, "rank %d on ", rank);
    snprintf(inside, sizeof inside, "(%d in all) on ", rank);
    return strstr(why, alone) || strstr(why, inside);
}

/* One that lives breaks the group in which its connection was cut; of any other group it
 * takes its leave. */
static void check_cut(struct ddp_group *g, struct ddp_err *err)
{
    struct team_watch began = team_watch();
    while (!err->text[0] && ddp_barrier(g, err) == 0)
        team_assert(g, team_is_soon(began), "no error");
}

/* The error of a subgroup, if that came first, is followed by one of the group itself. */
static void check_death(struct ddp_group *g, int victim, struct ddp_err *err)
{
    struct ddp_err first = *err, again = {""};
    struct team_watch began = team_watch();
    char byte = 0;
    while (ddp_barrier(g, err) == 0)
        team_assert(g, team_is_soon(began), "no error");
    team_assert(g,
                names(err->text, victim) && (!first.text[0] || names(first.text, victim)),
                "does not name rank %d: '%s', then '%s'", victim, first.text, err->text);
    int to = (ddp_group_rank(g) + 1) % ddp_group_size(g);
    team_assert(g, ddp_send(g, &byte, 1, to, 0, &again) == -1, "a send went well");
    team_assert(g, strcmp(err->text, again.text) == 0, "'%s', then '%s'", err->text,
                again.text);
}

static void play(struct ddp_group *g, const void *arg)
{
    const struct point *p = arg;
    struct ddp_err err = {""};
    struct team_watch watch = team_watch();
    mine = ddp_group_rank(g) == p->victim ? p : NULL;
    int rc = program(g, &err);
    /* all said, in fewer words maybe; or only a farewell was cut */
    if (mine && rc == 0 && (board->fault == 0 || p->fault == CLOSE)) {
        memcpy(board->words, words, sizeof words);
        if (p->fault == CLOSE)
            return;
        die();
    }
    mine = NULL;
    if (rc == 0)
        err.text[0] = '\0';
    if (p->fault == CLOSE)
        check_cut(g, &err);
    else
        check_death(g, p->victim, &err);
    int64_t took = board->fault ? now_ms() - board->fault : 0;
    watch.at_ms = now_ms() - took;
    team_assert(g, team_is_soon(watch), "rank %d, %s at %u: noticed after %lld ms: %s",
                p->victim, fault_names[p->fault], p->at, (long long)took, err.text);
    board->took_ms = took > board->took_ms ? took : board->took_ms;
    strcpy(board->why[ddp_group_rank(g)], err.text);
}

static const struct team teams[] = {
    {.size = 4}, {.size = 3, .backend = "tcp"}, {.size = 4, .layout = "aabb"}};

/* Of a cut connection all say the same, whichever end they have it from; what they were
 * doing may differ. */
static bool same_cut(const char *a, const char *b)
{
    static const char cut[] = "the connection between ";
    const char *end = strstr(a, " during ");
    bool both = strncmp(a, cut, strlen(cut)) == 0 && strncmp(b, cut, strlen(cut)) == 0;
    return !both || (end && strncmp(a, b, (size_t)(end - a)) == 0);
}

static void try_point(const struct team *team, const struct point *p)
{
    struct team t = *team;
    const char *first = NULL;
    memset(board, 0, sizeof *board);
    if (p->fault != CLOSE)
        t.expect_dead = p->victim + 1;
    assert_team(&t, play, p);
    for (int r = 0; r < t.size; r++) {
        const char *why = board->why[r];
        if (!why[0] && r == p->victim)
            continue; /* dead, or had nothing more to say */
        first = first ? first : why;
        ck_assert_msg(why[0] && same_cut(first, why), "rank %d, %s at %u: '%s' and '%s'",
                      p->victim, fault_names[p->fault], p->at, first, why);
    }
}

/* Every word, or some that lie apart, and other ones for each rank and fault. */
static void try_points(const struct team *team, int victim, enum fault fault,
                       unsigned nwords)
{
    const char *how = getenv("DDP_TEST_POINTS");
    bool all = how && strcmp(how, "all") == 0;
    unsigned step = all ? 1 : nwords / SAMPLES + 1, runs = 0;
    unsigned at = all ? 1 : 1 + (unsigned)(victim * 7 + (int)fault * 5) % step;
    int64_t longest = 0;
    for (; at <= nwords; at += step, runs++) {
        try_point(team, &(struct point){victim, fault, at});
        longest = board->took_ms > longest ? board->took_ms : longest;
    }
    printf("%d ranks, %s: rank %d, %s: %u of %u words, told within %lld ms\n", team->size,
           team->layout    ? team->layout
           : team->backend ? team->backend
                           : "one host",
           victim, fault_names[fault], runs, nwords, (long long)longest);
    fflush(stdout);
}

LOOP_TEST(a_fault_at_any_message_is_told, RANKS *ARRAY_LEN(teams))
{
    const struct team *team = &teams[_i / RANKS];
    int victim = _i % RANKS;
    board = team_shared(sizeof *board);
    if (victim >= team->size)
        return;
    setenv("DDP_TCP_STREAMS", "3", 1);
    try_point(team, &(struct point){victim, COUNT, 0});
    unsigned all = board->words[0], by_tcp = board->words[1];
    ck_assert_uint_gt(all, 20);
    try_points(team, victim, KILL, all);
    try_points(team, victim, CUT, all);
    try_points(team, victim, CLOSE, by_tcp);
}
