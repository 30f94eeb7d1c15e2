/* tests/system/programs/slow_leave.c - preloaded: the odd ranks leave PMIx late, as they
 * may on a busy machine, when the others are on to their next program */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

int PMIx_Finalize(const void *info, size_t n)
{
    int (*real)(const void *info, size_t n) = NULL;
    const char *rank = getenv("PMIX_RANK");
    *(void **)&real = dlsym(RTLD_NEXT, "PMIx_Finalize");
    if (rank && atoi(rank) % 2)
        usleep(700000);
    return real(info, n);
}
