/* bench/collectives/mpi.c - MPI_Allreduce, of whichever MPI compiles this */
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

int main(int argc, char **argv)
{
    enum { ROOM = 32 << 20 };
    struct contestant c = {.all_reduce = all_reduce, .barrier = barrier};
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &c.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &c.size);
    contest_pin(c.rank);
    c.data = aligned_alloc(64, ROOM);
    contest_run(&c, argc - 1, argv + 1);
    MPI_Finalize();
    return 0;
}
