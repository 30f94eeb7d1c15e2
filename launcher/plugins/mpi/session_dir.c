/* launcher/plugins/mpi/session_dir.c - see session_dir.h */
#include "launcher/plugins/mpi/session_dir.h"

#include "common/duration.h"
#include "common/mem.h"

#include <ftw.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/stat.h>

char *session_dir_name(void)
{
    const char *tmpdir = getenv("TMPDIR");
    uint64_t random;
    if (getrandom(&random, sizeof random, 0) != sizeof random)
        random = (uint64_t)now_ns(); /* a kernel without it */
    return xasprintf("%s/ddprun-mpi-%016" PRIx64,
                     tmpdir && tmpdir[0] == '/' ? tmpdir : "/tmp", random);
}

static int remove_entry(const char *path, const struct stat *st, int type,
                        struct FTW *ftw)
{
    remove(path);
    return 0;
}

void session_dir_remove(const char *dir)
{
    nftw(dir, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}
