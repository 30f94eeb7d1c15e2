/* launcher/alloc/lsf.c - the allocation of an LSF job
 *
 * $LSB_MCPU_HOSTS is "host1 4 host2 4"; a host that serves two parts of a compound
 * request is listed twice, and its slots are added. If that is too long to be set,
 * $LSB_DJOB_HOSTFILE is used: one line with the host per slot.
 */
#include "common/err.h"
#include "common/mem.h"
#include "common/number.h"
#include "launcher/alloc/hostbook.h"
#include "launcher/alloc/sched.h"
#include "launcher/alloc/source.h"

#include <stdlib.h>
#include <string.h>

static bool detect(const struct opts *opts)
{
    return sched_env("LSB_JOBID") &&
           (sched_env("LSB_MCPU_HOSTS") || sched_env("LSB_DJOB_HOSTFILE"));
}

static int read_pairs(const char *text, struct alloc *a, struct ddp_err *err)
{
    const struct host_place place = {
        .source = "LSB_MCPU_HOSTS", .text = text, .len = strlen(text)};
    struct hostbook *book = hostbook_create(a, REPEAT_ADDS);
    char *copy = xstrdup(text), *save = NULL;
    int rc = 0;
    for (const char *host = strtok_r(copy, " \t", &save); host && rc == 0;
         host = strtok_r(NULL, " \t", &save)) {
        const char *slots = strtok_r(NULL, " \t", &save);
        int n;
        if (!slots || !number_whole(slots, 1, SLOTS_MAX, &n)) {
            rc = err_set(err,
                         "LSB_MCPU_HOSTS='%s': expected host and number in turn, but "
                         "'%s' has no number",
                         SANITIZED(text), SANITIZED(host));
        } else {
            const struct host_entry e = {.host = text + (host - copy),
                                         .host_len = strlen(host),
                                         .literal = true,
                                         .slots = n};
            rc = sched_host_name(place.source, host, err);
            rc = rc == 0 ? hostbook_add(book, &place, &e, err) : rc;
        }
    }
    free(copy);
    hostbook_destroy(book);
    for (size_t i = 0; rc == 0 && i < a->nnodes; i++) {
        int slots = a->nodes[i].slots;
        alloc_set_slots_else(&a->nodes[i], slots, "LSB_MCPU_HOSTS: %d slot%s", slots,
                             slots == 1 ? "" : "s");
    }
    if (rc == 0 && a->nnodes == 0)
        rc = err_set(err, "LSB_MCPU_HOSTS='%s' names no host", SANITIZED(text));
    return rc;
}

static int read_lsf(const struct opts *opts, struct alloc *a, struct ddp_err *err)
{
    const char *pairs = sched_env("LSB_MCPU_HOSTS");
    a->scheduler_owned = true;
    if (pairs)
        return read_pairs(pairs, a, err);
    return sched_hostfile("LSB_DJOB_HOSTFILE", sched_env("LSB_DJOB_HOSTFILE"), a, err);
}

const struct alloc_source alloc_lsf = {
    .name = "lsf",
    .detect = detect,
    .read = read_lsf,
    .job_var = "LSB_JOBID",
    .on_own_node = true,
    .slots_hint = "-n N of the job",
};
