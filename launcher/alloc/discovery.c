/* launcher/alloc/discovery.c - see discovery.h
 *
 * As a source of the allocation: the script is asked until it lists enough hosts for the
 * job to start. Later it is asked by a plug-in of the launcher.
 */
#include "launcher/alloc/discovery.h"

#include "common/duration.h"
#include "common/err.h"
#include "common/helper.h"
#include "common/mem.h"
#include "launcher/alloc/hosts.h"
#include "launcher/alloc/source.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#define OPTION "--host-discovery-script"

enum { NOT_EXECUTABLE = 126, NOT_FOUND }; /* exit status of a shell */

int discovery_parse(const char *text, size_t size, struct alloc *alloc,
                    struct ddp_err *err)
{
    size_t blank = 0;
    while (blank < size && strchr(" \t\r\n", text[blank]) && text[blank])
        blank++;
    return blank == size ? 0 : hostfile_parse(OPTION, text, size, alloc, err);
}

static bool detect(const struct opts *opts)
{
    return opts->discovery != NULL;
}

/* How long it is asked at first, and by which option. */
static int64_t limit_ms(const struct opts *opts)
{
    return opts->node_wait_ms > 0 ? opts->node_wait_ms : opts->start_timeout_ms;
}

static const char *limit_name(const struct opts *opts)
{
    return opts->node_wait_ms > 0 ? "--node-wait" : "--start-timeout";
}

static int fail_late(const struct opts *opts, bool whole, struct ddp_err *err)
{
    return err_set(err, "%s '%s' %s %.4g s (%s)", OPTION, opts->discovery,
                   whole ? "had not ended after" : "has listed no hosts within",
                   (double)(whole ? opts->discovery_timeout_ms : limit_ms(opts)) / 1e3,
                   whole ? "--discovery-timeout" : limit_name(opts));
}

/* Appends its answer to `alloc`, which has to come within `left_ms`. Sets `*final` if
 * another call would fail, too. */
static int ask(const struct opts *opts, int64_t left_ms, struct alloc *alloc, bool *final,
               struct ddp_err *err)
{
    bool whole = opts->discovery_timeout_ms <= left_ms;
    const char *const argv[] = {"/bin/sh", "-c", opts->discovery, NULL};
    const struct helper h = {.argv = argv,
                             .group = true,
                             .answer_ms = whole ? opts->discovery_timeout_ms : left_ms,
                             .most = DISCOVERY_MOST + 1,
                             .at_most = true};
    OWNED char *text = NULL;
    size_t n;
    int status, rc = helper_ask(&h, &text, &n, &status);
    bool signalled = rc == 0 && WIFSIGNALED(status);
    int code = rc < 0 ? 0 : signalled ? WTERMSIG(status) : WEXITSTATUS(status);
    const char *why = signalled           ? ""
                      : code == NOT_FOUND ? ": there is no such command; check its path"
                      : code == NOT_EXECUTABLE ? ": not executable; try chmod +x"
                                               : "";
    *final = *why != 0;
    if (n > DISCOVERY_MOST)
        return err_set(err, "%s '%s' printed more than %d KiB", OPTION, opts->discovery,
                       DISCOVERY_MOST >> 10);
    if (rc < 0 && errno == ETIMEDOUT)
        return fail_late(opts, whole, err);
    if (rc < 0)
        return err_errno(err, "cannot run %s '%s'", OPTION, opts->discovery);
    if (code != 0)
        return err_set(err, "%s '%s' %s %d%s", OPTION, opts->discovery,
                       signalled ? "died of signal" : "exited with status", code, why);
    return discovery_parse(text, n, alloc, err);
}

static void forget(struct alloc *alloc)
{
    while (alloc->nnodes > 0)
        alloc_node_finish(&alloc->nodes[--alloc->nnodes]);
}

/* Enough for the job to start? */
static int check_size(const struct opts *opts, const struct alloc *alloc,
                      struct ddp_err *err)
{
    size_t least = (size_t)opts_least_nodes(opts);
    int slots = 0, each = opts->per_node;
    bool known = true; /* without slots the GPUs decide, once the agent has joined */
    for (size_t i = 0; i < alloc->nnodes; i++) {
        slots += each ? each : alloc->nodes[i].slots;
        known = known && (each || alloc->nodes[i].slots);
    }
    if (alloc->nnodes < least)
        return err_set(err, OPTION " lists %zu host%s, but --nnodes needs %zu",
                       alloc->nnodes, alloc->nnodes == 1 ? "" : "s", least);
    if (known && slots < opts->start_np)
        return err_set(err, OPTION " lists %d slot%s, but the job starts with %d ranks",
                       slots, slots == 1 ? "" : "s", opts->start_np);
    return 0;
}

/* A script that fails at first is asked again, too: what it asks may not be up yet. */
static int read_discovery(const struct opts *opts, struct alloc *alloc,
                          struct ddp_err *err)
{
    int64_t deadline_ms = now_ms() + limit_ms(opts);
    alloc->changes = true;
    for (bool final, told = false;; told = true) {
        if (ask(opts, deadline_ms - now_ms(), alloc, &final, err) == 0 &&
            check_size(opts, alloc, err) == 0)
            return 0;
        if (opts->dry_run || final ||
            now_ms() + opts->discovery_interval_ms >= deadline_ms)
            return -1;
        if (!told)
            fprintf(stderr, "ddprun: warning: %.*s; asking again for %.4g s (%s)\n",
                    (int)strcspn(err->text, "\n"), err->text,
                    (double)limit_ms(opts) / 1e3, limit_name(opts));
        sleep_ms(opts->discovery_interval_ms);
        forget(alloc);
    }
}

const struct alloc_source alloc_discovery = {"discovery", detect, read_discovery, NULL,
                                             NULL};
