/* bench/hello/spawn.c - the time of MPI_Comm_spawn, from the call until the communicator
 * with N processes is there: spawn N TIMES prints "1 MS" for each time */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    MPI_Comm parent, children;
    MPI_Init(&argc, &argv);
    MPI_Comm_get_parent(&parent);
    if (parent != MPI_COMM_NULL) {
        MPI_Comm_disconnect(&parent);
        MPI_Finalize();
        return 0;
    }
    int n = argc > 1 ? atoi(argv[1]) : 2, times = argc > 2 ? atoi(argv[2]) : 3;
    for (int i = 0; i < times; i++) {
        double began = MPI_Wtime();
        MPI_Comm_spawn(argv[0], MPI_ARGV_NULL, n, MPI_INFO_NULL, 0, MPI_COMM_WORLD,
                       &children, MPI_ERRCODES_IGNORE);
        printf("1 %.3f\n", 1e3 * (MPI_Wtime() - began));
        MPI_Comm_disconnect(&children);
    }
    MPI_Finalize();
    return 0;
}
