/* launcher/plugins/mpi/shm_cleanup.c - see shm_cleanup.h */
#define LOG_SUBSYS "mpi"
#include "launcher/plugins/mpi/shm_cleanup.h"

#include "common/log.h"
#include "common/mem.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void remove_memory(const char *name)
{
    if (shm_unlink(name) == 0)
        log_debug("removed '%s', which the ranks left behind", name);
}

/* MPICH's: FNV-1a of 32 bits; common/fnv.h has that of 64. */
static uint32_t world_of(const char *kvsname)
{
    uint32_t h = 2166136261u;
    for (const char *p = kvsname; *p; p++)
        h = (h ^ (uint8_t)*p) * 16777619u;
    return h;
}

void shm_cleanup_mpich(const char *kvsname, uint32_t node)
{
    static const char *const names[] = {"mpich_shm", "mpich_vci"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        char name[64];
        snprintf(name, sizeof name, "/%s_%x_%u", names[i], world_of(kvsname), node);
        remove_memory(name);
    }
}

/* Bob Jenkins' one-at-a-time hash; Open MPI reserves bit 15. */
static uint32_t jobid_of(const char *nspace)
{
    uint32_t h = 0;
    for (const char *p = nspace; *p; p++) {
        h += (uint8_t)*p;
        h += h << 10;
        h ^= h >> 6;
    }
    h += h << 3;
    h ^= h >> 11;
    h += h << 15;
    return h & ~0x8000u;
}

void shm_cleanup_openmpi(const char *nspace, uint32_t nlocal)
{
    char host[256] = "", name[400];
    if (gethostname(host, sizeof host - 1) < 0)
        return;
    for (int round = 0; round < 2; round++) {
        for (uint32_t i = 0; i < nlocal; i++) {
            snprintf(name, sizeof name, "/vader_segment.%s.%u.%x.%u", host,
                     (unsigned)geteuid(), jobid_of(nspace), i);
            remove_memory(name);
        }
        if (!strchr(host, '.'))
            break;
        *strchr(host, '.') = '\0'; /* Open MPI may be set to strip the domain */
    }
}
