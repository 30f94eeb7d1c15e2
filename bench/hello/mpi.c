/* bench/hello/mpi.c - the same with MPI; rank 0 prints how long the slowest MPI_Init took */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

int main(int argc, char **argv)
{
    int rank, size;
    double before = now_ms(), init, slowest;
    MPI_Init(&argc, &argv);
    init = now_ms() - before;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    int *all = calloc((size_t)size, sizeof *all);
    MPI_Allgather(&rank, 1, MPI_INT, all, 1, MPI_INT, MPI_COMM_WORLD);
    MPI_Reduce(&init, &slowest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    MPI_Barrier(MPI_COMM_WORLD);
    for (int r = 0; r < size; r++) {
        if (all[r] != r)
            return 2;
    }
    if (argc > 1)
        usleep((useconds_t)atoi(argv[1]) * 1000);
    if (rank == 0)
        printf("%d %.3f\n", size, slowest);
    MPI_Finalize();
    free(all);
    return 0;
}
