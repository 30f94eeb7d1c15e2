/* native_late KIND RANK: ranks of MPI, or of libddpgroup with -DGROUP, at a barrier to which
 * one does not come. */
#ifdef GROUP
#include "include/ddprun/group.h"
#else
#include <mpi.h>
#endif

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

static void late(const char *kind)
{
    static const struct {
        const char *name;
        void (*fn)(void);
    } kinds[] = {{"sleep", late_sleep}, {"loop", late_loop}, {"stop", late_stop}};
    for (size_t i = 0; i < 3; i++) {
        if (strcmp(kinds[i].name, kind) == 0)
            kinds[i].fn();
    }
}

#ifdef GROUP
int main(int argc, char **argv)
{
    struct ddp_err err;
    struct ddp_group *g = ddp_group_init(NULL, &err);
    if (!g || ddp_barrier(g, &err) < 0)
        return 1;
    puts("up");
    fflush(stdout);
    if (ddp_group_rank(g) == atoi(argv[2]))
        late(argv[1]);
    return ddp_barrier(g, &err) < 0; /* line of group barrier */
}
#else
int main(int argc, char **argv)
{
    int rank;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Barrier(MPI_COMM_WORLD);
    puts("up");
    fflush(stdout);
    if (rank == atoi(argv[2]))
        late(argv[1]);
    MPI_Barrier(MPI_COMM_WORLD); /* line of barrier */
    return MPI_Finalize();
}
#endif
