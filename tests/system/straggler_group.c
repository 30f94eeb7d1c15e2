/* straggler_group KIND STEPS STEP_MS [LATE_MS]: steps of a job with libddpgroup: a sleep,
 * an all_reduce and a barrier. KIND: "late": rank 2 sleeps LATE_MS more in each step;
 * "host": so do ranks 2 and 3; "once": only in step 10, for ten times as long; "all":
 * every rank does; "turns": one rank in each step, in turn; "disk": rank 2, which reads
 * pages of the file "pages" from disk meanwhile. Rank 0 prints "step N" after
 * each, so that a test sees at which step ddprun names the straggler. */
#include "include/ddprun/group.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static void sleep_ms(long ms)
{
    struct timespec rest = {ms / 1000, ms % 1000 * 1000000};
    while (clock_nanosleep(CLOCK_MONOTONIC, 0, &rest, &rest) != 0)
        ;
}

/* Four major page faults in each 10 ms. */
static void read_pages(long ms)
{
    enum { PAGES = 4, SIZE = PAGES << 20 };
    int fd = open("pages", O_RDWR | O_CREAT, 0600);
    int sum = fd < 0 || ftruncate(fd, SIZE) < 0 || posix_fallocate(fd, 0, SIZE) != 0;
    for (long at = 0; sum == 0 && at < ms; at += 10) {
        fdatasync(fd);
        posix_fadvise(fd, 0, SIZE, POSIX_FADV_DONTNEED);
        char *p = mmap(NULL, SIZE, PROT_READ, MAP_PRIVATE, fd, 0);
        if (p == MAP_FAILED)
            break;
        madvise(p, SIZE, MADV_RANDOM);
        for (int i = 0; i < PAGES; i++)
            sum += *(volatile char *)(p + (i << 20));
        munmap(p, SIZE);
        sleep_ms(10);
    }
    if (fd >= 0)
        close(fd);
}

static long late_ms(const char *kind, int rank, int size, int step, long ms)
{
    if (strcmp(kind, "late") == 0)
        return rank == 2 ? ms : 0;
    if (strcmp(kind, "host") == 0)
        return rank == 2 || rank == 3 ? ms : 0;
    if (strcmp(kind, "disk") == 0)
        return 0;
    if (strcmp(kind, "once") == 0)
        return rank == 2 && step == 10 ? 10 * ms : 0;
    if (strcmp(kind, "turns") == 0)
        return rank == step % size ? ms : 0;
    return ms;
}

int main(int argc, char **argv)
{
    struct ddp_err err;
    float x[1000] = {0};
    if (argc < 5)
        return 2;
    struct ddp_group *g = ddp_group_init(NULL, &err);
    int rc = g ? 0 : -1, steps = atoi(argv[2]);
    for (int i = 1; rc == 0 && i <= steps; i++) {
        int rank = ddp_group_rank(g), size = ddp_group_size(g);
        if (strcmp(argv[1], "disk") == 0 && rank == 2)
            read_pages(atol(argv[3]) + atol(argv[4]));
        else
            sleep_ms(atol(argv[3]) + late_ms(argv[1], rank, size, i, atol(argv[4])));
        rc = ddp_all_reduce(g, x, 1000, DDP_F32, DDP_SUM, &err);
        if (rc == 0)
            rc = ddp_barrier(g, &err);
        if (rank == 0) {
            printf("step %d\n", i);
            fflush(stdout);
        }
    }
    if (rc < 0)
        fprintf(stderr, "%s\n", err.text);
    ddp_group_destroy(g);
    return rc < 0;
}
