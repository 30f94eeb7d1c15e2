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

#ifdef GROUP
static struct ddp_group *group;
static struct ddp_err err;
#define BARRIER() ddp_barrier(group, &err)
#define END()     ddp_group_destroy(group)
#else
#define BARRIER() MPI_Barrier(MPI_COMM_WORLD)
#define END()     MPI_Finalize()
#endif

static int start(void)
{
#ifdef GROUP
    group = ddp_group_init(NULL, &err);
    if (!group)
        exit(1);
    return ddp_group_rank(group);
#else
    int rank;
    MPI_Init(NULL, NULL);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    return rank;
#endif
}

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

int main(int argc, char **argv)
{
    int rank = start();
    if (BARRIER() != 0)
        return 1;
    puts("up");
    fflush(stdout);
    if (rank == atoi(argv[2]))
        late(argv[1]);
    if (BARRIER() != 0) /* line of barrier */
        return 1;
    END();
}
