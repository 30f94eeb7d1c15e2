/* launcher/alloc/sge.c - the allocation of a Grid Engine job
 *
 * $PE_HOSTFILE: "host slots queue@host processors", blanks or tabs between, a line for
 * each queue instance, so that a host may come twice: its slots add up (sge_pe(5)). The
 * first line is the master's. What a slot is differs from site to site (a core, a
 * hardware thread: 80 on a node of 4 GPUs); it counts on nodes without GPUs only. ABCI
 * has the hosts' names in the file $SGE_JOB_HOSTLIST, too.
 */
#include "common/err.h"
#include "common/mem.h"
#include "launcher/alloc/sched.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static bool detect(const struct opts *opts)
{
    return (sched_env("PE_HOSTFILE") || sched_env("SGE_JOB_HOSTLIST")) &&
           sched_env("JOB_ID") && sched_env("SGE_ROOT");
}

static struct alloc_node *find_or_add(struct alloc *a, const char *host)
{
    for (size_t i = 0; i < a->nnodes; i++) {
        if (strcasecmp(a->nodes[i].name, host) == 0)
            return &a->nodes[i];
    }
    return alloc_add(a, host);
}

static int read_line(const char *path, int number, char *line, struct alloc *a,
                     struct ddp_err *err)
{
    char *save = NULL;
    const char *host = strtok_r(line, " \t\r\n", &save);
    const char *slots = strtok_r(NULL, " \t\r\n", &save);
    if (!host)
        return 0; /* blank */
    char *end = NULL;
    long n = slots ? strtol(slots, &end, 10) : 0;
    if (!slots || *end || n < 1 || n > 1 << 20)
        return err_set(err, "%s:%d: '%s %s': a host and a number of slots is the form",
                       path, number, host, slots ? slots : "");
    struct alloc_node *node = find_or_add(a, host);
    int sum = node->slots_else + (int)n;
    char *from = xasprintf("PE_HOSTFILE: %d slots", sum);
    sched_slots_else(node, sum, from);
    free(from);
    return 0;
}

static int read_pe_hostfile(const char *path, struct alloc *a, struct ddp_err *err)
{
    FILE *f = fopen(path, "re");
    if (!f)
        return err_errno(err, "cannot open PE_HOSTFILE '%s'", path);
    char *line = NULL;
    size_t room = 0;
    int rc = 0;
    for (int number = 1; rc == 0 && getline(&line, &room, f) >= 0; number++)
        rc = read_line(path, number, line, a, err);
    free(line);
    fclose(f);
    if (rc == 0 && a->nnodes == 0)
        rc = err_set(err, "PE_HOSTFILE '%s' names no host", path);
    return rc;
}

/* A number that goes with another file tells of variables that have come along, as into
 * the tasks of qrsh -V. */
static int check_number(const char *file, const struct alloc *a, struct ddp_err *err)
{
    const char *text = sched_env("NHOSTS");
    if (!text || strtoul(text, NULL, 10) == a->nnodes)
        return 0;
    return err_set(
        err,
        "NHOSTS=%s, but %s=%s names %zu host%s: variables of two jobs? -H names "
        "the hosts",
        text, file, sched_env(file), a->nnodes, a->nnodes == 1 ? "" : "s");
}

static int read_sge(const struct opts *opts, struct alloc *a, struct ddp_err *err)
{
    const char *path = sched_env("PE_HOSTFILE"), *list = sched_env("SGE_JOB_HOSTLIST");
    a->scheduler_owned = true;
    if (path)
        return read_pe_hostfile(path, a, err) < 0 ? -1
                                                  : check_number("PE_HOSTFILE", a, err);
    return sched_hostfile("SGE_JOB_HOSTLIST", list, a, err) < 0
               ? -1
               : check_number("SGE_JOB_HOSTLIST", a, err);
}

const struct alloc_source alloc_sge = {"sge", detect, read_sge, "JOB_ID", NULL, true};
