/* bench/hello/calls.c - what a call of MPI costs: ns of a broadcast of nothing, a wait
 * and a test for nothing, an all-reduce of one number, at once and begun and waited for,
 * and a message of one number to the other rank and one from it, begun and waited for;
 * printed by rank 0 of two
 */
#include <mpi.h>
#include <stdio.h>

enum { CALLS = 1000000, SUMS = 100000 };

int main(int argc, char **argv)
{
    int rank, x = 1, y, flag;
    MPI_Request none = MPI_REQUEST_NULL, request, both[2];
    MPI_Status statuses[2]; /* MPICH declares MPI_STATUSES_IGNORE as an array of 0 */
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Barrier(MPI_COMM_WORLD);
    double began = MPI_Wtime();
    for (int i = 0; i < CALLS; i++)
        MPI_Bcast(&x, 0, MPI_INT, 0, MPI_COMM_WORLD);
    double cast = MPI_Wtime();
    for (int i = 0; i < CALLS; i++)
        MPI_Wait(&none, MPI_STATUS_IGNORE);
    double waited = MPI_Wtime();
    for (int i = 0; i < CALLS; i++)
        MPI_Test(&none, &flag, MPI_STATUS_IGNORE);
    double tested = MPI_Wtime();
    MPI_Barrier(MPI_COMM_WORLD);
    double met = MPI_Wtime();
    for (int i = 0; i < SUMS; i++)
        MPI_Allreduce(&x, &y, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    double summed = MPI_Wtime();
    for (int i = 0; i < SUMS; i++) {
        MPI_Iallreduce(&x, &y, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD, &request);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
    }
    double begun = MPI_Wtime();
    for (int i = 0; i < SUMS; i++) {
        MPI_Irecv(&y, 1, MPI_INT, 1 - rank, 1, MPI_COMM_WORLD, &both[0]);
        MPI_Isend(&x, 1, MPI_INT, 1 - rank, 1, MPI_COMM_WORLD, &both[1]);
        MPI_Waitall(2, both, statuses);
    }
    double ended = MPI_Wtime();
    if (rank == 0)
        printf("%.2f %.2f %.2f %.2f %.2f %.2f\n", (cast - began) / CALLS * 1e9,
               (waited - cast) / CALLS * 1e9, (tested - waited) / CALLS * 1e9,
               (summed - met) / SUMS * 1e9, (begun - summed) / SUMS * 1e9,
               (ended - begun) / SUMS * 1e9);
    MPI_Finalize();
    return 0;
}
