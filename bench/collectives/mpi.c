/* bench/collectives/mpi.c - MPI_Allreduce and messages, of whichever MPI compiles this */
#include "contest.h"

#include <mpi.h>

static void all_reduce(float *data, size_t count)
{
    MPI_Allreduce(MPI_IN_PLACE, data, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static void barrier(void)
{
    MPI_Barrier(MPI_COMM_WORLD);
}

static int other(void)
{
    int rank;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    return !rank;
}

static void send_all(void *data, size_t bytes, int n)
{
    MPI_Request r[CONTEST_WINDOW];
    MPI_Status ended[CONTEST_WINDOW];
    if (n == 1) {
        MPI_Send(data, (int)bytes, MPI_BYTE, other(), 0, MPI_COMM_WORLD);
        return;
    }
    for (int i = 0; i < n; i++)
        MPI_Isend(data, (int)bytes, MPI_BYTE, other(), 0, MPI_COMM_WORLD, &r[i]);
    MPI_Waitall(n, r, ended);
}

static void recv_all(void *data, size_t bytes, int n)
{
    MPI_Request r[CONTEST_WINDOW];
    MPI_Status ended[CONTEST_WINDOW];
    if (n == 1) {
        MPI_Recv(data, (int)bytes, MPI_BYTE, other(), 0, MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE);
        return;
    }
    for (int i = 0; i < n; i++)
        MPI_Irecv(data, (int)bytes, MPI_BYTE, other(), 0, MPI_COMM_WORLD, &r[i]);
    MPI_Waitall(n, r, ended);
}

int main(int argc, char **argv)
{
    struct contestant c = {
        .all_reduce = all_reduce, .barrier = barrier, .send = send_all, .recv = recv_all};
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &c.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &c.size);
    contest_pin(c.rank);
    c.data = aligned_alloc(64, CONTEST_ROOM);
    contest_run(&c, argc - 1, argv + 1);
    MPI_Finalize();
    return 0;
}
