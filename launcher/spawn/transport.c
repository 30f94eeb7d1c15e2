/* launcher/spawn/transport.c - see transport.h */
#include "launcher/spawn/transport.h"

#include "common/err.h"
#include "common/mem.h"
#include "launcher/spawn/program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

/* The table, in the order of enum start_by. */
static const struct transport *const transports[] = {
    [BY_SSH] = &transport_ssh,     [BY_SRUN] = &transport_srun,
    [BY_QRSH] = &transport_qrsh,   [BY_BLAUNCH] = &transport_blaunch,
    [BY_TMRSH] = &transport_tmrsh,
};

char *transport_program(const struct transport *t, const char *ssh, struct ddp_err *err)
{
    int code;
    char *word = t->program ? xstrdup(t->program) : xstrndup(ssh, strcspn(ssh, " \t"));
    char *path = program_find(word, ".", getenv("PATH"), NULL, &code, err);
    free(word);
    return path;
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
        char *path = transport_program(t, NULL, &none);
        snprintf(why, size,
                 path ? "the way of %s; --start ssh is the other one"
                      : "the hosts are those of %s, but its '%s' is not in PATH",
                 source, t->program);
        free(path);
        return path ? t : &transport_ssh;
    }
    snprintf(why, size, "the hosts come from %s", source);
    return &transport_ssh;
}

/* --- what their failures have in common --------------------------------------------- */

void said_last_line(const char *said, const char *host, char *out, size_t size)
{
    static const char agent[] = "ddprun-agent: ";
    const char *end = said + strlen(said);
    while (end > said && strchr("\n\r \t", end[-1]))
        end--;
    const char *start = end;
    while (start > said && start[-1] != '\n')
        start--;
    size_t n = host ? strlen(host) : 0;
    if (strncmp(start, agent, strlen(agent)) == 0) {
        const char *rest = start + strlen(agent);
        if (host && strncmp(rest, host, n) == 0 && strncmp(rest + n, ": ", 2) == 0)
            start = rest + n + 2;
    }
    snprintf(out, size, "%.*s", (int)(end - start), start);
}

bool diagnose_no_agent(const char *agent, int code, char *out, size_t size)
{
    if (code != EXIT_NOT_FOUND && code != EXIT_NOT_EXECUTABLE)
        return false;
    snprintf(out, size,
             "the agent '%s' %s there; install ddprun in the same place, or name its "
             "agent by --agent",
             agent, code == EXIT_NOT_FOUND ? "is not" : "cannot be run");
    return true;
}

void diagnose_otherwise(const struct host *host, const char *agent, const char *program,
                        const char *said, int status, struct diagnosis *d)
{
    char why[400];
    int code = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
    said_last_line(said, host->name, why, sizeof why);
    if (WIFSIGNALED(status))
        snprintf(why, sizeof why, "%s died of SIG%s", program,
                 sigabbrev_np(WTERMSIG(status)));
    else if (!diagnose_no_agent(agent, code, why, sizeof why) && !why[0])
        snprintf(why, sizeof why, "%s ended with status %d and no word", program, code);
    snprintf(d->text, sizeof d->text, "%s: %s", host->name, why);
}
