/* mpi_late KIND RANK: MPI ranks at a barrier to which one does not come. */
#include <mpi.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static volatile int never;

static void late_sleep(void)
{
    while (!never)
        pause(); /* line of sleep */
}

static void late_loop(void)
{
    while (!never)
        continue; /* line of loop */
}

static void late_stop(void)
{
    raise(SIGSTOP);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*fn)(void);
    } kinds[] = {{"sleep", late_sleep}, {"loop", late_loop}, {"stop", late_stop}};
    int rank;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Barrier(MPI_COMM_WORLD);
    puts("up");
    fflush(stdout);
    for (size_t i = 0; i < 3 && rank == atoi(argv[2]); i++) {
        if (strcmp(kinds[i].name, argv[1]) == 0)
            kinds[i].fn();
    }
    MPI_Barrier(MPI_COMM_WORLD); /* line of barrier */
    return MPI_Finalize();
}
