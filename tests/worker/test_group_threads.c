/* Two groups in one process, a thread per rank. ThreadSanitizer can look into what the
 * threads share as threads; of the group's memory each has a mapping of its own, which it
 * cannot tell to be the same. */
#define CASE_SECONDS 250
#include "tests/support/suite.h"
#include "tests/worker/team.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>

enum { SIZE = 3, ROUNDS = 30, COUNT = 40000 };

struct rank {
    int rank, port;
    const char *backend, *name;
    struct ddp_err err;
    const char *failed; /* what, or NULL */
};

static pid_t server_pid;
static int port;

static void start_server(void)
{
    server_pid = team_server(&port);
}

static void stop_server(void)
{
    kill(server_pid, SIGKILL);
    waitpid(server_pid, NULL, 0);
}

/* The shared buffers are written before and read after each collective. */
static const char *work(struct ddp_group *g, struct ddp_err *err)
{
    int rank = ddp_group_rank(g);
    float *arena = ddp_arena_alloc(g, COUNT * sizeof(float), err);
    float *own = malloc(COUNT * sizeof(float)), all[SIZE * 8];
    const char *failed = arena ? NULL : "arena";
    for (int i = 0; i < ROUNDS && !failed; i++) {
        float *x = i % 2 ? arena : own;
        int count = i % 3 ? COUNT : 8;
        float want = (float)(SIZE * (SIZE - 1) / 2 + SIZE * i);
        for (int k = 0; k < count; k++)
            x[k] = (float)(rank + i);
        if (ddp_all_reduce(g, x, (size_t)count, DDP_F32, DDP_SUM, err) < 0)
            failed = err->text;
        for (int k = 0; k < count && !failed; k++)
            failed = x[k] == want ? NULL : "a sum is wrong";
        int mail = -1, next = (rank + 1) % SIZE, prev = (rank + SIZE - 1) % SIZE;
        struct ddp_request *r = ddp_isend(g, &rank, sizeof rank, next, i, err);
        if (!r || ddp_recv(g, &mail, sizeof mail, prev, i, err) < 0 ||
            ddp_wait(r, err) < 0 || mail != prev)
            failed = "a message is wrong";
        if (!failed && (ddp_broadcast(g, x, 8, DDP_F32, i % SIZE, err) < 0 ||
                        ddp_all_gather(g, x, all, 8, DDP_F32, err) < 0))
            failed = err->text;
    }
    free(own);
    return failed;
}

static void *run(void *arg)
{
    struct rank *r = arg;
    struct ddp_group_options o = {.rank = r->rank,
                                  .size = SIZE,
                                  .master_addr = "127.0.0.1",
                                  .master_port = r->port,
                                  .name = r->name,
                                  .backend = r->backend,
                                  .timeout_ms = 120000};
    struct ddp_group *g = ddp_group_init(&o, &r->err);
    r->failed = g ? work(g, &r->err) : r->err.text;
    ddp_group_destroy(g);
    return NULL;
}

FIXTURE(start_server, stop_server)

TEST(threads_of_a_process_may_be_ranks)
{
    static const char *const names[] = {"one", "two"};
    struct rank ranks[2 * SIZE];
    pthread_t threads[2 * SIZE];
    for (int i = 0; i < 2 * SIZE; i++) { /* two groups at once, one over each backend */
        ranks[i] = (struct rank){.rank = i % SIZE,
                                 .port = port,
                                 .name = names[i / SIZE],
                                 .backend = i / SIZE ? "tcp" : NULL};
        ck_assert_int_eq(pthread_create(&threads[i], NULL, run, &ranks[i]), 0);
    }
    for (int i = 0; i < 2 * SIZE; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < 2 * SIZE; i++)
        ck_assert_msg(!ranks[i].failed, "rank %d of '%s': %s", ranks[i].rank,
                      ranks[i].name, ranks[i].failed);
}
