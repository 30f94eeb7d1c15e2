/* launcher/plugins/elastic/listing.c - see listing.h
 *
 * A script that fails is run less often, down to one run in FAILURES_MOST intervals. The
 * hostfile is read by a thread, as its file server may not answer.
 */
#define LOG_SUBSYS "elastic"
#include "launcher/plugins/elastic/listing.h"

#include "common/err.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/offload.h"
#include "common/text_file.h"
#include "launcher/alloc/discovery.h"
#include "launcher/alloc/hosts.h"
#include "launcher/transport/shell_command.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { FAILURES_MOST = 16 };

/* A look at the hostfile, by a thread. */
struct look {
    char path[PATH_MAX];
    struct stat before, now;
    bool changed;
    int rc; /* of hostfile_read() */
    struct alloc hosts;
    struct ddp_err err;
};

struct listing {
    struct loop *loop;       /* borrowed */
    struct reap *reap;       /* borrowed */
    const struct opts *opts; /* borrowed */
    void (*update)(const struct alloc *hosts, void *arg);
    void *arg;
    struct event *timer;           /* owned */
    struct shell_command *command; /* owned; NULL: does not run */
    struct offload *looking;       /* owned; NULL: no look */
    struct stat seen;              /* of the hostfile that was read last */
    char *told;                    /* owned: the last failure, NULL: a good answer */
    int failures;                  /* in a row */
};

static void arm(struct listing *l)
{
    int64_t ms = l->opts->discovery_interval_ms;
    ms *= l->failures < FAILURES_MOST ? l->failures + 1 : FAILURES_MOST;
    loop_arm(l->timer, ms);
}

/* One line, once until there is another one, or a good answer. */
static void complain(struct listing *l, const char *text)
{
    size_t n = strcspn(text, "\n");
    l->failures++;
    if (l->told && strlen(l->told) == n && strncmp(l->told, text, n) == 0)
        return;
    free(l->told);
    l->told = xstrndup(text, n);
    log_warn("%s; the hosts stay as they were", l->told);
}

static void take(struct listing *l, const struct alloc *hosts)
{
    if (l->told)
        log_info("the list of hosts can be read again");
    free(l->told);
    l->told = NULL;
    l->failures = 0;
    l->update(hosts, l->arg);
}

/* --- the script --------------------------------------------------------------------- */

static void on_answer(const char *trouble, const char *output, size_t size, void *arg)
{
    struct listing *l = arg;
    SCOPED(alloc_clear) struct alloc hosts = {0};
    struct ddp_err err;
    shell_command_destroy(l->command);
    l->command = NULL;
    if (trouble)
        err_set(&err, "--host-discovery-script '%.200s' %s", l->opts->discovery, trouble);
    if (trouble || discovery_parse(output, size, &hosts, &err) < 0)
        complain(l, err.text);
    else
        take(l, &hosts);
    arm(l);
}

static void run_script(struct listing *l)
{
    struct ddp_err err;
    const struct shell_command_spec spec = {.text = l->opts->discovery,
                                            .limit_ms = l->opts->discovery_timeout_ms,
                                            .most = DISCOVERY_MOST};
    l->command = shell_command_start(l->loop, l->reap, &spec, on_answer, l, &err);
    if (l->command)
        return;
    complain(l, err.text);
    arm(l);
}

/* --- the hostfile ------------------------------------------------------------------- */

static void look_at(void *copy)
{
    struct look *l = copy;
    if (stat(l->path, &l->now) < 0) {
        l->changed = true;
        l->rc = err_errno(&l->err, "cannot open the hostfile '%s'", l->path);
    } else if ((l->changed = !text_file_same(&l->before, &l->now))) {
        l->rc = hostfile_read(l->path, TEXT_FILE_SILENCE_MS, &l->hosts, &l->err);
    }
}

static void begin_look(struct listing *l)
{
    struct look look = {.before = l->seen};
    snprintf(look.path, sizeof look.path, "%s", l->opts->hostfile);
    l->looking = offload_begin(look_at, &look, sizeof look, NULL);
    arm(l);
}

static void end_look(struct listing *l)
{
    const struct look *look = offload_wait(l->looking, 0);
    arm(l);
    if (!look)
        return; /* the file server does not answer */
    SCOPED(alloc_clear) struct alloc hosts = look->hosts;
    if (look->changed && look->rc < 0)
        complain(l, look->err.text);
    else if (look->changed)
        take(l, &hosts);
    if (look->changed && look->rc == 0)
        l->seen = look->now;
    offload_end(l->looking);
    l->looking = NULL;
}

/* --- life --------------------------------------------------------------------------- */

static void on_timer(evutil_socket_t fd, short what, void *arg)
{
    struct listing *l = arg;
    if (l->opts->discovery)
        run_script(l);
    else if (l->looking)
        end_look(l);
    else
        begin_look(l);
}

struct listing *listing_create(struct loop *loop, struct reap *reap,
                               const struct opts *opts,
                               void (*update)(const struct alloc *hosts, void *arg),
                               void *arg)
{
    struct listing *l = xcalloc(1, sizeof *l);
    *l = (struct listing){.loop = loop,
                          .reap = reap,
                          .opts = opts,
                          .update = update,
                          .arg = arg,
                          .timer = loop_timer(loop, on_timer, l)};
    arm(l);
    return l;
}

void listing_destroy(struct listing *l)
{
    if (!l)
        return;
    loop_free(l->timer);
    shell_command_destroy(l->command);
    offload_end(l->looking);
    free(l->told);
    free(l);
}
