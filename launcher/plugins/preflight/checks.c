/* launcher/plugins/preflight/checks.c - see check.h */
#include "launcher/plugins/preflight/check.h"

#include "common/mem.h"

#include <stdio.h>
#include <string.h>

/* --- numbers ------------------------------------------------------------------------ */

/* "3", or "3 to 5" if the two differ in the printed digits. */
static char *range(double least, double most, const char *format, const char *unit)
{
    char from[32], to[32];
    snprintf(from, sizeof from, format, least + 0.0);
    snprintf(to, sizeof to, format, most + 0.0);
    return strcmp(from, to) == 0 ? xasprintf("%s %s", to, unit)
                                 : xasprintf("%s to %s %s", from, to, unit);
}

static char *range_ms(int64_t least, int64_t most)
{
    return range((double)least / 1e6, (double)most / 1e6, "%.2f",
                 "ms to connect to the next host");
}

static char *range_s(int64_t least, int64_t most)
{
    return range((double)least / 1e9, (double)most / 1e9, "%.2f", "s after the start");
}

static char *range_space(int64_t least, int64_t most)
{
    double gib = (double)(1 << 30);
    return range((double)least / gib, (double)most / gib, "%.3g", "GiB free");
}

/* Signed, to a tenth of a millisecond. */
static char *range_clock(int64_t least, int64_t most)
{
    return range((double)(least / 100000) / 10, (double)(most / 100000) / 10, "%+.1f",
                 "ms offset");
}

/* ahead_ns: the node's wall clock minus the launcher's */
static char *fault_clock(int64_t ahead_ns)
{
    double s = (double)ahead_ns / 1e9;
    if (s > -1 && s < 1)
        return NULL;
    return xasprintf("its clock is %.1f s %s the launcher's; set it by NTP (chronyc "
                     "tracking): file times, munge and Kerberos depend on it",
                     s < 0 ? -s : s, s < 0 ? "behind" : "ahead of");
}

/* --- the table ---------------------------------------------------------------------- */

const struct check checks[CHECKS] = {
    [CHECK_REACHED] = {.name = "reached", .range = range_s},
    [CHECK_AGENT] = {.name = "agent"},
    [CHECK_USER] = {.name = "user",
                    .run = check_user,
                    .mismatch = "hosts cannot read each other's files"},
    [CHECK_CLOCK] = {.name = "clock",
                     .run = check_clock,
                     .range = range_clock,
                     .fault = fault_clock},
    [CHECK_CPUS] = {.name = "cpus",
                    .run = check_cpus,
                    .mismatch = "the slowest host limits the job",
                    .mismatch_is_remark = true},
    [CHECK_GPUS] =
        {.name = "gpus",
         .run = check_gpus,
         .mismatch =
             "the job may fail in the middle of a run; exclude such hosts with -H "
             "^HOST"},
    [CHECK_DIRECTORY] =
        {.name = "directory",
         .run = check_wdir,
         .mismatch = "the directory is not shared: hosts do not see each other's files",
         .mismatch_is_remark = true},
    [CHECK_CONTAINER] = {.name = "container",
                         .run = check_container,
                         .mismatch =
                             "pull or build it again: the image must be the same"},
    [CHECK_PROGRAM] = {.name = "program",
                       .run = check_program,
                       .mismatch = "copy it again, or use a shared directory"},
    [CHECK_LIBRARIES] = {.name = "libraries",
                         .run = check_libraries,
                         .count_only = true,
                         .mismatch =
                             "load the same modules, or give LD_LIBRARY_PATH with -x"},
    [CHECK_PYTHON] = {.name = "python",
                      .run = check_python,
                      .mismatch = "activate the same environment everywhere"},
    [CHECK_TMP] = {.name = "/tmp", .run = check_tmp, .range = range_space},
    [CHECK_SHM] = {.name = "/dev/shm", .run = check_shm, .range = range_space},
    [CHECK_LIMITS] = {.name = "limits",
                      .run = check_limits,
                      .mismatch = "see /etc/security/limits.conf there",
                      .mismatch_is_remark = true},
    [CHECK_NAMES] = {.name = "names",
                     .run = check_names,
                     .count_only = true,
                     .mismatch = "make /etc/hosts or DNS agree"},
    [CHECK_PORT] = {.name = "port", .run = check_port},
    [CHECK_NETWORK] = {.name = "network",
                       .phase = PROBE_NEIGHBOUR,
                       .run = check_network,
                       .range = range_ms},
};
