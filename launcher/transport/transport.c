/* launcher/transport/transport.c - see transport.h */
#include "launcher/transport/transport.h"

#include "common/err.h"
#include "common/mem.h"
#include "launcher/transport/diagnose.h"
#include "launcher/transport/program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The table, in the order of enum start_by. */
static const struct transport *const transports[] = {
    [BY_SSH] = &transport_ssh,     [BY_SRUN] = &transport_srun,
    [BY_QRSH] = &transport_qrsh,   [BY_BLAUNCH] = &transport_blaunch,
    [BY_TMRSH] = &transport_tmrsh, [BY_FLUX] = &transport_flux,
};

char *transport_program(const struct transport *t, const char *ssh, struct ddp_err *err)
{
    int code;
    OWNED char *word =
        t->program ? xstrdup(t->program) : xstrndup(ssh, strcspn(ssh, " \t"));
    return program_find(word, ".", getenv("PATH"), NULL, &code, err);
}

const struct transport *transport_choose(enum start_by asked, const char *source,
                                         char *why, size_t size, struct ddp_err *err)
{
    if (asked != BY_DEFAULT) {
        const struct transport *t = transports[asked];
        snprintf(why, size, "--start %s", t->name);
        if (t->source && strcmp(t->source, source) != 0) {
            err_set(err,
                    "--start %s starts on the hosts of a job of its scheduler only, and "
                    "these come from '%s'",
                    t->name, source);
            return NULL;
        }
        return t;
    }
    for (size_t i = 0; i < ARRAY_LEN(transports); i++) {
        const struct transport *t = transports[i];
        if (!t || !t->source || strcmp(t->source, source) != 0)
            continue;
        struct ddp_err none;
        OWNED char *path = transport_program(t, NULL, &none);
        snprintf(why, size,
                 path ? "the default in a job of %s; --start ssh uses ssh"
                      : "the hosts are those of %s, but its '%s' is not in PATH",
                 source, t->program);
        return path ? t : &transport_ssh;
    }
    snprintf(why, size, "hosts from %s", source);
    return &transport_ssh;
}

void transport_batches(const struct transport *t, const struct msg_hosts *hosts,
                       const unsigned *nodes, size_t n,
                       void (*fn)(const unsigned *nodes, size_t n, void *arg), void *arg)
{
    OWNED unsigned *parts = xcalloc(n, sizeof *parts);
    OWNED unsigned *batch = xcalloc(n, sizeof *batch);
    size_t done = 0;
    for (size_t i = 0; i < n; i++)
        parts[i] = t->part ? t->part(hosts->hosts[nodes[i]].name) : 0;
    for (unsigned part = 0; done < n; part++) {
        size_t k = 0;
        for (size_t i = 0; i < n; i++) {
            if (parts[i] == part)
                batch[k++] = nodes[i];
        }
        if (k > 0)
            fn(batch, k, arg);
        done += k;
    }
}

void transport_diagnose(const struct transport *t, const struct msg_hosts *hosts,
                        const struct host *host, const char *output, int status,
                        struct diagnosis *d)
{
    const struct start_failure *r =
        t->reasons ? diagnose_failure(t->reasons, output) : NULL;
    *d = (struct diagnosis){.again = r && r->again};
    if (r)
        snprintf(d->text, sizeof d->text, "%s: %s%s%s", host->name, r->cause,
                 r->advice ? "; " : "", r->advice ? r->advice : "");
    else if (!t->diagnose || !t->diagnose(hosts, host, output, status, d))
        diagnose_otherwise(host, hosts->agent, t->program, output, status, d);
}
