/* mpi_hang.c WHAT: ranks of MPI of which some wait for ever; "none": all end after a while. */
#include <mpi.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#if MPI_VERSION < 4 /* which has no functions for large counts; a program may ask */
int MPI_Send_c(void) __attribute__((weak));
#define HAS_LARGE_COUNTS (MPI_Send_c != NULL)
#define MPI_Allreduce_c MPI_Allreduce
#else
#define HAS_LARGE_COUNTS false
#endif

static int rank, size, one = 1, sum;

static void add(MPI_Comm comm)
{
    MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, comm);
}

static void receive(int from)
{
    MPI_Recv(&one, 1, MPI_INT, from, 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

/* More communicators than there are records, one after the other; their handles are used again. */
static void make_and_free(void)
{
    for (int i = 0; i < 140; i++) {
        MPI_Comm comm;
        MPI_Comm_dup(MPI_COMM_WORLD, &comm);
        add(comm);
        MPI_Comm_free(&comm);
    }
}

/* All ranks of this job wait for one of another, which computes. */
static void wait_for_another_job(char *program)
{
    char *child[] = {"child", NULL};
    MPI_Comm parent, children;
    MPI_Comm_get_parent(&parent);
    if (parent != MPI_COMM_NULL) {
        sleep(5);
        MPI_Send(&one, 1, MPI_INT, 0, 7, parent);
        return;
    }
    MPI_Comm_spawn(program, child, 1, MPI_INFO_NULL, 0, MPI_COMM_WORLD, &children, MPI_ERRCODES_IGNORE);
    MPI_Recv(&one, 1, MPI_INT, 0, 7, children, MPI_STATUS_IGNORE);
}

/* A collective of nothing ends at once: MPI may give all threads the same handle for it. */
static void *begin_and_end(void *comm)
{
    for (int i = 0; i < 20000; i++) {
        MPI_Request request;
        MPI_Ireduce(&one, &sum, i % 2 ? 0 : 1, MPI_INT, MPI_SUM, 0, *(MPI_Comm *)comm, &request);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
    }
    return NULL;
}

static void begin_in_threads(void)
{
    pthread_t threads[4];
    MPI_Comm comms[4];
    for (int i = 0; i < 4; i++)
        MPI_Comm_dup(MPI_COMM_WORLD, &comms[i]);
    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, begin_and_end, &comms[i]);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
}

/* Rank 0 waits for a message that comes late, and for a collective that has ended: no hang. */
static void wait_for_both(void)
{
    MPI_Request requests[2];
    MPI_Ibarrier(MPI_COMM_WORLD, &requests[0]);
    if (rank == 0)
        MPI_Irecv(&one, 1, MPI_INT, 1, 7, MPI_COMM_WORLD, &requests[1]);
    else
        MPI_Wait(&requests[0], MPI_STATUS_IGNORE);
    if (rank != 0)
        sleep(4);
    if (rank == 1)
        MPI_Send(&one, 1, MPI_INT, 0, 7, MPI_COMM_WORLD);
    if (rank == 0)
        MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
}

/* Steps of an exchange with the neighbours. In the third, rank 1 sends with another tag, or
 * goes on without having received; `number`: a tag of its own for each step. */
static void exchange(const char *what, bool number)
{
    int left = (rank + size - 1) % size, right = (rank + 1) % size, from[2];
    for (int step = 0; step < (number ? 1200 : 4); step++) {
        MPI_Request requests[4];
        bool wrong = rank == 1 && step == 2;
        int tag = number ? step : 0;
        MPI_Irecv(&from[0], 1, MPI_INT, left, 10 + tag, MPI_COMM_WORLD, &requests[0]);
        MPI_Irecv(&from[1], 1, MPI_INT, right, 2000 + tag, MPI_COMM_WORLD, &requests[1]);
        MPI_Isend(&rank, 1, MPI_INT, right, wrong && strcmp(what, "tag") == 0 ? 9 : 10 + tag, MPI_COMM_WORLD,
                  &requests[2]);
        MPI_Issend(&rank, 1, MPI_INT, left, 2000 + tag, MPI_COMM_WORLD, &requests[3]);
        if (wrong && strcmp(what, "leave") == 0)
            MPI_Barrier(MPI_COMM_WORLD);
        MPI_Waitall(4, requests, MPI_STATUSES_IGNORE);
    }
}

/* Ranks 0 and 1 wait for rank 2, by a handle that was one of a message between them. */
static void reuse(void)
{
    MPI_Request request;
    if (rank > 1)
        return;
    MPI_Irecv(&sum, 1, MPI_INT, 1 - rank, 7, MPI_COMM_WORLD, &request);
    MPI_Send(&one, 1, MPI_INT, 1 - rank, 7, MPI_COMM_WORLD);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    MPI_Recv_init(&sum, 1, MPI_INT, 2, 8, MPI_COMM_WORLD, &request);
    MPI_Start(&request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
}

/* The first request ends by tests: its handle may be used again for what waits. */
static void begin_and_wait(MPI_Comm half)
{
    MPI_Request requests[2];
    int ended = 0;
    MPI_Ibarrier(half, &requests[0]);
    while (!ended)
        MPI_Test(&requests[0], &ended, MPI_STATUS_IGNORE);
    MPI_Ibarrier(half, &requests[0]);
    if (rank == 2)
        pause();
    MPI_Iallreduce(&one, &sum, 1, MPI_INT, MPI_SUM, half, &requests[1]);
    MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
    if (rank % 2)
        pause();
}

int main(int argc, char **argv)
{
    const char *what = argv[1], *preload = getenv("LD_PRELOAD");
    MPI_Comm half, other;
    int provided;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (strcmp(what, "spawn") == 0 || strcmp(what, "child") == 0) {
        wait_for_another_job(argv[0]);
        MPI_Finalize();
        return 0;
    }
    if (rank == 0)
        printf("LD_PRELOAD=%s%s\n", preload ? preload : "", HAS_LARGE_COUNTS ? ", MPI_Send_c" : "");
    fflush(stdout);
    if (strcmp(what, "world") == 0)
        make_and_free();
    add(MPI_COMM_WORLD);
    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, -rank, &half);
    MPI_Comm_dup(MPI_COMM_WORLD, &other);
    MPI_Comm_set_name(other, "other");
    add(half);
    MPI_Barrier(other);
    if (strcmp(what, "none") == 0)
        sleep(3);
    if (strcmp(what, "world") == 0) {
        if (rank == 1)
            pause();
        add(MPI_COMM_WORLD); /* the 144th: a dup, a split and a sum, and the 140 dups */
    }
    if (strcmp(what, "half") == 0) {
        if (rank == 2)
            pause();
        MPI_Allreduce_c(&one, &sum, 1, MPI_INT, MPI_SUM, half);
        if (rank % 2)
            pause();
    }
    if (strcmp(what, "end") == 0 && rank == 1) {
        MPI_Finalize();
        return 0;
    }
    if (strcmp(what, "threads") == 0 && provided != MPI_THREAD_MULTIPLE)
        return 1;
    if (strcmp(what, "threads") == 0)
        begin_in_threads();
    if (strcmp(what, "both") == 0)
        wait_for_both();
    if (strcmp(what, "begun") == 0)
        begin_and_wait(half);
    if (strcmp(what, "other") == 0) {
        if (rank == 1)
            MPI_Barrier(other);
        else
            add(other);
    }
    if (strcmp(what, "circle") == 0)
        receive((rank + 1) % size);
    if (strcmp(what, "tag") == 0 || strcmp(what, "leave") == 0)
        exchange(what, false);
    if (strcmp(what, "reused") == 0)
        reuse();
    if (strcmp(what, "numbered") == 0)
        exchange(what, true);
    if (strcmp(what, "stopped") == 0) {
        if (rank == 1)
            raise(SIGSTOP);
        receive(1);
    }
    if (strcmp(what, "message") == 0) {
        if (rank == 0)
            receive(1);
        printf("rank %d\n", rank);
        fflush(stdout);
        pause();
    }
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Finalize();
    return 0;
}
